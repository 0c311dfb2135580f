"""The table of RPCs: one row each, with its handler, its permission and its special cases.

The edge takes its methods from this table, services their handlers, metrics their labels and
slow-call warnings their exceptions; a test compares docs/compatibility.md with it. To add an RPC of
any kind, add a row here and the function that the row names. Only the protobuf descriptors' options
define the paths of the JSON gateway.
"""

from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from kvorum.member.member import Member
from kvorum.server.rpc import (
    auth,
    cluster,
    election,
    health,
    keepalives,
    kv,
    lease,
    lock,
    maintenance,
    snapshot,
    watch,
)
from kvorum.server.rpc.interface import RpcOutput, Streams, Unary
from kvorum.server.rpc.streams import TAKING_SECONDS_MAX, Begin, ServerStreams

_KV: Final = "/etcdserverpb.KV/"
_WATCH: Final = "/etcdserverpb.Watch/"
_LEASE: Final = "/etcdserverpb.Lease/"
_CLUSTER: Final = "/etcdserverpb.Cluster/"
_MAINTENANCE: Final = "/etcdserverpb.Maintenance/"
_AUTH: Final = "/etcdserverpb.Auth/"
_LOCK: Final = "/v3lockpb.Lock/"
_ELECTION: Final = "/v3electionpb.Election/"
_HEALTH: Final = "/grpc.health.v1.Health/"


class RpcKind(Enum):
    """How many messages each side sends; the values are metric labels."""

    UNARY = "unary"
    SERVER_STREAM = "server_stream"
    BOTH_WAYS = "bidi_stream"


class Learner(Enum):
    """Whether a learner serves an RPC."""

    REFUSES = "no"
    SERVES = "yes"
    SERVES_STALE = "serializable"
    """Serves a Range only if it is serializable."""


class RequiredPermission(Enum):
    """The permission that a caller needs while authentication is enabled."""

    NONE = "none"
    """No permission; an invalid token fails the call only if the handler checks it."""
    IDENTITY = "identity"
    """Any authenticated user."""
    KEYS = "keys"
    """Rights on the keys that the request names."""
    LEASE_KEYS = "lease keys"
    """An identity, and rights on the keys attached to the request's leases."""
    STEPS = "steps"
    """The permission of each request that the call consists of."""
    ALARMS = "admin to change"
    """An identity to list alarms, the role `root` to raise and to clear them."""
    ADMIN_OR_OWN = "admin or own"
    """The role `root`; any user may query that user's own entry and roles."""
    ADMIN = "admin"
    """The role `root`."""


class Checked(Enum):
    """Where the permission is checked, which decides the error if several would apply."""

    FIRST = "before its handler"
    BY_HANDLER = "by its handler, after other checks or for each message"
    WHEN_APPLIED = "when its entry is applied"


class Handlers:
    """The handlers of one member: an object for each service, made once."""

    def __init__(
        self,
        member: Member,
        edge: RpcOutput,
        operations_max: int,
        *,
        stops_for_defragmentation: bool,
    ) -> None:
        self.kv = kv.KeyValueService(member, edge, operations_max)
        self.range_streams = kv.RangeStreams(member)
        self.watches = watch.Watches(member)
        self.leases = lease.LeaseService(member)
        self.keep_alives = keepalives.KeepAliveStreams(member, edge)
        self.cluster = cluster.ClusterCalls(member, edge)
        self.maintenance = maintenance.Maintenance(member, edge)
        self.snapshots = snapshot.SnapshotService(member)
        self.auth = auth.Auth(member, edge)
        self.locks = lock.Locks(member, edge)
        self.elections = election.Elections(member, edge)
        self.observers = election.Observers(member)
        self.health = health.HealthService(
            member, stops_for_defragmentation=stops_for_defragmentation
        )


class RpcRow(NamedTuple):
    """A row, made by `_unary`, `_server_stream` or `_both_ways`."""

    path: str
    kind: RpcKind
    permission: RequiredPermission
    checked: Checked
    learner: Learner
    waits_for_others: bool = False
    """Whether a unary call waits by its nature, so that a slow one needs no warning."""
    unary: Callable[[Handlers], Unary] | None = None
    streams: Callable[[Handlers, Member], Streams] | None = None

    @property
    def is_stream(self) -> bool:
        """Whether a call may have several requests or answers."""
        return self.kind is not RpcKind.UNARY

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the RPC's metrics."""
        _, service, method = self.path.split("/")
        return {"grpc_method": method, "grpc_service": service, "grpc_type": self.kind.value}

    @property
    def is_secret(self) -> bool:
        """Whether requests may hold passwords, so that logs leave out their content."""
        return self.path.startswith(_AUTH)

    @property
    def is_shown_unused(self) -> bool:
        """Whether metrics show the RPC before its first call."""
        return self.path.split("/")[1] not in _SHOWN_WHEN_USED


_SHOWN_WHEN_USED: Final = ("v3lockpb.Lock", "v3electionpb.Election")


def _unary(
    path: str,
    handler: Callable[[Handlers], Unary],
    permission: RequiredPermission,
    checked: Checked,
    *,
    learner: Learner = Learner.REFUSES,
    waits_for_others: bool = False,
) -> RpcRow:
    return RpcRow(
        path, RpcKind.UNARY, permission, checked, learner, waits_for_others, unary=handler
    )


def _never(_handlers: Handlers) -> bool:
    return False


def _server_stream(
    path: str,
    begin: Callable[[Handlers], Begin],
    permission: RequiredPermission,
    checked: Checked,
    *,
    learner: Learner = Learner.REFUSES,
    held_seconds_max: float = inf,
    is_awaited: Callable[[Handlers], bool] = _never,
) -> RpcRow:
    """Make the row of a stream with one request; `ServerStreams` explains `held_seconds_max`."""

    def streams(handlers: Handlers, member: Member) -> Streams:
        return ServerStreams(
            member, begin(handlers), held_seconds_max, lambda: is_awaited(handlers)
        )

    return RpcRow(path, RpcKind.SERVER_STREAM, permission, checked, learner, streams=streams)


def _both_ways(
    path: str, handler: Callable[[Handlers], Streams], permission: RequiredPermission
) -> RpcRow:
    """Make the row of a bidirectional stream; its handler checks every message."""

    def streams(handlers: Handlers, _member: Member) -> Streams:
        return handler(handlers)

    learner = Learner.REFUSES
    return RpcRow(path, RpcKind.BOTH_WAYS, permission, Checked.BY_HANDLER, learner, streams=streams)


_P = RequiredPermission
_FIRST: Final = Checked.FIRST
_BY_HANDLER: Final = Checked.BY_HANDLER
_WHEN_APPLIED: Final = Checked.WHEN_APPLIED

RPCS: Final[tuple[RpcRow, ...]] = (
    _unary(
        _KV + "Range", lambda of: of.kv.range, _P.KEYS, _BY_HANDLER, learner=Learner.SERVES_STALE
    ),
    _unary(_KV + "Put", lambda of: of.kv.put, _P.KEYS, _WHEN_APPLIED),
    _unary(_KV + "DeleteRange", lambda of: of.kv.delete_range, _P.KEYS, _WHEN_APPLIED),
    _unary(_KV + "Txn", lambda of: of.kv.txn, _P.KEYS, _WHEN_APPLIED),
    _unary(_KV + "Compact", lambda of: of.kv.compact, _P.ADMIN, _FIRST),
    # Bounded in time: an open stream keeps its revision from being compacted.
    _server_stream(
        _KV + "RangeStream",
        lambda of: of.range_streams.begin,
        _P.KEYS,
        _BY_HANDLER,
        held_seconds_max=TAKING_SECONDS_MAX,
    ),
    _both_ways(_WATCH + "Watch", lambda of: of.watches, _P.KEYS),
    _unary(_LEASE + "LeaseGrant", lambda of: of.leases.grant, _P.IDENTITY, _BY_HANDLER),
    _unary(_LEASE + "LeaseRevoke", lambda of: of.leases.revoke, _P.LEASE_KEYS, _WHEN_APPLIED),
    _both_ways(_LEASE + "LeaseKeepAlive", lambda of: of.keep_alives, _P.LEASE_KEYS),
    _unary(
        _LEASE + "LeaseTimeToLive", lambda of: of.leases.time_to_live, _P.LEASE_KEYS, _BY_HANDLER
    ),
    _unary(_LEASE + "LeaseLeases", lambda of: of.leases.leases, _P.LEASE_KEYS, _BY_HANDLER),
    _unary(_CLUSTER + "MemberAdd", lambda of: of.cluster.add, _P.ADMIN, _BY_HANDLER),
    _unary(_CLUSTER + "MemberRemove", lambda of: of.cluster.remove, _P.ADMIN, _FIRST),
    _unary(_CLUSTER + "MemberUpdate", lambda of: of.cluster.update, _P.ADMIN, _FIRST),
    _unary(_CLUSTER + "MemberList", lambda of: of.cluster.list, _P.IDENTITY, _BY_HANDLER),
    _unary(_CLUSTER + "MemberPromote", lambda of: of.cluster.promote, _P.ADMIN, _FIRST),
    _unary(_MAINTENANCE + "Alarm", lambda of: of.maintenance.alarm, _P.ALARMS, _BY_HANDLER),
    _unary(
        _MAINTENANCE + "Status",
        lambda of: of.maintenance.status,
        _P.IDENTITY,
        _FIRST,
        learner=Learner.SERVES,
    ),
    _unary(_MAINTENANCE + "Defragment", lambda of: of.maintenance.defragment, _P.ADMIN, _FIRST),
    _unary(_MAINTENANCE + "Hash", lambda of: of.maintenance.hash, _P.ADMIN, _FIRST),
    _unary(_MAINTENANCE + "HashKV", lambda of: of.maintenance.hash_kv, _P.ADMIN, _FIRST),
    # Bounded in time: an open stream keeps a file on the disk.
    _server_stream(
        _MAINTENANCE + "Snapshot",
        lambda of: of.snapshots.begin,
        _P.ADMIN,
        _FIRST,
        learner=Learner.SERVES,
        held_seconds_max=TAKING_SECONDS_MAX,
        is_awaited=lambda handlers: handlers.snapshots.is_awaited,
    ),
    _unary(_MAINTENANCE + "MoveLeader", lambda of: of.maintenance.move_leader, _P.ADMIN, _FIRST),
    _unary(_MAINTENANCE + "Downgrade", lambda of: of.maintenance.downgrade, _P.ADMIN, _FIRST),
    _unary(_AUTH + "AuthEnable", lambda of: of.auth.enable, _P.ADMIN, _WHEN_APPLIED),
    _unary(_AUTH + "AuthDisable", lambda of: of.auth.disable, _P.ADMIN, _WHEN_APPLIED),
    _unary(_AUTH + "AuthStatus", lambda of: of.auth.status, _P.NONE, _BY_HANDLER),
    _unary(
        _AUTH + "Authenticate",
        lambda of: of.auth.authenticate,
        _P.NONE,
        _FIRST,
        waits_for_others=True,
    ),
    _unary(
        _AUTH + "UserAdd",
        lambda of: of.auth.user_add,
        _P.ADMIN,
        _WHEN_APPLIED,
        waits_for_others=True,
    ),
    _unary(_AUTH + "UserGet", lambda of: of.auth.user_get, _P.ADMIN_OR_OWN, _BY_HANDLER),
    _unary(_AUTH + "UserList", lambda of: of.auth.user_list, _P.ADMIN, _BY_HANDLER),
    _unary(_AUTH + "UserDelete", lambda of: of.auth.user_delete, _P.ADMIN, _WHEN_APPLIED),
    _unary(
        _AUTH + "UserChangePassword",
        lambda of: of.auth.user_change_password,
        _P.ADMIN,
        _WHEN_APPLIED,
        waits_for_others=True,
    ),
    _unary(_AUTH + "UserGrantRole", lambda of: of.auth.user_grant_role, _P.ADMIN, _WHEN_APPLIED),
    _unary(_AUTH + "UserRevokeRole", lambda of: of.auth.user_revoke_role, _P.ADMIN, _WHEN_APPLIED),
    _unary(_AUTH + "RoleAdd", lambda of: of.auth.role_add, _P.ADMIN, _WHEN_APPLIED),
    _unary(_AUTH + "RoleGet", lambda of: of.auth.role_get, _P.ADMIN_OR_OWN, _BY_HANDLER),
    _unary(_AUTH + "RoleList", lambda of: of.auth.role_list, _P.ADMIN, _BY_HANDLER),
    _unary(_AUTH + "RoleDelete", lambda of: of.auth.role_delete, _P.ADMIN, _WHEN_APPLIED),
    _unary(
        _AUTH + "RoleGrantPermission",
        lambda of: of.auth.role_grant_permission,
        _P.ADMIN,
        _WHEN_APPLIED,
    ),
    _unary(
        _AUTH + "RoleRevokePermission",
        lambda of: of.auth.role_revoke_permission,
        _P.ADMIN,
        _WHEN_APPLIED,
    ),
    _unary(_LOCK + "Lock", lambda of: of.locks.lock, _P.STEPS, _BY_HANDLER, waits_for_others=True),
    _unary(_LOCK + "Unlock", lambda of: of.locks.unlock, _P.STEPS, _BY_HANDLER),
    _unary(
        _ELECTION + "Campaign",
        lambda of: of.elections.campaign,
        _P.STEPS,
        _BY_HANDLER,
        waits_for_others=True,
    ),
    _unary(_ELECTION + "Proclaim", lambda of: of.elections.proclaim, _P.STEPS, _BY_HANDLER),
    _unary(_ELECTION + "Leader", lambda of: of.elections.leader, _P.STEPS, _BY_HANDLER),
    _server_stream(_ELECTION + "Observe", lambda of: of.observers.begin, _P.STEPS, _BY_HANDLER),
    _unary(_ELECTION + "Resign", lambda of: of.elections.resign, _P.STEPS, _BY_HANDLER),
    _unary(_HEALTH + "Check", lambda of: of.health.check, _P.NONE, _FIRST),
    _unary(_HEALTH + "List", lambda of: of.health.list, _P.NONE, _FIRST),
    _server_stream(_HEALTH + "Watch", lambda of: of.health.watch, _P.NONE, _FIRST),
)
"""Every RPC; its index here is its method number, at the edge and everywhere else."""

NUMBERS: Final = {rpc.path: number for number, rpc in enumerate(RPCS)}

METHODS: Final = tuple((rpc.path, rpc.is_stream) for rpc in RPCS)
"""The methods to open the edge with."""

GATEWAY_KEY: Final = "grpcgateway-accept"
"""Marks calls that a JSON gateway forwards, ours or another. The connection is the gateway's, so
its certificate does not identify the client."""

METADATA_KEYS: Final = (
    "hasleader",
    "client-api-version",
    "token",
    "authorization",
    GATEWAY_KEY,
)
"""The keys of a call's metadata that the edge passes on."""

TRACE_KEYS: Final = ("traceparent", "tracestate")
"""Further keys, passed on if tracing is enabled: they identify the trace of a call."""
