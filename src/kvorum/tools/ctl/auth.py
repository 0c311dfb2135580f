"""`auth`: turn authentication on or off; also the helpers of `user` and `role`."""

from typing import Any

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.errors import RoleExistsError, RootRoleMissingError
from kvorum.client.rpcs import Rpc
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.ctl.invocation import CtlInvocation


def enable(invocation: CtlInvocation) -> None:
    """Turn authentication on; grant the role root to the user root if it is missing."""
    _refuse_arguments(invocation, "enable")
    with invocation.client() as client:
        try:
            _enable(invocation, client)
        except RootRoleMissingError:
            _make_root(invocation, client)
            _enable(invocation, client)
    invocation.output_line("Authentication Enabled")


def disable(invocation: CtlInvocation) -> None:
    """Turn authentication off."""
    _refuse_arguments(invocation, "disable")
    with invocation.client() as client:
        request = pb.AuthDisableRequest()
        invocation.ask(client, rpcs.AUTH_DISABLE, request, pb.AuthDisableResponse)
    invocation.output_line("Authentication Disabled")


def status(invocation: CtlInvocation) -> None:
    """Show whether authentication is on, and how often users and roles have changed."""
    _refuse_arguments(invocation, "status")
    with invocation.client() as client:
        request = pb.AuthStatusRequest()
        answer = invocation.ask(client, rpcs.AUTH_STATUS, request, pb.AuthStatusResponse)
    output = invocation.output

    def simple(found: pb.AuthStatusResponse) -> None:
        output.line(f"Authentication Status: {'true' if found.enabled else 'false'}")
        output.line(f"AuthRevision: {found.authRevision}")

    output.show(answer, simple)


def change(invocation: CtlInvocation, rpc: Rpc, request: Any, kind: Any, line: str) -> None:
    """Change users or roles; print `line` on success."""
    with invocation.client() as client:
        answer = invocation.ask(client, rpc, request, kind)
    output = invocation.output
    output.show(
        answer,
        lambda _: output.line(line),
        fields=lambda done: output.header_fields(done.header),
    )


def names(invocation: CtlInvocation, count: int, problem: str) -> list[str]:
    """Return the arguments; refuse another number of them than `count`."""
    if len(invocation.arguments) != count:
        raise CommandError(problem, BAD_ARGUMENTS)
    return invocation.arguments


def _refuse_arguments(invocation: CtlInvocation, name: str) -> None:
    names(invocation, 0, f"auth {name} command does not accept any arguments")


def _enable(invocation: CtlInvocation, client: Client) -> None:
    invocation.ask(client, rpcs.AUTH_ENABLE, pb.AuthEnableRequest(), pb.AuthEnableResponse)


def _make_root(invocation: CtlInvocation, client: Client) -> None:
    try:
        role = pb.AuthRoleAddRequest(name="root")
        invocation.ask(client, rpcs.ROLE_ADD, role, pb.AuthRoleAddResponse)
    except RoleExistsError:
        # The role exists, so only the grant was missing.
        pass
    grant = pb.AuthUserGrantRoleRequest(user="root", role="root")
    invocation.ask(client, rpcs.USER_GRANT_ROLE, grant, pb.AuthUserGrantRoleResponse)
