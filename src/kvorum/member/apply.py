"""Apply committed entries: in order, each once, as many as the turn allows.

The loop classifies an entry, lets the state apply it, and accounts for it. Applying is idempotent
by the index: the member skips entries that the state already holds, and the backend stores index
and term in the same batch as the effects. One entry may take several slices; until it is done the
member applies no other entry and seals no batch. The result goes to the waiter that proposed the
entry here. Every member executes the same for the caller that the entry names; a member without a
waiter only skips making the answer.

Puts without options take a fast path while nothing can refuse them. Both paths have the same
effects, so members may differ in which one they take. The clock decides only where a slice ends,
never what it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError

from kvorum.api.coverage import reach
from kvorum.api.errors import StatusError
from kvorum.api.requests import Put, parse_put
from kvorum.member import changes, leases, snapshots
from kvorum.member.errors import MemberStopped
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import Message
from kvorum.raft.states import Role
from kvorum.state.apply import requests
from kvorum.state.apply.callers import NOBODY
from kvorum.state.apply.execution import APPLIERS, DECODERS, long_txn
from kvorum.state.apply.incompatible_entries import describe_foreign
from kvorum.state.apply.permissions import plain_put_refusal
from kvorum.state.apply.requests import (
    caller_of_identity,
    extract_anonymous_put,
    split_user_request,
)

if TYPE_CHECKING:
    from kvorum.member.procedures import Waiter
    from kvorum.member.proposals import Pending
    from kvorum.member.replica import Replica
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Sliced, Slices

_PUT: Final = requests.PUT

CALLERS_MAX: Final = 1000
"""How many callers from entries are cached."""


class ApplyQueue:
    """Committed entries that are not applied yet, and the one that is being applied."""

    __slots__ = (
        "accepts_anonymous_puts",
        "accepts_user_puts",
        "began",
        "caller",
        "callers",
        "entry",
        "kind",
        "messages",
        "pending",
        "position",
        "slices",
        "started",
        "waiter",
    )

    def __init__(self) -> None:
        # Cached callers by their identity in the headers of entries.
        self.callers: dict[bytes, Caller] = {}
        self.messages: deque[Message] = deque()
        self.position = 0  # in the entries of the first message
        # Whose puts without options may take the fast path; other entries may change it.
        self.accepts_anonymous_puts = False
        self.accepts_user_puts = False
        # Of the entry that was classified last: its caller, and its proposal if made here.
        self.caller: Caller = NOBODY
        self.pending: Pending | None = None
        # The entry whose effects are computed in slices, and the waiter for its result.
        self.entry: Entry | None = None
        self.slices: Slices | None = None
        self.waiter: Waiter = None
        # For metrics: the request's kind, when applying it began, and when the request came.
        self.kind = 0
        self.began = 0.0
        self.started: object = None


def apply_entries(replica: Replica, deadline: float) -> None:
    """Apply waiting entries until none is left or the deadline has passed."""
    queue = replica.apply_queue
    clock = replica.clock
    hub = replica.hub
    run_entries = replica.limits.apply_entries_per_clock_check
    while queue.messages and replica.may_apply:
        if queue.slices is not None and not _continue(replica, queue, deadline):
            return
        if replica.must_wait_for_flush:
            return
        if hub.is_publishing:
            # The hub is still publishing the last transaction to many watchers.
            hub.step()
        else:
            entries = queue.messages[0].entries
            start = queue.position
            stop = min(start + run_entries, len(entries))
            if start < stop:
                queue.position = _apply_run(replica, queue, entries, start, stop)
            if queue.slices is None:
                if queue.position == len(entries):
                    _finish_message(replica, queue)
                if replica.state.applied >= replica.snapshots.due_index:
                    snapshots.take_due(replica)
        if clock() >= deadline:
            if queue.messages:
                reach("apply lags behind commit")
            return


def _finish_message(replica: Replica, queue: ApplyQueue) -> None:
    message = queue.messages.popleft()
    queue.position = 0
    for response in message.responses:
        replica.node.step(response)


def _apply_run(
    replica: Replica, queue: ApplyQueue, entries: Sequence[Entry], start: int, stop: int
) -> int:
    """Apply entries; return the position after the last one applied or started."""
    state = replica.state
    applied, term = state.applied, entries[start].term
    first = entries[start].index
    if first <= applied:
        # An installed snapshot already holds its effects.
        return min(stop, start + applied - first + 1)
    assert first == applied + 1, f"entry {first} follows {applied}"
    if entries[stop - 1].term != term:
        stop = start + 1
    assert entries[stop - 1].index == first + stop - 1 - start, f"a gap after {first}"
    if term != state.applied_term:
        state.header.set_raft_term(term)
    put = state.store.put
    header_field = state.header.field
    reply = replica.out.replies.append
    hub = replica.hub
    counters = replica.counters
    counters.begin_run(_PUT, replica.started)
    _check_fast_path(replica, queue)
    position = start
    while position < stop:
        entry = entries[position]
        position += 1
        request = _classify(replica, queue, entry)
        if request is not None:
            # The fast path: no decoding, no generator, no call but the store's.
            revision = put(request.key, request.value, 0)
            pending = queue.pending
            if pending is None:
                counters.count_success(_PUT, None)
            else:
                field = header_field(revision)
                waiter = pending[0]
                if waiter.__class__ is int:
                    reply((waiter, field))
                else:
                    replica.answer(waiter, field)
                counters.count_success(_PUT, pending[5])
            applied += 1
            if hub.is_watched and hub.is_publishing:
                break
            continue
        pending = queue.pending
        if pending is None or pending[2] != counters.run_kind:
            counters.end_run()
        state.note_applied(applied, term)
        if entry.type != EntryType.NORMAL:
            if not replica.writer.is_commit_durable(entry.index):
                # `may_apply` turns true when the commit index is durable.
                position -= 1
                break
            changes.apply_change(replica, entry)
            counters.skip_time()
        elif not entry.data:
            queue.slices = _begin_term(replica, entry)
            if queue.slices is not None:
                queue.entry, queue.waiter, queue.kind = entry, None, 0
                return position
            counters.skip_time()
        else:
            succeeded = _execute(replica, queue, entry)
            if queue.slices is not None:
                queue.entry = entry
                counters.end_run()
                queue.began = counters.last_reading
                return position
            if succeeded:
                counters.count_success(queue.kind, queue.started)
            _check_fast_path(replica, queue)
        applied += 1
        if hub.is_publishing:
            break
    counters.end_run()
    state.note_applied(applied, term)
    return position


def _check_fast_path(replica: Replica, queue: ApplyQueue) -> None:
    """Note whose puts without options may take the fast path now."""
    state = replica.state
    queue.accepts_anonymous_puts = state.accepts_plain_puts()
    # Users' puts take it after a check of their permissions.
    queue.accepts_user_puts = state.auth.is_enabled and state.accepts_puts()
    queue.caller = NOBODY


# Classify.


def _classify(replica: Replica, queue: ApplyQueue, entry: Entry) -> Put | None:
    """Find an entry's caller and proposal; return the request of a put for the fast path."""
    queue.pending = None
    data = entry.data
    if entry.type != EntryType.NORMAL or not data:
        return None
    if queue.accepts_user_puts:
        return _classify_users(replica, queue, data)
    if data[0] >= 0x80:
        return None
    proposals = replica.proposals.pending
    encoded_id = data[-replica.ids.id_bytes :]
    pending = proposals.pop(encoded_id, None)
    if pending is None:
        # Another member proposed it, or this one before its restart, or for a user.
        body = extract_anonymous_put(data) if queue.accepts_anonymous_puts else None
        request = None if body is None else parse_put(body)
        return request if request is not None and _is_plain(request) else None
    if pending[4] != data or not pending[1].is_nobody:
        # This entry only ends with the same bytes as the awaited one.
        proposals[encoded_id] = pending
        return None
    queue.pending = pending
    if pending[2] != _PUT or not queue.accepts_anonymous_puts:
        return None
    request = cast("Put", pending[3])
    return request if _is_plain(request) else None


def _classify_users(replica: Replica, queue: ApplyQueue, data: bytes) -> Put | None:
    """Classify an entry while users' puts may take the fast path.

    Parses without a loop over fields, and reuses cached callers.
    """
    parts = split_user_request(data)
    if parts is None:
        return None
    kind, start, end, encoded_id, identity = parts
    caller = queue.callers.get(identity)
    if caller is None:
        caller = caller_of_identity(identity)
        if caller is None:
            return None
        if len(queue.callers) >= CALLERS_MAX:
            queue.callers.clear()
        queue.callers[identity] = caller
    queue.caller = caller
    proposals = replica.proposals.pending
    pending = proposals.get(encoded_id)
    if pending is not None:
        if pending[4] == data:
            del proposals[encoded_id]
            queue.pending = pending
        else:
            pending = None
    if kind != _PUT:
        return None
    request = cast("Put", pending[3]) if pending is not None else parse_put(data[start:end])
    if request is None or not _is_plain(request):
        return None
    return request if plain_put_refusal(replica.state, caller, request) is None else None


def _is_plain(put: Put) -> bool:
    """Return whether a put has no options."""
    return not (put.lease or put.prev_kv or put.ignore_value or put.ignore_lease)


# Apply.


def _execute(replica: Replica, queue: ApplyQueue, entry: Entry) -> bool:
    """Apply a classified request; return whether it succeeded at once.

    If it takes slices, `queue.slices` has them and `queue.waiter` awaits their result.
    """
    counters, state = replica.counters, replica.state
    queue.began = counters.last_reading
    pending, caller = queue.pending, queue.caller
    if pending is None:
        try:
            kind, number, body, caller = requests.decode(entry.data)
            pending = replica.proposals.take(requests.encoded_id(number), entry.data)
            if pending is None:
                if kind == requests.TXN and len(body) > replica.limits.txn_slice_bytes:
                    queue.kind, queue.started, queue.waiter = kind, None, None
                    queue.slices = long_txn(state, caller, body)
                    return False
                request = DECODERS[kind](body)
        except (ValueError, KeyError, DecodeError) as error:
            raise _make_undecodable_error(entry, error) from error
    queue.waiter = queue.started = None
    if pending is not None:
        queue.waiter, _, kind, request, _, queue.started = pending
    queue.kind = kind
    # A lease runs from the clock's time: on a slow disk the turn may have started long ago.
    state.now = replica.clock() if kind == requests.LEASE_GRANT else replica.now
    try:
        result: Sliced = APPLIERS[kind](state, caller, request, queue.waiter is not None)
    except StatusError as error:
        result = error.status
    if not isinstance(result, (bytes, tuple)):
        queue.slices = result
        return False
    _take_state_requests(replica)
    waiter, queue.waiter = queue.waiter, None
    if waiter is not None:
        replica.answer(waiter, result)
    if result.__class__ is bytes:
        return True
    counters.count_entry(kind, result, queue.began, queue.started)
    return False


def _take_state_requests(replica: Replica) -> None:
    """Do what the state asked for while it applied an entry."""
    state = replica.state
    if state.exceeds_quota:
        state.exceeds_quota = False
        replica.raise_no_space()
    if state.wants_snapshot:
        state.wants_snapshot = False
        replica.snapshots.is_wanted = True


def _make_undecodable_error(entry: Entry, error: Exception) -> MemberStopped:
    return MemberStopped(
        f"entry {entry.index} of term {entry.term} {describe_foreign(entry.data, error)}"
    )


def _continue(replica: Replica, queue: ApplyQueue, deadline: float) -> bool:
    """Continue the entry that is being applied; return whether it is done."""
    slices, entry = queue.slices, queue.entry
    assert slices is not None and entry is not None
    clock = replica.clock
    try:
        while True:
            next(slices)
            if clock() >= deadline:
                reach("entry applied over several turns")
                return False
    except StopIteration as end:
        result = end.value
    except StatusError as error:
        result = error.status
    except DecodeError as error:
        # A long transaction is not decoded on arrival, so the error shows only here.
        raise _make_undecodable_error(entry, error) from error
    queue.slices = queue.entry = None
    _take_state_requests(replica)
    waiter, queue.waiter = queue.waiter, None
    if waiter is not None:
        replica.answer(waiter, result)
    if queue.kind:
        replica.counters.count_entry(queue.kind, result, queue.began, queue.started)
    replica.state.note_applied(entry.index, entry.term)
    return True


def _begin_term(replica: Replica, entry: Entry) -> Slices | None:
    """Apply the first entry of a term: retry ReadIndex and, as the leader, start timing leases."""
    replica.reads.retry_soon()
    raft = replica.node.raft
    if raft.role == Role.LEADER and entry.term == raft.term and not replica.was_removed:
        return leases.promote(replica)
    return None
