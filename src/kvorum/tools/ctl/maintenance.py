"""`defrag`, `move-leader` and `downgrade`: work on the members themselves."""

import sys
import time

from kvorum.api.durations import duration_text
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.errors import KvorumError
from kvorum.tools.cli.errors import BAD_ARGUMENTS, GENERAL, CommandError
from kvorum.tools.cli.values import hexadecimal
from kvorum.tools.ctl.connecting import endpoints_of
from kvorum.tools.ctl.endpoints import requested_endpoints
from kvorum.tools.ctl.failures import error_text, print_error_line, print_hint
from kvorum.tools.ctl.invocation import CtlInvocation


def defragment(invocation: CtlInvocation) -> None:
    """Defragment the endpoints one after the other; one that fails does not stop the others."""
    is_failed = False
    for endpoint in requested_endpoints(invocation):
        with invocation.client([endpoint]) as client:
            started_at = time.monotonic_ns()
            problem: KvorumError | None = None
            try:
                invocation.ask(
                    client, rpcs.DEFRAGMENT, pb.DefragmentRequest(), pb.DefragmentResponse
                )
            except KvorumError as error:
                problem = error
            took = duration_text(time.monotonic_ns() - started_at)
        if problem is not None:
            is_failed = True
            sys.stdout.flush()
            print_hint(problem)
            reason = error_text(problem)
            print_error_line(
                f"Failed to defragment etcd member[{endpoint}]. took {took}. ({reason})"
            )
        else:
            invocation.output_line(f"Finished defragmenting etcd member[{endpoint}]. took {took}")
    if is_failed:
        raise SystemExit(GENERAL)


def move_leader(invocation: CtlInvocation) -> None:
    """Find the leader among the endpoints, and transfer leadership to another member."""
    if len(invocation.arguments) != 1:
        raise CommandError("move-leader command needs 1 argument", BAD_ARGUMENTS)
    try:
        target = hexadecimal(invocation.arguments[0])
    except ValueError as error:
        raise CommandError(str(error), BAD_ARGUMENTS) from None
    output = invocation.output
    endpoints = endpoints_of(invocation)
    for endpoint in endpoints:
        with invocation.client([endpoint]) as client:
            found = invocation.ask(client, rpcs.STATUS, pb.StatusRequest(), pb.StatusResponse)
            if found.header.member_id == found.leader:
                request = pb.MoveLeaderRequest(targetID=target)
                answer = invocation.ask(client, rpcs.MOVE_LEADER, request, pb.MoveLeaderResponse)
                break
    else:
        raise CommandError(f"no leader endpoint given at [{' '.join(endpoints)}]", BAD_ARGUMENTS)
    output.show(
        answer,
        lambda _: output.line(f"Leadership transferred from {found.leader:x} to {target:x}"),
    )


def downgrade_validate(invocation: CtlInvocation) -> None:
    """Check whether the cluster can be downgraded."""
    _downgrade(invocation, "VALIDATE", _target_version(invocation))


def downgrade_enable(invocation: CtlInvocation) -> None:
    """Start the downgrade of the cluster."""
    _downgrade(invocation, "ENABLE", _target_version(invocation))


def downgrade_cancel(invocation: CtlInvocation) -> None:
    """Cancel the downgrade of the cluster."""
    _downgrade(invocation, "CANCEL", "")


def _target_version(invocation: CtlInvocation) -> str:
    arguments = invocation.arguments
    if not arguments:
        raise CommandError("TARGET_VERSION not provided", BAD_ARGUMENTS)
    if len(arguments) > 1:
        raise CommandError("too many arguments", BAD_ARGUMENTS)
    if not arguments[0]:
        raise CommandError("target version not provided", BAD_ARGUMENTS)
    return arguments[0]


def _downgrade(invocation: CtlInvocation, action: str, version: str) -> None:
    request = pb.DowngradeRequest(action=action, version=version)
    with invocation.client() as client:
        answer = invocation.ask(client, rpcs.DOWNGRADE, request, pb.DowngradeResponse)
    output = invocation.output
    output.show(
        answer,
        lambda done: output.line(
            f"Downgrade {action.lower()} success, cluster version {done.version}"
        ),
    )
