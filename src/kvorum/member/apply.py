"""Apply committed entries: in order, each once, as many as the turn allows.

Applying is idempotent by the index: the member skips entries that the state already holds, and the
backend stores index and term in the same batch as the effects. One entry may take several slices;
until it is done the member applies no other entry and seals no batch. The result goes to the waiter
that proposed the entry here. Every member executes the same for the caller that the entry names; a
member without a waiter only skips making the answer.

The clock decides only where a slice ends, never what it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from kvorum.api.coverage import reach
from kvorum.api.errors import StatusError
from kvorum.api.requests import LONG_BYTES, Put, parse_put
from kvorum.member import changes, leases, requests, snapshots
from kvorum.member.callers import NOBODY
from kvorum.member.errors import MemberStopped
from kvorum.member.execution import APPLIERS, DECODERS, long_txn
from kvorum.member.incompatible_entries import describe_foreign
from kvorum.member.permissions import plain_put_refusal
from kvorum.member.requests import parts_of_users, put_of_nobody, user_of
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import Message
from kvorum.raft.states import Role

if TYPE_CHECKING:
    from kvorum.member.callers import Caller
    from kvorum.member.member import Member
    from kvorum.member.procedures import Waiter
    from kvorum.member.proposals import Pending
    from kvorum.member.results import Sliced, Slices

ENTRIES_PER_LOOK = 64
"""How many entries are applied between two checks of the clock."""

_PUT: Final = requests.PUT


UsersEntry: TypeAlias = "tuple[int, int, int, Caller, Pending | None, bytes]"
"""Kind, start and end of the request, caller, pending proposal if made here, encoded id."""

CALLERS_MAX: Final = 1000
"""How many callers from entries are cached."""


class ApplyQueue:
    """Committed entries that are not applied yet, and the one that is being applied."""

    __slots__ = (
        "began",
        "callers",
        "entry",
        "has_succeeded",
        "kind",
        "messages",
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
        # The entry whose effects are computed in slices, and the waiter for its result.
        self.entry: Entry | None = None
        self.slices: Slices | None = None
        self.waiter: Waiter = None
        # For metrics: the request's kind, when applying it began, and when the request came; and
        # whether the last short request succeeded.
        self.kind = 0
        self.has_succeeded = False
        self.began = 0.0
        self.started: object = None


def apply_entries(member: Member, deadline: float) -> None:
    """Apply waiting entries until none is left or the deadline has passed."""
    queue = member.apply_queue
    clock = member.clock
    hub = member.hub
    while queue.messages and member.may_apply:
        if queue.slices is not None and not _continue(member, queue, deadline):
            return
        if member.must_wait_for_flush:
            return
        if hub.is_publishing:
            # The hub is still publishing the last transaction to many watchers.
            hub.step()
        else:
            entries = queue.messages[0].entries
            start = queue.position
            stop = min(start + ENTRIES_PER_LOOK, len(entries))
            if start < stop:
                queue.position = _apply_run(member, queue, entries, start, stop)
            if queue.slices is None:
                if queue.position == len(entries):
                    _finish_message(member, queue)
                if member.applied >= member.snapshots.due_index:
                    snapshots.take_due(member)
        if clock() >= deadline:
            if queue.messages:
                reach("apply lags behind commit")
            return


def _finish_message(member: Member, queue: ApplyQueue) -> None:
    message = queue.messages.popleft()
    queue.position = 0
    for response in message.responses:
        member.node.step(response)


def _apply_run(
    member: Member, queue: ApplyQueue, entries: Sequence[Entry], start: int, stop: int
) -> int:
    """Apply entries; return the position after the last one applied or started."""
    applied, term = member.applied, entries[start].term
    first = entries[start].index
    if first <= applied:
        # An installed snapshot already holds its effects.
        return min(stop, start + applied - first + 1)
    assert first == applied + 1, f"entry {first} follows {applied}"
    if entries[stop - 1].term != term:
        stop = start + 1
    assert entries[stop - 1].index == first + stop - 1 - start, f"a gap after {first}"
    if term != member.applied_term:
        member.header.set_raft_term(term)
    pending = member.proposals.pending
    pending_pop = pending.pop
    id_bytes = member.ids.id_bytes
    put = member.store.put
    header_field = member.header.field
    reply = member.out.replies.append
    hub = member.hub
    # Anonymous puts without options take a fast path while nothing can refuse them. Both paths have
    # the same effects, so members may differ in which one they take.
    is_plain = member.accepts_plain_puts()
    # While authentication is enabled, users' puts take it after a check of their permissions.
    is_guarded = member.auth.is_enabled and member.accepts_puts()
    normal = EntryType.NORMAL
    position = start
    counters = member.counters
    counters.looked = counters.stopwatch()
    # For metrics: the run of successful entries of one kind since the stopwatch was last read, and
    # those of them answered here, grouped by start; `answered` counts the newest group.
    row, row_kind, started, answered = 0, _PUT, member.started, 0
    groups: list[tuple[object, int]] = []
    while position < stop:
        entry = entries[position]
        position += 1
        data = entry.data
        kind = entry.type
        waiting = None
        caller = NOBODY
        if is_guarded:
            users = _users_entry(member, queue, data) if kind == normal and data else None
            if users is not None:
                if users[0] == _PUT and _apply_users_put(member, data, users):
                    applied += 1
                    if row_kind != _PUT:
                        groups.append((started, answered))
                        counters.row_applied(row_kind, groups, row)
                        row, row_kind, answered, groups = 0, _PUT, 0, []
                    row += 1
                    if users[4] is not None:
                        groups.append((users[4][5], 1))
                    if hub.is_watched and hub.is_publishing:
                        break
                    continue
                caller, waiting = users[3], users[4]
                if waiting is not None:
                    del pending[users[5]]
        elif kind == normal and data and data[0] < 0x80:
            encoded_id = data[-id_bytes:]
            waiting = pending_pop(encoded_id, None)
            if waiting is None:
                # Another member proposed it, or this one before its restart, or for a user.
                body = put_of_nobody(data) if is_plain else None
                request = None if body is None else parse_put(body)
                if request is not None and not (
                    request.lease or request.prev_kv or request.ignore_value or request.ignore_lease
                ):
                    put(request.key, request.value, 0)
                    applied += 1
                    if row_kind != _PUT:
                        groups.append((started, answered))
                        counters.row_applied(row_kind, groups, row)
                        row, row_kind, answered, groups = 0, _PUT, 0, []
                    row += 1
                    if hub.is_watched and hub.is_publishing:
                        break
                    continue
            elif waiting[4] != data or not waiting[1].is_nobody:
                # This entry only ends with the same bytes as the awaited one.
                pending[encoded_id] = waiting
                waiting = None
        if waiting is not None and waiting[2] == _PUT and is_plain:
            # The fast path: no decoding, no generator, no call but the store's.
            request = cast("Put", waiting[3])
            if not (
                request.lease or request.prev_kv or request.ignore_value or request.ignore_lease
            ):
                field = header_field(put(request.key, request.value, 0))
                waiter = waiting[0]
                if waiter.__class__ is int:
                    reply((waiter, field))
                else:
                    member.answer(waiter, field)
                if row_kind != _PUT:
                    groups.append((started, answered))
                    counters.row_applied(row_kind, groups, row)
                    row, row_kind, answered, groups = 0, _PUT, 0, []
                if waiting[5] is started:
                    answered += 1
                else:
                    groups.append((started, answered))
                    started, answered = waiting[5], 1
                applied += 1
                row += 1
                if hub.is_watched and hub.is_publishing:
                    break
                continue
        if row and (waiting is None or waiting[2] != row_kind):
            groups.append((started, answered))
            counters.row_applied(row_kind, groups, row)
            row, answered, groups = 0, 0, []
        member.note_applied(applied, term)
        if kind != normal:
            if not member.writer.is_commit_durable(entry.index):
                # `may_apply` turns true when the commit index is durable.
                position -= 1
                break
            changes.apply_change(member, entry)
            counters.looked = counters.stopwatch()
        elif not data:
            slices = _begin_term(member, entry)
            if slices is not None:
                queue.entry, queue.slices, queue.waiter = entry, slices, None
                queue.kind = 0
                return position
            counters.looked = counters.stopwatch()
        else:
            result = _execute(member, queue, entry, waiting, caller)
            if result is not None:
                queue.entry, queue.slices, queue.waiter = entry, result[0], result[1]
                if row:
                    groups.append((started, answered))
                    counters.row_applied(row_kind, groups, row)
                    queue.began = counters.looked
                return position
            if queue.has_succeeded:
                row += 1
                row_kind = queue.kind
                if queue.started is started:
                    answered += 1
                elif queue.started is not None:
                    groups.append((started, answered))
                    started, answered = queue.started, 1
            is_plain = member.accepts_plain_puts()
            is_guarded = member.auth.is_enabled and member.accepts_puts()
        applied += 1
        if hub.is_publishing:
            break
    if row:
        groups.append((started, answered))
        counters.row_applied(row_kind, groups, row)
    member.note_applied(applied, term)
    return position


def _users_entry(member: Member, queue: ApplyQueue, data: bytes) -> UsersEntry | None:
    """Return the parts of a user's entry, with its caller and pending proposal, or None.

    Parses without a loop over fields, and reuses cached callers.
    """
    parts = parts_of_users(data)
    if parts is None:
        return None
    kind, start, end, encoded_id, identity = parts
    caller = queue.callers.get(identity)
    if caller is None:
        caller = user_of(identity)
        if caller is None:
            return None
        if len(queue.callers) >= CALLERS_MAX:
            queue.callers.clear()
        queue.callers[identity] = caller
    waiting = member.proposals.pending.get(encoded_id)
    if waiting is not None and waiting[4] != data:
        waiting = None
    return kind, start, end, caller, waiting, encoded_id


def _apply_users_put(member: Member, data: bytes, users: UsersEntry) -> bool:
    """Apply a user's put if it has no options and is permitted; return whether it was applied.

    Has the same effects as `_execute`, which handles all other entries, refused ones included.
    """
    _, start, end, caller, waiting, encoded_id = users
    if waiting is not None:
        request = cast("Put", waiting[3])
    else:
        parsed = parse_put(data[start:end])
        if parsed is None:
            return False
        request = parsed
    if (
        request.lease
        or request.prev_kv
        or request.ignore_value
        or request.ignore_lease
        or plain_put_refusal(member, caller, request) is not None
    ):
        return False
    field = member.header.field(member.store.put(request.key, request.value, 0))
    if waiting is not None:
        del member.proposals.pending[encoded_id]
        member.answer(waiting[0], field)
    return True


def _execute(
    member: Member, queue: ApplyQueue, entry: Entry, waiting: Pending | None, caller: Caller
) -> tuple[Slices, Waiter] | None:
    """Apply a request; return its slices and their waiter if it is long.

    Without `waiting`, caller and waiter are those of the decoded entry.
    """
    counters = member.counters
    began = counters.looked
    if waiting is None:
        try:
            kind, number, body, caller = requests.decode(entry.data)
            waiting = member.proposals.take(requests.encoded_id(number), entry.data)
            if waiting is None:
                if kind == requests.TXN and len(body) > LONG_BYTES:
                    queue.kind, queue.began, queue.started = kind, began, None
                    return long_txn(member, caller, body), None
                request = DECODERS[kind](body)
        except (ValueError, KeyError, DecodeError) as error:
            raise _not_understood(entry, error) from error
    waiter: Waiter = None
    started: object = None
    if waiting is not None:
        waiter, _, kind, request, _, started = waiting
    try:
        result: Sliced = APPLIERS[kind](member, caller, request, waiter is not None)
    except StatusError as error:
        result = error.status
    if isinstance(result, (bytes, tuple)):
        if waiter is not None:
            member.answer(waiter, result)
        queue.has_succeeded = result.__class__ is bytes
        queue.kind, queue.started = kind, started
        if not queue.has_succeeded:
            counters.entry_applied(kind, result, began, started)
        return None
    queue.kind, queue.began, queue.started = kind, began, started
    return result, waiter


def _not_understood(entry: Entry, error: Exception) -> MemberStopped:
    return MemberStopped(
        f"entry {entry.index} of term {entry.term} {describe_foreign(entry.data, error)}"
    )


def _continue(member: Member, queue: ApplyQueue, deadline: float) -> bool:
    """Continue the entry that is being applied; return whether it is done."""
    slices, entry = queue.slices, queue.entry
    assert slices is not None and entry is not None
    clock = member.clock
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
        raise _not_understood(entry, error) from error
    queue.slices = queue.entry = None
    waiter, queue.waiter = queue.waiter, None
    if waiter is not None:
        member.answer(waiter, result)
    if queue.kind:
        member.counters.entry_applied(queue.kind, result, queue.began, queue.started)
    member.note_applied(entry.index, entry.term)
    return True


def _begin_term(member: Member, entry: Entry) -> Slices | None:
    """Apply the first entry of a term: retry ReadIndex and, as the leader, start timing leases."""
    member.reads.ask_again()
    raft = member.node.raft
    if raft.role == Role.LEADER and entry.term == raft.term and not member.was_removed:
        return leases.promote(member)
    return None
