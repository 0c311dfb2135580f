"""Locks and elections have one holder: by revision, and by the clock among live sessions."""

from collections.abc import Sequence

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.api.pb.v3electionpb import LeaderRequest, ProclaimRequest
from kvorum.api.pb.v3lockpb import LockRequest
from kvorum.sim.history import History, Record
from kvorum.sim.sessions import Hold
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import ELECTION_NAME

GUARANTEE = "locks and elections are held once"


def check_locks(history: History, holds: Sequence[Hold]) -> None:
    """Require that a session that got a lock or an election was its only holder."""
    for record in history.records:
        if record.is_answered:
            _check_head(history, record)
    by_name: dict[bytes, list[Hold]] = {}
    for hold in holds:
        by_name.setdefault(hold.name, []).append(hold)
    for name, held in by_name.items():
        held.sort(key=lambda hold: hold.since)
        last = held[0]
        for hold in held[1:]:
            if hold.since < last.until and hold.holder != last.holder:
                raise Violation(
                    GUARANTEE,
                    f"{hold.holder} got {name!r} by #{hold.record.invoked} at {hold.since:.3f}; "
                    f"{last.holder}, by #{last.record.invoked}, held it until {last.until:.3f}",
                    hold.record,
                    last.record,
                )
            if hold.until > last.until:
                last = hold


def _check_head(history: History, record: Record) -> None:
    """Require that at the answer's revision its key was the oldest of the queue."""
    request, response = record.request, record.response
    if isinstance(request, LockRequest):
        name, key = request.name, response.key
    elif isinstance(request, LeaderRequest):
        name, key = request.name, response.kv.key
    elif isinstance(request, ProclaimRequest):
        name, key = ELECTION_NAME, request.leader.key
    else:
        return
    queue = history.range_at(name + b"/", name + b"0", response.header.revision)
    kvs = [KeyValue.FromString(kv) for kv in queue]
    head = min(kvs, key=lambda kv: kv.create_revision, default=None)
    if head is None or head.key != key:
        raise Violation(
            GUARANTEE,
            f"{record.kind} #{record.invoked} was answered for {key!r} at revision "
            f"{response.header.revision}, where the queue has {[kv.key for kv in kvs]!r}, and "
            f"{head.key if head else None!r} is its head",
            record,
        )
