"""`user`: manage users, their passwords and their roles."""

from kvorum.api.pb import authpb
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.ctl.auth import change, names
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.prompts import new_password
from kvorum.tools.ctl.roles import get_role, show_role


def add(invocation: CtlInvocation) -> None:
    """Add a user with a password, or one that only certificates identify."""
    (argument,) = names(invocation, 1, "user add command requires user name as its argument")
    user, password = argument, ""
    has_password = not invocation.switch("no-password")
    if has_password:
        password = invocation.text("new-user-password")
        if not password:
            user, is_given, password = argument.partition(":")
            if not is_given:
                password = new_password(user, is_asked=invocation.switch("interactive"))
            elif not user:
                raise CommandError("empty user name is not allowed", BAD_ARGUMENTS)
    request = pb.AuthUserAddRequest(
        name=user, password=password, options=authpb.UserAddOptions(no_password=not has_password)
    )
    change(invocation, rpcs.USER_ADD, request, pb.AuthUserAddResponse, f"User {user} created")


def delete(invocation: CtlInvocation) -> None:
    """Delete a user."""
    (user,) = names(invocation, 1, "user delete command requires user name as its argument")
    request = pb.AuthUserDeleteRequest(name=user)
    change(invocation, rpcs.USER_DELETE, request, pb.AuthUserDeleteResponse, f"User {user} deleted")


def get(invocation: CtlInvocation) -> None:
    """Show a user's roles, or with `--detail` the permissions of each role."""
    (user,) = names(invocation, 1, "user get command requires user name as its argument")
    output = invocation.output
    with invocation.client() as client:
        request = pb.AuthUserGetRequest(name=user)
        answer = invocation.ask(client, rpcs.USER_GET, request, pb.AuthUserGetResponse)
        if invocation.switch("detail"):
            output.line(f"User: {user}")
            for role in answer.roles:
                output.line()
                show_role(output, role, get_role(invocation, client, role))
            return

    def simple(found: pb.AuthUserGetResponse) -> None:
        output.line(f"User: {user}")
        output.line(f"Roles:{''.join(f' {role}' for role in found.roles)}")

    output.show(answer, simple)


def list_all(invocation: CtlInvocation) -> None:
    """List all users."""
    names(invocation, 0, "user list command requires no arguments")
    with invocation.client() as client:
        request = pb.AuthUserListRequest()
        answer = invocation.ask(client, rpcs.USER_LIST, request, pb.AuthUserListResponse)
    output = invocation.output

    def simple(found: pb.AuthUserListResponse) -> None:
        for user in found.users:
            output.line(user)

    output.show(answer, simple)


def change_password(invocation: CtlInvocation) -> None:
    """Change a user's password."""
    (user,) = names(invocation, 1, "user passwd command requires user name as its argument")
    password = new_password(user, is_asked=invocation.switch("interactive"))
    request = pb.AuthUserChangePasswordRequest(name=user, password=password)
    change(
        invocation,
        rpcs.USER_CHANGE_PASSWORD,
        request,
        pb.AuthUserChangePasswordResponse,
        "Password updated",
    )


def grant_role(invocation: CtlInvocation) -> None:
    """Grant a role to a user."""
    user, role = names(
        invocation, 2, "user grant command requires user name and role name as its argument"
    )
    request = pb.AuthUserGrantRoleRequest(user=user, role=role)
    line = f"Role {role} is granted to user {user}"
    change(invocation, rpcs.USER_GRANT_ROLE, request, pb.AuthUserGrantRoleResponse, line)


def revoke_role(invocation: CtlInvocation) -> None:
    """Revoke a role from a user."""
    user, role = names(
        invocation, 2, "user revoke-role requires user name and role name as its argument"
    )
    request = pb.AuthUserRevokeRoleRequest(name=user, role=role)
    line = f"Role {role} is revoked from user {user}"
    change(invocation, rpcs.USER_REVOKE_ROLE, request, pb.AuthUserRevokeRoleResponse, line)
