"""Two servers that get the same calls: ours, and a real etcd.

Both start empty, so their revisions agree. What must differ is masked: terms, sizes, raft's
indexes, ids a server chooses, seconds that have passed.
"""

from copy import deepcopy
from typing import Any

from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from tests.server.rpc import differences
from tests.server.rpc.calls import Call
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle

# Settings of both servers, so that both round TTLs up alike.
TIMING: dict[str, Any] = {"heartbeat_seconds": 0.01, "election_ticks": 5}


def settled_harness() -> Harness:
    """Return our services in one thread, once the cluster has agreed on a version."""
    harness = Harness(**TIMING)
    harness.pass_time(10.0)
    return harness


class Pair:
    """Both servers, in the same state."""

    def __init__(self, ours: Harness | Oracle, oracle: Oracle) -> None:
        self.ours = ours
        self.oracle = oracle

    @property
    def revision(self) -> int:
        if isinstance(self.ours, Harness):
            return self.ours.member.state.store.revision
        found: Any = self.ours.ask("KV/Range", pb.RangeRequest(key=b"a", serializable=True))
        revision: int = found.header.revision
        return revision

    def check(self, call: Call) -> None:
        """Make a call to both and compare the answers."""
        request = call.request(self.revision)
        ours = self.ours.ask(call.name, request)
        refused = differences.not_asked(call.name, request)
        if refused is not None:
            assert ours == refused, call
            return
        if isinstance(request, pb.CompactionRequest):
            # The hashes of 3.5.1 depend on the progress of a compaction.
            request.physical = True
        theirs = self.oracle.ask(call.name, request)
        self.compare(call.name, request, ours, theirs)

    def compare(self, name: str, request: Message, ours: Any, theirs: Any) -> None:
        expected = differences.expected_answer(name, request, theirs)
        if expected is differences.SUCCESS:
            assert not isinstance(ours, Status), (name, request, ours)
            return
        if differences.may_both_be_right(name, request, ours, expected):
            return
        if isinstance(ours, Status) or isinstance(expected, Status):
            assert ours == expected, f"{name} {request}: {ours}, expected {expected}"
            return
        assert masked(name, ours) == masked(name, expected), f"{name}: {request}"

    def reset(self) -> None:
        """Empty both, through calls."""
        for name, request in self._clean_up():
            self.check(Call(name, {}, lambda _fields, _revision, made=request: made))  # type: ignore[misc]

    def _clean_up(self) -> list[tuple[str, Message]]:
        raised: Any = self.ours.ask("Maintenance/Alarm", pb.AlarmRequest())
        deactivate = pb.AlarmRequest.DEACTIVATE
        requests = [
            pb.AlarmRequest(action=deactivate, memberID=alarm.memberID, alarm=alarm.alarm)
            for alarm in raised.alarms
        ]
        calls: list[tuple[str, Message]] = [("Maintenance/Alarm", each) for each in requests]
        leases: Any = self.ours.ask("Lease/LeaseLeases", pb.LeaseLeasesRequest())
        ids = sorted(lease.ID for lease in leases.leases)
        calls += [("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=each)) for each in ids]
        calls.append(("KV/DeleteRange", pb.DeleteRangeRequest(key=b"\0", range_end=b"\0")))
        return calls


def masked(name: str, message: Any) -> Any:
    """Return a response without what two servers never have in common."""
    found = deepcopy(message)
    if found.HasField("header"):
        found.header.raft_term = 0
    if name == "Maintenance/Status":
        found.dbSize = found.dbSizeInUse = found.raftIndex = found.raftAppliedIndex = 0
        found.raftTerm = 0
        found.errors[:] = sorted(found.errors)
    elif name == "Maintenance/Alarm":
        found.alarms.sort(key=lambda alarm: (alarm.alarm, alarm.memberID))
    elif name == "Lease/LeaseTimeToLive":
        if found.TTL > 0:
            # In ours time passes only when a test lets it; in etcd a second or two may have passed.
            assert found.grantedTTL - 30 <= found.TTL <= found.grantedTTL
            found.TTL = found.grantedTTL
        found.keys[:] = sorted(found.keys)
    elif name == "Lease/LeaseLeases":
        found.leases.sort(key=lambda lease: lease.ID)
    elif name == "Cluster/MemberList":
        for member in found.members:
            member.clientURLs[:] = []
    return found
