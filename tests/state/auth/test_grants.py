"""Whatever is granted, every range is permitted to the same users as a real etcd permits it to."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.server.rpc.pairs import SEQUENCES
from tests.state.auth.servers import Both, running_both

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)

BOUNDS = (b"\0", b"\0\0", b"a", b"a\0", b"b", b"b\0", b"c", b"\xff", b"\xff\xff")
ENDS = (b"", b"\0", *BOUNDS[1:])
PLACES = [(key, end) for key in BOUNDS for end in ENDS if end in (b"", b"\0") or end > key]
KINDS = (Permission.READ, Permission.WRITE, Permission.READWRITE)

grants = st.tuples(st.sampled_from(KINDS), st.sampled_from(PLACES))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("grants")) as found:
        for user, role in (("root", "root"), ("user", "first"), ("user", "second")):
            if role != "second":
                add = pb.AuthUserAddRequest(name=user, password="secret")
                found.answer("Auth/UserAdd", add)
            found.answer("Auth/RoleAdd", pb.AuthRoleAddRequest(name=role))
            granted = pb.AuthUserGrantRoleRequest(user=user, role=role)
            found.answer("Auth/UserGrantRole", granted)
        found.answer("Auth/AuthEnable", pb.AuthEnableRequest())
        for server in found:
            server.log_in("root", "secret")
            server.log_in("user", "secret")
        yield found


def grant(both: Both, role: str, permissions: list[tuple[int, tuple[bytes, bytes]]]) -> None:
    for kind, (key, range_end) in permissions:
        perm = Permission(permType=kind, key=key, range_end=range_end)  # type: ignore[arg-type]
        request = pb.AuthRoleGrantPermissionRequest(name=role, perm=perm)
        both.answer("Auth/RoleGrantPermission", request, "root")


def revoke_all(both: Both, role: str) -> None:
    """Take everything from a role, as each of the servers shows it."""
    metadata = [server.metadata_of("root") for server in both]
    _, theirs = both.check("Auth/RoleGet", pb.AuthRoleGetRequest(role=role), metadata, role)
    for key, range_end in {(each.key, each.range_end) for each in theirs.messages[0].perm}:
        request = pb.AuthRoleRevokePermissionRequest(role=role, key=key, range_end=range_end)
        both.answer("Auth/RoleRevokePermission", request, "root")


@pytest.mark.long
@given(first=st.lists(grants, max_size=5), second=st.lists(grants, min_size=1, max_size=5))
@settings(max_examples=max(1, SEQUENCES // 10))
def test_any_grants(
    both: Both,
    first: list[tuple[int, tuple[bytes, bytes]]],
    second: list[tuple[int, tuple[bytes, bytes]]],
) -> None:
    grant(both, "first", first)
    grant(both, "second", second)
    metadata = [server.metadata_of("user") for server in both]
    for key, range_end in PLACES:
        read = pb.RangeRequest(key=key, range_end=range_end)
        both.check("KV/Range", read, metadata, (first, second))
        # Asked for, but not executed.
        delete = pb.DeleteRangeRequest(key=key, range_end=range_end)
        txn = pb.TxnRequest(failure=[pb.RequestOp(request_delete_range=delete)])
        both.check("KV/Txn", txn, metadata, (first, second))
    for role in ("first", "second"):
        revoke_all(both, role)
