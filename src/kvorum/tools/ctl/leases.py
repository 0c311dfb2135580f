"""`lease`: grant, revoke, inspect and renew leases."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.errors import (
    DeadlineError,
    KvorumError,
    LeaseExistsError,
    OutcomeUnknownError,
)
from kvorum.client.options import FOREVER
from kvorum.client.rpcs import Rpc
from kvorum.client.sync.client import Client
from kvorum.client.threads import clock, random_id
from kvorum.tools.cli.errors import BAD_ARGUMENTS, BAD_CONNECTION, BAD_FEATURE, CommandError
from kvorum.tools.cli.output import ResultOutput, as_json
from kvorum.tools.cli.values import decimal, hexadecimal
from kvorum.tools.ctl.failures import UNKNOWN, error_text, hint_of
from kvorum.tools.ctl.invocation import CtlInvocation

if TYPE_CHECKING:
    from kvorum.tools.ctl.invocation import Kind

FIRST_ANSWER_SECONDS = 1
"""The time for the first answer after connecting; then the lease counts as lost."""
FIRST_ANSWER_SECONDS_MAX = 5
"""The same limit, if connecting may take any time; both are etcdctl's."""

T = TypeVar("T")


def grant(invocation: CtlInvocation) -> None:
    """Grant a lease."""
    if len(invocation.arguments) != 1:
        raise CommandError("lease grant command needs TTL argument", BAD_ARGUMENTS)
    try:
        ttl = decimal(invocation.arguments[0])
    except ValueError as error:
        raise CommandError(f"bad TTL ({error})", BAD_ARGUMENTS) from None
    with invocation.client() as client:
        answer = _call_or_fail("failed to grant lease", lambda: _granted(invocation, client, ttl))
    output = invocation.output
    text = f"lease {answer.ID:016x} granted with TTL({answer.TTL}s)"

    def fields() -> None:
        _id_field(output, answer.ID)
        output.field("TTL", answer.TTL)

    own = {"ID": answer.ID, "TTL": answer.TTL, "Error": answer.error}
    _show(output, answer, lambda: output.line(text), fields, own)


def _granted(invocation: CtlInvocation, client: Client, ttl: int) -> pb.LeaseGrantResponse:
    """Grant a lease with an id chosen here, so that a retried grant recognises its own lease."""
    request = pb.LeaseGrantRequest(ID=random_id(), TTL=ttl)
    try:
        return invocation.ask(client, rpcs.LEASE_GRANT, request, pb.LeaseGrantResponse)
    except LeaseExistsError:
        question = pb.LeaseTimeToLiveRequest(ID=request.ID)
        found = invocation.ask(
            client, rpcs.LEASE_TIME_TO_LIVE, question, pb.LeaseTimeToLiveResponse
        )
        return pb.LeaseGrantResponse(header=found.header, ID=found.ID, TTL=found.grantedTTL)


def revoke(invocation: CtlInvocation) -> None:
    """Revoke a lease."""
    if len(invocation.arguments) != 1:
        raise CommandError("lease revoke command needs 1 argument", BAD_ARGUMENTS)
    request = pb.LeaseRevokeRequest(ID=_lease(invocation))
    with invocation.client() as client:
        answer = _call_or_fail(
            "failed to revoke lease",
            lambda: invocation.ask(client, rpcs.LEASE_REVOKE, request, pb.LeaseRevokeResponse),
        )
    output = invocation.output
    if output.form == "protobuf":
        raise CommandError(
            "marshal unsupported for type *clientv3.LeaseRevokeResponse", BAD_FEATURE
        )
    output.show(
        answer,
        lambda _: output.line(f"lease {request.ID:016x} revoked"),
        fields=lambda done: output.header_fields(done.header),
    )


def time_to_live(invocation: CtlInvocation) -> None:
    """Show the granted and the remaining time of a lease."""
    if len(invocation.arguments) != 1:
        raise CommandError("lease timetolive command needs lease ID as argument", BAD_ARGUMENTS)
    has_keys = invocation.switch("keys")
    with invocation.client() as client:
        request = pb.LeaseTimeToLiveRequest(ID=_lease(invocation), keys=has_keys)
        answer = _call_unlimited(
            invocation, client, rpcs.LEASE_TIME_TO_LIVE, request, pb.LeaseTimeToLiveResponse
        )
    output = invocation.output

    def simple() -> None:
        if answer.grantedTTL == 0 and answer.TTL == -1:
            output.line(f"lease {answer.ID:016x} already expired")
            return
        granted, left = answer.grantedTTL, answer.TTL
        output.write(f"lease {answer.ID:016x} granted with TTL({granted}s), remaining({left}s)")
        if has_keys:
            output.write(b", attached keys([" + b" ".join(answer.keys) + b"])")
        output.line()

    def fields() -> None:
        _id_field(output, answer.ID)
        output.field("TTL", answer.TTL)
        output.field("GrantedTTL", answer.grantedTTL)
        for key in answer.keys:
            output.field("Key", key)

    keys = as_json(answer).get("keys")
    own = {"id": answer.ID, "ttl": answer.TTL, "granted-ttl": answer.grantedTTL, "keys": keys}
    _show(output, answer, simple, fields, own)


def list_all(invocation: CtlInvocation) -> None:
    """List all leases."""
    with invocation.client() as client:
        request = pb.LeaseLeasesRequest()
        answer = _call_unlimited(
            invocation, client, rpcs.LEASE_LEASES, request, pb.LeaseLeasesResponse
        )
    output = invocation.output

    def simple() -> None:
        output.line(f"found {len(answer.leases)} leases")
        for each in answer.leases:
            output.line(f"{each.ID:016x}")

    def fields() -> None:
        for each in answer.leases:
            _id_field(output, each.ID)

    own = {"leases": [{"id": each.ID} for each in answer.leases]}
    _show(output, answer, simple, fields, own)


def keep_alive(invocation: CtlInvocation) -> None:
    """Renew a lease once, or until it ends."""
    if len(invocation.arguments) != 1:
        raise CommandError("lease keep-alive command needs lease ID as argument", BAD_ARGUMENTS)
    lease = _lease(invocation)
    with invocation.client() as client:
        output = invocation.output
        if invocation.switch("once"):
            _show_renewed(output, _renewed_once(invocation, client, lease))
            return
        for answer in _renewals(client, lease, invocation.seconds("dial-timeout")):
            _show_renewed(output, answer)
            output.flush()
    if output.form == "simple":
        output.line(f"lease {lease:016x} expired or revoked.")


def _renewed_once(
    invocation: CtlInvocation, client: Client, lease: int
) -> pb.LeaseKeepAliveResponse:
    request = pb.LeaseKeepAliveRequest(ID=lease)
    while True:
        try:
            answer = _call_unlimited(
                invocation, client, rpcs.LEASE_KEEP_ALIVE, request, pb.LeaseKeepAliveResponse
            )
        except OutcomeUnknownError:
            # Renewing twice does no harm.
            continue
        if answer.TTL <= 0:
            raise CommandError("etcdserver: requested lease not found", BAD_CONNECTION)
        return answer


def _renewals(
    client: Client, lease: int, connect_seconds: float
) -> Iterator[pb.LeaseKeepAliveResponse]:
    """Yield the answers to a lease's renewals, until the lease is lost."""
    changes: SimpleQueue[None] = SimpleQueue()
    has_limit = connect_seconds > 0
    ttl = int(connect_seconds) + FIRST_ANSWER_SECONDS if has_limit else FIRST_ANSWER_SECONDS_MAX
    kept = client.shell.keep(lease, ttl, clock(), lambda: changes.put(None))
    while True:
        changes.get()
        if kept.error is not None:
            return
        if kept.answer is not None:
            yield kept.answer


def _show_renewed(output: ResultOutput, answer: pb.LeaseKeepAliveResponse) -> None:
    text = f"lease {answer.ID:016x} keepalived with TTL({answer.TTL})"

    def fields() -> None:
        _id_field(output, answer.ID)
        output.field("TTL", answer.TTL)

    own = {"ID": answer.ID, "TTL": answer.TTL}
    _show(output, answer, lambda: output.line(text), fields, own)


# Helpers.


def _lease(invocation: CtlInvocation) -> int:
    try:
        return hexadecimal(invocation.arguments[0], is_signed=True)
    except ValueError as error:
        raise CommandError(
            f"bad lease ID arg ({error}), expecting ID in Hex", BAD_ARGUMENTS
        ) from None


def _call_or_fail(what: str, call: Callable[[], T]) -> T:
    """Make a call; put `what` before the text of its failure."""
    try:
        return call()
    except KvorumError as error:
        if error.is_of_login:
            raise
        hint = hint_of(error)
        if isinstance(error, DeadlineError):
            hint = f"{UNKNOWN}; {hint}"
        raise CommandError(f"{what} ({error_text(error)})", hint=hint) from error


def _call_unlimited(
    invocation: CtlInvocation, client: Client, rpc: Rpc, request: Any, kind: "Kind[T]"
) -> T:
    """Make a call without a time limit; its failure has the exit code of a bad connection."""
    try:
        return invocation.ask(client, rpc, request, kind, timeout=FOREVER)
    except OutcomeUnknownError:
        raise
    except KvorumError as error:
        raise CommandError(error_text(error), BAD_CONNECTION) from error


def _show(
    output: ResultOutput,
    answer: Any,
    simple: Callable[[], None],
    fields: Callable[[], None],
    own: dict[str, Any],
) -> None:
    """Print an answer; JSON merges the header into it, and protobuf shows only the header."""
    if output.form == "protobuf":
        output.message(answer.header)
        return

    def all_fields(_: object) -> None:
        output.header_fields(answer.header)
        fields()

    output.show(
        answer,
        lambda _: simple(),
        fields=all_fields,
        json=lambda _: {**as_json(answer.header), **own},
    )


def _id_field(output: ResultOutput, lease: int) -> None:
    output.line(f'"ID" : {lease:016x}' if output.is_hex else f'"ID" : {lease}')
