"""`role`: manage roles and their permissions on keys."""

from kvorum.api.pb import authpb
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.ranges import prefix_end
from kvorum.client import rpcs
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.output import ResultOutput
from kvorum.tools.cli.text import quoted
from kvorum.tools.ctl.auth import change, names
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes

KINDS = ("READ", "WRITE", "READWRITE")
ROOT = "root"
OPEN_END = b"\0"
"""The range end that means no upper bound."""


def add(invocation: CtlInvocation) -> None:
    """Add a role."""
    (role,) = names(invocation, 1, "role add command requires role name as its argument")
    request = pb.AuthRoleAddRequest(name=role)
    change(invocation, rpcs.ROLE_ADD, request, pb.AuthRoleAddResponse, f"Role {role} created")


def delete(invocation: CtlInvocation) -> None:
    """Delete a role."""
    (role,) = names(invocation, 1, "role delete command requires role name as its argument")
    request = pb.AuthRoleDeleteRequest(role=role)
    change(invocation, rpcs.ROLE_DELETE, request, pb.AuthRoleDeleteResponse, f"Role {role} deleted")


def get(invocation: CtlInvocation) -> None:
    """Show what a role permits."""
    (role,) = names(invocation, 1, "role get command requires role name as its argument")
    with invocation.client() as client:
        answer = get_role(invocation, client, role)
    show_role(invocation.output, role, answer)


def list_all(invocation: CtlInvocation) -> None:
    """List all roles."""
    names(invocation, 0, "role list command requires no arguments")
    with invocation.client() as client:
        request = pb.AuthRoleListRequest()
        answer = invocation.ask(client, rpcs.ROLE_LIST, request, pb.AuthRoleListResponse)
    output = invocation.output

    def simple(found: pb.AuthRoleListResponse) -> None:
        for role in found.roles:
            output.line(role)

    def fields(found: pb.AuthRoleListResponse) -> None:
        output.header_fields(found.header)
        output.line(f'"Roles" :{"".join(f" {quoted(role)}" for role in found.roles)}')

    output.show(answer, simple, fields=fields)


def grant_permission(invocation: CtlInvocation) -> None:
    """Grant a permission to a role."""
    arguments = invocation.arguments
    if len(arguments) < 3:
        raise CommandError(
            "role grant command requires role name, permission type, and key [endkey] as its "
            "argument",
            BAD_ARGUMENTS,
        )
    role, kind = arguments[:2]
    if kind.upper() not in KINDS:
        raise CommandError(f"invalid permission type: {kind}", BAD_ARGUMENTS)
    key, end = _range(invocation, arguments[2:])
    permission = authpb.Permission(permType=kind.upper(), key=key, range_end=end)
    request = pb.AuthRoleGrantPermissionRequest(name=role, perm=permission)
    change(
        invocation,
        rpcs.ROLE_GRANT_PERMISSION,
        request,
        pb.AuthRoleGrantPermissionResponse,
        f"Role {role} updated",
    )


def revoke_permission(invocation: CtlInvocation) -> None:
    """Revoke a permission from a role."""
    arguments = invocation.arguments
    if len(arguments) < 2:
        raise CommandError(
            "role revoke-permission command requires role name and key [endkey] as its argument",
            BAD_ARGUMENTS,
        )
    role, given = arguments[:2]
    key, end = _range(invocation, arguments[1:])
    what = f"range {_range_text(given, end)}" if end else f"key {given}"
    change(
        invocation,
        rpcs.ROLE_REVOKE_PERMISSION,
        pb.AuthRoleRevokePermissionRequest(role=role, key=key, range_end=end),
        pb.AuthRoleRevokePermissionResponse,
        f"Permission of {what} is revoked from role {role}",
    )


def get_role(invocation: CtlInvocation, client: Client, role: str) -> pb.AuthRoleGetResponse:
    """Fetch a role."""
    request = pb.AuthRoleGetRequest(role=role)
    return invocation.ask(client, rpcs.ROLE_GET, request, pb.AuthRoleGetResponse)


def show_role(output: ResultOutput, role: str, answer: pb.AuthRoleGetResponse) -> None:
    """Print what a role permits."""

    def simple(found: pb.AuthRoleGetResponse) -> None:
        output.line(f"Role {role}")
        for title, other in (("Read", 1), ("Write", 0)):
            output.line(f"KV {title}:")
            if role == ROOT and not found.perm:
                output.line("\t[, <open ended>")
            for each in found.perm:
                if each.permType != other:
                    output.line(f"\t{_permission_text(each)}")

    def fields(found: pb.AuthRoleGetResponse) -> None:
        output.header_fields(found.header)
        for each in found.perm:
            output.line(f'"PermType" :  {KINDS[each.permType]}')
            output.field("Key", each.key)
            output.field("RangeEnd", each.range_end)

    output.show(answer, simple, fields=fields)


def _permission_text(permission: authpb.Permission) -> str:
    key, end = permission.key.decode("utf-8", "surrogateescape"), permission.range_end
    if not end:
        return key
    note = f" (prefix {key})" if key and prefix_end(permission.key) == end else ""
    return f"{_range_text(key, end)}{note}"


def _range_text(key: str, end: bytes) -> str:
    if end == OPEN_END:
        return f"[{key}, <open ended>"
    return f"[{key}, {end.decode('utf-8', 'surrogateescape')})"


def _range(invocation: CtlInvocation, arguments: list[str]) -> tuple[bytes, bytes]:
    """Return key and range end of a permission."""
    is_prefix, is_from_key = invocation.switch("prefix"), invocation.switch("from-key")
    key = as_bytes(arguments[0])
    if len(arguments) == 1 or not key:
        if is_prefix and is_from_key:
            raise CommandError(
                "--from-key and --prefix flags are mutually exclusive", BAD_ARGUMENTS
            )
        if not key:
            # An empty key stands for the first possible key.
            return b"\0", OPEN_END if is_prefix or is_from_key else b""
        if is_prefix:
            return key, prefix_end(key)
        return key, OPEN_END if is_from_key else b""
    for flag, is_given in (("prefix", is_prefix), ("from-key", is_from_key)):
        if is_given:
            raise CommandError(f"unexpected endkey argument with --{flag} flag", BAD_ARGUMENTS)
    return key, as_bytes(arguments[1])
