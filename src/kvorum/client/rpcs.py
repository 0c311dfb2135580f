"""The gRPC methods that the client calls, and which of them it may repeat after a failure."""

from typing import Final, NamedTuple


class Rpc(NamedTuple):
    """A gRPC method."""

    path: str
    is_repeatable: bool
    """Whether the method is idempotent."""
    needs_leader: bool
    """Whether a member that knows no leader must refuse it at once: another may know one."""


_LEADERLESS: Final = ("/etcdserverpb.Maintenance/", "/etcdserverpb.Cluster/")
"""Services that a member can answer, or refuse, without a leader."""


def _repeatable(path: str) -> Rpc:
    return Rpc(path, True, not path.startswith(_LEADERLESS))


def _once(path: str) -> Rpc:
    return Rpc(path, False, not path.startswith(_LEADERLESS))


RANGE: Final = _repeatable("/etcdserverpb.KV/Range")
SERIALIZABLE_RANGE: Final = RANGE._replace(needs_leader=False)
"""A read of the member's own state, however old."""
RANGE_STREAM: Final = _repeatable("/etcdserverpb.KV/RangeStream")
SERIALIZABLE_STREAM: Final = RANGE_STREAM._replace(needs_leader=False)
PUT: Final = _once("/etcdserverpb.KV/Put")
DELETE_RANGE: Final = _once("/etcdserverpb.KV/DeleteRange")
TXN: Final = _once("/etcdserverpb.KV/Txn")
READ_TXN: Final = _repeatable("/etcdserverpb.KV/Txn")
"""A transaction that changes nothing."""
COMPACT: Final = _once("/etcdserverpb.KV/Compact")

WATCH: Final = _once("/etcdserverpb.Watch/Watch")

# The client chooses the id of a lease, and so recognises the lease of an earlier attempt.
LEASE_GRANT: Final = _repeatable("/etcdserverpb.Lease/LeaseGrant")
LEASE_REVOKE: Final = _repeatable("/etcdserverpb.Lease/LeaseRevoke")
LEASE_TIME_TO_LIVE: Final = _repeatable("/etcdserverpb.Lease/LeaseTimeToLive")
LEASE_LEASES: Final = _repeatable("/etcdserverpb.Lease/LeaseLeases")
LEASE_KEEP_ALIVE: Final = _once("/etcdserverpb.Lease/LeaseKeepAlive")

MEMBER_LIST: Final = _repeatable("/etcdserverpb.Cluster/MemberList")
MEMBER_ADD: Final = _once("/etcdserverpb.Cluster/MemberAdd")
MEMBER_REMOVE: Final = _once("/etcdserverpb.Cluster/MemberRemove")
MEMBER_UPDATE: Final = _once("/etcdserverpb.Cluster/MemberUpdate")
MEMBER_PROMOTE: Final = _once("/etcdserverpb.Cluster/MemberPromote")

ALARM: Final = _repeatable("/etcdserverpb.Maintenance/Alarm")
STATUS: Final = _repeatable("/etcdserverpb.Maintenance/Status")
DEFRAGMENT: Final = _once("/etcdserverpb.Maintenance/Defragment")
HASH: Final = _repeatable("/etcdserverpb.Maintenance/Hash")
HASH_KV: Final = _repeatable("/etcdserverpb.Maintenance/HashKV")
SNAPSHOT: Final = _repeatable("/etcdserverpb.Maintenance/Snapshot")
MOVE_LEADER: Final = _repeatable("/etcdserverpb.Maintenance/MoveLeader")
DOWNGRADE: Final = _once("/etcdserverpb.Maintenance/Downgrade")

AUTHENTICATE: Final = _repeatable("/etcdserverpb.Auth/Authenticate")
AUTH_ENABLE: Final = _once("/etcdserverpb.Auth/AuthEnable")
AUTH_DISABLE: Final = _once("/etcdserverpb.Auth/AuthDisable")
AUTH_STATUS: Final = _repeatable("/etcdserverpb.Auth/AuthStatus")
USER_ADD: Final = _once("/etcdserverpb.Auth/UserAdd")
USER_GET: Final = _repeatable("/etcdserverpb.Auth/UserGet")
USER_LIST: Final = _repeatable("/etcdserverpb.Auth/UserList")
USER_DELETE: Final = _once("/etcdserverpb.Auth/UserDelete")
USER_CHANGE_PASSWORD: Final = _once("/etcdserverpb.Auth/UserChangePassword")
USER_GRANT_ROLE: Final = _once("/etcdserverpb.Auth/UserGrantRole")
USER_REVOKE_ROLE: Final = _once("/etcdserverpb.Auth/UserRevokeRole")
ROLE_ADD: Final = _once("/etcdserverpb.Auth/RoleAdd")
ROLE_GET: Final = _repeatable("/etcdserverpb.Auth/RoleGet")
ROLE_LIST: Final = _repeatable("/etcdserverpb.Auth/RoleList")
ROLE_DELETE: Final = _once("/etcdserverpb.Auth/RoleDelete")
ROLE_GRANT_PERMISSION: Final = _once("/etcdserverpb.Auth/RoleGrantPermission")
ROLE_REVOKE_PERMISSION: Final = _once("/etcdserverpb.Auth/RoleRevokePermission")
