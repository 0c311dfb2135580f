"""How simulated clients call members: one request at a time, recorded with its outcome.

A caller waits for a limited time. The history keeps requests and answers, and is judged at the end
of the run. A caller that gets no answer sooner or later tries another member.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as etcd
from kvorum.api.pb import v3electionpb as election
from kvorum.api.pb import v3lockpb as lock
from kvorum.network.edge.interface import Metadata
from kvorum.sim.arrivals import REFUSED
from kvorum.sim.describe import describe_request, describe_result
from kvorum.sim.history import History, Record
from kvorum.sim.operations import Pairs
from kvorum.sim.pieces import STREAM_PATH, Pieces
from kvorum.sim.world import World

METHODS: dict[type, tuple[str, Any]] = {
    etcd.PutRequest: ("/etcdserverpb.KV/Put", etcd.PutResponse),
    etcd.RangeRequest: ("/etcdserverpb.KV/Range", etcd.RangeResponse),
    etcd.DeleteRangeRequest: ("/etcdserverpb.KV/DeleteRange", etcd.DeleteRangeResponse),
    etcd.TxnRequest: ("/etcdserverpb.KV/Txn", etcd.TxnResponse),
    etcd.CompactionRequest: ("/etcdserverpb.KV/Compact", etcd.CompactionResponse),
    etcd.LeaseGrantRequest: ("/etcdserverpb.Lease/LeaseGrant", etcd.LeaseGrantResponse),
    etcd.LeaseRevokeRequest: ("/etcdserverpb.Lease/LeaseRevoke", etcd.LeaseRevokeResponse),
    etcd.LeaseKeepAliveRequest: (
        "/etcdserverpb.Lease/LeaseKeepAlive",
        etcd.LeaseKeepAliveResponse,
    ),
    lock.LockRequest: ("/v3lockpb.Lock/Lock", lock.LockResponse),
    lock.UnlockRequest: ("/v3lockpb.Lock/Unlock", lock.UnlockResponse),
    election.CampaignRequest: ("/v3electionpb.Election/Campaign", election.CampaignResponse),
    election.ProclaimRequest: ("/v3electionpb.Election/Proclaim", election.ProclaimResponse),
    election.LeaderRequest: ("/v3electionpb.Election/Leader", election.LeaderResponse),
    election.ResignRequest: ("/v3electionpb.Election/Resign", election.ResignResponse),
    etcd.StatusRequest: ("/etcdserverpb.Maintenance/Status", etcd.StatusResponse),
    etcd.HashKVRequest: ("/etcdserverpb.Maintenance/HashKV", etcd.HashKVResponse),
    etcd.HashRequest: ("/etcdserverpb.Maintenance/Hash", etcd.HashResponse),
    etcd.AlarmRequest: ("/etcdserverpb.Maintenance/Alarm", etcd.AlarmResponse),
    etcd.MemberListRequest: ("/etcdserverpb.Cluster/MemberList", etcd.MemberListResponse),
    etcd.LeaseTimeToLiveRequest: (
        "/etcdserverpb.Lease/LeaseTimeToLive",
        etcd.LeaseTimeToLiveResponse,
    ),
    etcd.LeaseLeasesRequest: ("/etcdserverpb.Lease/LeaseLeases", etcd.LeaseLeasesResponse),
    etcd.AuthStatusRequest: ("/etcdserverpb.Auth/AuthStatus", etcd.AuthStatusResponse),
    etcd.AuthEnableRequest: ("/etcdserverpb.Auth/AuthEnable", etcd.AuthEnableResponse),
    etcd.AuthDisableRequest: ("/etcdserverpb.Auth/AuthDisable", etcd.AuthDisableResponse),
    etcd.AuthUserAddRequest: ("/etcdserverpb.Auth/UserAdd", etcd.AuthUserAddResponse),
    etcd.AuthUserGetRequest: ("/etcdserverpb.Auth/UserGet", etcd.AuthUserGetResponse),
    etcd.AuthUserListRequest: ("/etcdserverpb.Auth/UserList", etcd.AuthUserListResponse),
    etcd.AuthUserDeleteRequest: ("/etcdserverpb.Auth/UserDelete", etcd.AuthUserDeleteResponse),
    etcd.AuthUserChangePasswordRequest: (
        "/etcdserverpb.Auth/UserChangePassword",
        etcd.AuthUserChangePasswordResponse,
    ),
    etcd.AuthUserGrantRoleRequest: (
        "/etcdserverpb.Auth/UserGrantRole",
        etcd.AuthUserGrantRoleResponse,
    ),
    etcd.AuthUserRevokeRoleRequest: (
        "/etcdserverpb.Auth/UserRevokeRole",
        etcd.AuthUserRevokeRoleResponse,
    ),
    etcd.AuthRoleAddRequest: ("/etcdserverpb.Auth/RoleAdd", etcd.AuthRoleAddResponse),
    etcd.AuthRoleGetRequest: ("/etcdserverpb.Auth/RoleGet", etcd.AuthRoleGetResponse),
    etcd.AuthRoleListRequest: ("/etcdserverpb.Auth/RoleList", etcd.AuthRoleListResponse),
    etcd.AuthRoleDeleteRequest: ("/etcdserverpb.Auth/RoleDelete", etcd.AuthRoleDeleteResponse),
    etcd.AuthRoleGrantPermissionRequest: (
        "/etcdserverpb.Auth/RoleGrantPermission",
        etcd.AuthRoleGrantPermissionResponse,
    ),
    etcd.AuthRoleRevokePermissionRequest: (
        "/etcdserverpb.Auth/RoleRevokePermission",
        etcd.AuthRoleRevokePermissionResponse,
    ),
}
"""For each type of request, the path of its RPC and the type of its response."""

STALL_SECONDS = 0.001
"""When a client stops reading a stream that it opened: before there is anything to read."""

# These codes leave open whether a request took effect.
_UNKNOWN = {
    Code.UNAVAILABLE,
    Code.DEADLINE_EXCEEDED,
    Code.UNKNOWN,
    Code.CANCELLED,
    # A put that exceeds the quota when it is applied takes effect, and gets this error.
    Code.RESOURCE_EXHAUSTED,
    # A call that was reset between a proxy and a member ends like this.
    Code.INTERNAL,
}


class Calls(Protocol):
    """The transport that carries requests to members."""

    @property
    def members(self) -> Sequence[int]:
        """The members that clients can ask."""

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Callable[[bytes | Status | None], None],
    ) -> int:
        """Send a request; `answered` gets the answer, or None if the connection broke."""

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Callable[[bytes | Status | None], None],
        message: Callable[[bytes], None],
    ) -> int:
        """Open a stream; `answered` gets its end, or None if the connection broke."""

    def send(self, member: int, call: int, payload: bytes) -> None:
        """Send a message on a stream."""

    def hang_up(self, member: int, call: int) -> None:
        """Abandon a call, or break off a stream."""

    def stall(self, member: int, call: int, seconds: float) -> None:
        """Stop reading a stream for a while."""

    def is_ready(self) -> bool:
        """Return whether the client may send its next request now."""

    def stays(self, name: str, member: int) -> bool:
        """Return whether a client keeps to its member although that was removed."""


class CallsWithMetadata(Calls, Protocol):
    """`Calls` with metadata, which identifies the caller."""

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Callable[[bytes | Status | None], None],
        metadata: Metadata | None = None,
    ) -> int:
        """Send a request; `answered` gets the answer, or None if the connection broke."""

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Callable[[bytes | Status | None], None],
        message: Callable[[bytes], None],
        metadata: Metadata | None = None,
    ) -> int:
        """Open a stream; `answered` gets its end, or None if the connection broke."""


class PlannedRequest(NamedTuple):
    """A request, and what its client knows about it before sending it."""

    kind: str
    request: Any
    expected: Pairs = ()
    """The values of keys that the request finds, if its compares hold."""
    linearizable: bool = True
    """Whether the answer must be current."""
    in_pieces: bool = False
    """Whether to read a range as a stream."""
    stalled: float = 0.0
    """For how many seconds the client does not read that stream."""


class Caller:
    """A named client that waits for each answer before it sends the next request."""

    __slots__ = (
        "_calls",
        "_history",
        "_number",
        "_random",
        "_waiting",
        "_world",
        "member",
        "name",
        "roams",
    )

    def __init__(
        self, world: World, calls: Calls, history: History, number: int, name: str
    ) -> None:
        self._world = world
        self._calls = calls
        self._history = history
        self._number = number
        self.name = name
        self._random: Random = world.stream(f"caller {name}")
        self.member = self._random.choice(calls.members)
        # The chance to turn to another member after a failure; after an answer, a tenth of it.
        self.roams = self._random.choice([0.05, 1.0])
        # The call under way, its record, and the callback for its outcome.
        self._waiting: tuple[int, Record, Callable[[Record], None]] | None = None

    def ask(self, asked: PlannedRequest, patience: float, then: Callable[[Record], None]) -> Record:
        """Send a request; `then` gets its record once it is answered or abandoned."""
        assert self._waiting is None, f"{self.name} waits for an answer"
        world, history, member = self._world, self._history, self.member
        record = Record(
            self._number, asked.kind, member, asked.request, history.moment(), world.now
        )
        record.expected = asked.expected
        record.linearizable = asked.linearizable
        history.records.append(record)
        if world.trace is not None:
            world.trace.line(
                world.now,
                self.name,
                f"{asked.kind} #{record.invoked} at m{member} {describe_request(asked.request)}",
            )
            world.trace.moments.ask(self.name, record)
        path, payload = METHODS[type(asked.request)][0], asked.request.SerializeToString()

        def answered(result: bytes | Status | None) -> None:
            self._finish(record, result)

        if isinstance(asked.request, etcd.LeaseKeepAliveRequest):
            call = self._calls.open_stream(member, path, answered, answered)
            self._calls.send(member, call, payload)
        elif asked.in_pieces:
            pieces = Pieces(history, record, answered)
            call = self._calls.open_stream(member, STREAM_PATH, pieces.ended, pieces.take)
            self._calls.send(member, call, payload)
            if asked.stalled:
                world.after(STALL_SECONDS, self._calls.stall, member, call, asked.stalled)
        else:
            call = self._calls.call(member, path, payload, answered)
        self._waiting = (call, record, then)
        world.after(patience, self._time_out, record)
        return record

    def abandon(self) -> None:
        """Abandon the call under way, if there is one."""
        if self._waiting is not None:
            self._time_out(self._waiting[1])

    def _time_out(self, record: Record) -> None:
        if self._waiting is not None and self._waiting[1] is record:
            self._calls.hang_up(record.member, self._waiting[0])
            self._finish(record, None)

    def _finish(self, record: Record, result: bytes | Status | None) -> None:
        if self._waiting is None or self._waiting[1] is not record:
            return
        call, _, then = self._waiting
        self._waiting = None
        if isinstance(record.request, etcd.LeaseKeepAliveRequest):
            self._calls.hang_up(record.member, call)
        world = self._world
        record.finished = world.now
        failed = not isinstance(result, bytes)
        if isinstance(result, bytes):
            record.response = METHODS[type(record.request)][1].FromString(result)
            record.returned = self._history.moment()
        elif isinstance(result, Status) and (result is REFUSED or result.code not in _UNKNOWN):
            record.response = result
            record.returned = self._history.moment()
        if world.trace is not None:
            text = describe_result(result, record.response)
            world.trace.line(world.now, self.name, f"= #{record.invoked} {text}")
        if self._random.random() < (self.roams if failed else 0.1 * self.roams):
            member = self._random.choice(self._calls.members)
            if not self._calls.stays(self.name, self.member):
                self.member = member
        then(record)
