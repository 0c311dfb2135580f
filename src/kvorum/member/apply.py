"""Applying committed entries: in order, each once, and as much of it as the turn allows.

Idempotent by the index: what the state already holds is passed over, and the index and term are
noted in the backend between the same two seals as the effects. The effects of one entry
may be computed in slices; nothing else is applied, and nothing is sealed, before it is done.
The result goes to whoever proposed the entry here. Every member executes the same; where nobody
waits, only what makes the answer is left out.

The clock decides only where a slice ends, never what it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kvorum.api.errors import StatusError
from kvorum.api.requests import LONG_BYTES, Put, parse_put
from kvorum.auth.enabled import is_change
from kvorum.member import changes, leases, requests
from kvorum.member.errors import MemberStopped
from kvorum.member.execution import APPLIERS, DECODERS, long_txn
from kvorum.member.requests import put_body
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import Message
from kvorum.raft.states import Role

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.proposals import Pending
    from kvorum.member.results import Sliced, Slices

ENTRIES_PER_LOOK: Final = 64
"""How many entries are applied between two looks at the clock."""

_PUT: Final = requests.PUT
_NOBODY: Final[Pending] = (None, 0, None)


class ApplyQueue:
    """Committed entries that are not applied yet, and the one that is being applied."""

    __slots__ = ("entry", "messages", "position", "slices", "waiting")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.position = 0  # in the entries of the first message
        # The entry whose effects are computed in slices, and who waits for its result.
        self.entry: Entry | None = None
        self.slices: Slices | None = None
        self.waiting: Pending = _NOBODY


def apply_entries(member: Member, deadline: float) -> None:
    """Apply until nothing is left or the deadline has passed."""
    queue = member.apply_queue
    clock = member.clock
    hub = member.hub
    while queue.messages and member.may_apply:
        if queue.slices is not None and not _continue(member, queue, deadline):
            return
        if member.must_wait_for_flush:
            return
        if hub.is_publishing:
            # The last transaction is told to many watchers; the next one waits its turn.
            hub.step()
        else:
            entries = queue.messages[0].entries
            start = queue.position
            stop = min(start + ENTRIES_PER_LOOK, len(entries))
            if start < stop:
                queue.position = _apply_run(member, queue, entries, start, stop)
            if queue.position == len(entries) and queue.slices is None:
                _finish_message(member, queue)
        if clock() >= deadline:
            return


def _finish_message(member: Member, queue: ApplyQueue) -> None:
    message = queue.messages.popleft()
    queue.position = 0
    for response in message.responses:
        member.node.step(response)


def _apply_run(
    member: Member, queue: ApplyQueue, entries: Sequence[Entry], start: int, stop: int
) -> int:
    """Apply entries; return the position behind the last one that is applied or begun."""
    applied, term = member.applied, entries[start].term
    first = entries[start].index
    if first <= applied:
        # A snapshot has brought it.
        return min(stop, start + applied - first + 1)
    assert first == applied + 1, f"entry {first} follows {applied}"
    if entries[stop - 1].term != term:
        stop = start + 1
    assert entries[stop - 1].index == first + stop - 1 - start, f"a gap after {first}"
    if term != member.applied_term:
        member.header.set_raft_term(term)
    pending_pop = member.proposals.pending.pop
    put = member.store.put
    header_field = member.header.field
    reply = member.out.replies.append
    hub = member.hub
    # Puts of which nothing can be refused, the usual ones, go the short way.
    is_plain = member.accepts_plain_puts()
    normal = EntryType.NORMAL
    position = start
    while position < stop:
        entry = entries[position]
        position += 1
        data = entry.data
        kind = entry.type
        waiting = None
        if kind == normal and data and data[0] < 0x80:
            waiting = pending_pop(data[-requests.TOKEN_BYTES :], None)
            if waiting is None and is_plain:
                # Another member's, or from before the start: nobody waits here.
                body = put_body(data)
                request = None if body is None else parse_put(body)
                if request is not None and not (
                    request.lease or request.prev_kv or request.ignore_value or request.ignore_lease
                ):
                    put(request.key, request.value, 0)
                    applied += 1
                    if hub.is_watched and hub.is_publishing:
                        break
                    continue
        if waiting is not None and waiting[1] == _PUT and is_plain:
            # The short way: no decoding, no generator, no call but the store's.
            request = cast("Put", waiting[2])
            if not (
                request.lease or request.prev_kv or request.ignore_value or request.ignore_lease
            ):
                field = header_field(put(request.key, request.value, 0))
                waiter = waiting[0]
                if waiter.__class__ is int:
                    reply((waiter, field))
                else:
                    member.answer(waiter, field)
                applied += 1
                if hub.is_watched and hub.is_publishing:
                    break
                continue
        member.note_applied(applied, term)
        if kind != normal:
            if not member.writer.is_commit_durable(entry.index):
                # `may_apply` tells when to go on.
                position -= 1
                break
            changes.apply_change(member, entry)
        elif not data:
            slices = _begin_term(member, entry)
            if slices is not None:
                queue.entry, queue.slices, queue.waiting = entry, slices, _NOBODY
                return position
        else:
            result = _execute(member, entry, waiting)
            if result is not None:
                queue.entry, queue.slices, queue.waiting = entry, result[0], result[1]
                return position
            is_plain = member.accepts_plain_puts()
        applied += 1
        if hub.is_publishing:
            break
    member.note_applied(applied, term)
    return position


def _execute(
    member: Member, entry: Entry, waiting: Pending | None
) -> tuple[Slices, Pending] | None:
    """Apply a request; return its slices and who waits for them if it is long."""
    if waiting is None:
        try:
            kind, number, body = requests.decode(entry.data)
            if is_change(kind):
                raise MemberStopped(
                    f"entry {entry.index} of term {entry.term} changes users, roles or "
                    "authentication, which this version does not have. Remove this member from the "
                    "cluster; a member of etcd may take its place"
                )
            if kind == requests.TXN and len(body) > LONG_BYTES:
                waiting = member.proposals.pending.pop(number, _NOBODY)
                return long_txn(member, body, waiting[0] is not None), waiting
            request = DECODERS[kind](body)
        except (ValueError, KeyError) as error:
            raise MemberStopped(
                f"entry {entry.index} of term {entry.term} holds no request that this version "
                f"understands ({error!r}); is a newer member in the cluster?"
            ) from error
        waiting = member.proposals.pending.pop(number, _NOBODY)
    else:
        _, kind, request = waiting
    waiter = waiting[0]
    try:
        result: Sliced = APPLIERS[kind](member, request, waiter is not None)
    except StatusError as error:
        result = error.status
    if isinstance(result, (bytes, tuple)):
        if waiter is not None:
            member.answer(waiter, result)
        return None
    return result, waiting


def _continue(member: Member, queue: ApplyQueue, deadline: float) -> bool:
    """Go on with the entry that is being applied; tell whether it is done."""
    slices, entry = queue.slices, queue.entry
    assert slices is not None and entry is not None
    clock = member.clock
    try:
        while True:
            next(slices)
            if clock() >= deadline:
                return False
    except StopIteration as end:
        result = end.value
    except StatusError as error:
        result = error.status
    queue.slices = queue.entry = None
    waiter, queue.waiting = queue.waiting[0], _NOBODY
    if waiter is not None:
        member.answer(waiter, result)
    member.note_applied(entry.index, entry.term)
    return True


def _begin_term(member: Member, entry: Entry) -> Slices | None:
    """Take a leader's first entry: what is committed is known now, and leases count from here."""
    member.reads.ask_again()
    raft = member.node.raft
    if raft.role == Role.LEADER and entry.term == raft.term and not member.was_removed:
        return leases.promote(member)
    return None


Applier = Callable[["Member", Any, bool], "Sliced"]
