"""One watch at a member, and the clients' watchers that share it.

Rules: * All events from a broadcast's position on reach it, whole revisions in order, so that a
watcher which needs nothing below that may join at any time; each drops what it does not need. * An
event is cut out of the member's message once; watchers with the same options and the same id, on
however many streams, share the bytes of a whole response. * A watcher whose client does not take
what was sent leaves, with the revision that it needs next: it holds nobody back.

What a broadcast gets from the member is as much as one of its watchers wants. One that gets
previous values serves those who do not want them as well. A member skips its periodic progress for
watchers that had events; for one with filters the member has to apply them, therefore, to know.
"""

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from kvorum.api.responses import watch_fragments, watch_id_field
from kvorum.mvcc.watch.hub import FRAGMENT_OVERHEAD_BYTES, REQUEST_BYTES_MAX
from kvorum.proxy.figures import Figures
from kvorum.proxy.watch_wire import Happening, Told

if TYPE_CHECKING:
    from kvorum.proxy.watch import ClientStream, Outgoing
    from kvorum.proxy.watch_sessions import WatchedRange

PREV_KV: Final = 1
NO_PUT: Final = 2
NO_DELETE: Final = 4
PROGRESS: Final = 8
"""What a watcher selects, as bits."""
_FILTERS: Final = NO_PUT | NO_DELETE

FRAGMENT_BYTES_MAX = REQUEST_BYTES_MAX + FRAGMENT_OVERHEAD_BYTES
"""From how many bytes on a response is sent in fragments, where that was asked for."""
SPREAD_BYTES_MAX = 4 * 1024 * 1024
"""Up to so many bytes are sent to all watchers of a broadcast without looking at each of them."""
_HEAD_BYTES_MAX: Final = 256
"""More than a header and a watch id have."""


class Creation:
    """A client's request for a watcher, until a member has said what it thinks of it."""

    __slots__ = (
        "header",
        "is_answered",
        "is_fragmented",
        "key",
        "range_end",
        "refusal",
        "revision",
        "selection",
        "start_revision",
        "stream",
        "watch_id",
    )

    def __init__(
        self,
        stream: "ClientStream",
        key: bytes,
        range_end: bytes,
        start_revision: int,
        watch_id: int,
        selection: int,
        is_fragmented: bool,
    ) -> None:
        self.stream = stream
        self.key = key
        self.range_end = range_end
        """The range as members know it."""
        self.start_revision = start_revision
        self.watch_id = watch_id
        self.selection = selection
        self.is_fragmented = is_fragmented
        self.is_answered = False
        self.header = b""
        self.revision = 0
        """Of the member that answered."""
        self.refusal = ""
        """Why it was refused, if it was."""

    @property
    def upstream_selection(self) -> int:
        """What a member has to be asked for."""
        selection = self.selection
        return selection if selection & PROGRESS else selection & ~_FILTERS


class Watcher:
    """One watcher of one client's stream."""

    __slots__ = (
        "broadcast",
        "id_field",
        "is_compacted",
        "is_fragmented",
        "key",
        "next_revision",
        "range_end",
        "selection",
        "start_revision",
        "stream",
        "upstream_selection",
        "variant",
        "watch_id",
    )

    def __init__(self, creation: Creation, watch_id: int, next_revision: int) -> None:
        self.stream = creation.stream
        self.watch_id = watch_id
        self.id_field = watch_id_field(watch_id)
        self.key = creation.key
        self.range_end = creation.range_end
        self.start_revision = creation.start_revision
        self.next_revision = next_revision
        """Events below it are not for this watcher. In a broadcast, those below the broadcast's
        position were sent as well."""
        self.selection = creation.selection
        self.upstream_selection = creation.upstream_selection
        self.is_fragmented = creation.is_fragmented
        self.variant = bytes((self.selection & ~PROGRESS,)) + self.id_field
        """Watchers with the same are sent the same bytes."""
        self.broadcast: Broadcast | None = None
        self.is_compacted = False
        """Whether a compaction ended it; it keeps its id until its client cancels it."""


class Standing(Enum):
    """What is known of a broadcast's watch at the member."""

    UNCONFIRMED = "unconfirmed"
    """The member has not answered yet."""
    BEHIND = "behind"
    """It may be catching up from history."""
    SYNCED = "synced"
    """It is told of everything as it happens."""
    DROPPED = "dropped"


def covers(selection: int, other: int) -> bool:
    """Return whether a broadcast that selects so serves what would be selected otherwise."""
    return not (selection ^ other) & _FILTERS and not other & ~selection & (PREV_KV | PROGRESS)


class Broadcast:
    """A watch at a member, with the watchers that are told of its events."""

    __slots__ = (
        "_figures",
        "_groups",
        "_times_full",
        "attempts",
        "ceiling",
        "complete_revision",
        "created_revision",
        "members",
        "number",
        "position",
        "selection",
        "standing",
        "start_revision",
        "waiting",
        "watched",
    )

    def __init__(
        self,
        watched: "WatchedRange",
        number: int,
        start_revision: int,
        selection: int,
        figures: Figures,
    ) -> None:
        self._figures = figures
        self.watched = watched
        self.number = number
        """The watch id at the member."""
        self.start_revision = start_revision
        """With which it is created there; 0: with the revision after the member's. It may be lower
        than the position."""
        self.position = start_revision
        """The lowest revision that may still come; 0 until it is known."""
        self.complete_revision = 0
        """Everything up to it is known to have come, though there was nothing."""
        self.selection = selection
        self.standing = Standing.UNCONFIRMED
        self.created_revision = 0
        """The member's revision when the watch was created there."""
        self.attempts = 0
        """How often progress had been asked for when that became known."""
        self.members: dict[Watcher, None] = {}
        # Calls of members that are sent the same bytes, with one of these; none of them was slow
        # when clients had been found slow so often. None where that has to be found out.
        self._groups: list[tuple[Watcher, list[int]]] | None = None
        self._times_full = 0
        self.ceiling = 0
        """No member needs more than what comes from here on."""
        self.waiting: list[Creation] = []
        """Requests that the member's answer to this one is an answer to."""

    def serves(self, watcher: Watcher) -> bool:
        """Return whether a watcher may join: nothing it needs is past, and what it needs comes."""
        if not covers(self.selection, watcher.upstream_selection):
            return False
        if self.standing is Standing.SYNCED:
            return self.position <= watcher.next_revision
        # What is behind may have a long way to go; those who begin where it does go with it.
        return self.position == watcher.next_revision

    def join(self, watcher: Watcher) -> None:
        """Let a watcher be told of what comes."""
        watcher.broadcast = self
        self._figures.watchers_coalesced += bool(self.members)
        self.members[watcher] = None
        self._groups = None
        self.ceiling = max(self.ceiling, watcher.next_revision)

    def leave(self, watcher: Watcher, next_revision: int) -> None:
        """Let a watcher go, that was told of everything below a revision."""
        del self.members[watcher]
        self._groups = None
        self._figures.watchers_coalesced -= bool(self.members)
        watcher.broadcast = None
        watcher.next_revision = max(watcher.next_revision, next_revision)

    def deliver(self, told: Told, outgoing: "Outgoing") -> None:
        """Tell the watchers of events that have come."""
        events = told.events
        before = self.position
        if events[0].revision < before:
            # A watch that goes on begins with a revision that was told already.
            events = [event for event in events if event.revision >= before]
            if not events:
                return
        first, last = events[0].revision, events[-1].revision
        self.position = last + 1
        batch = Batch(told.header, events)
        is_cut, is_long = self.ceiling > first, batch.is_long
        is_small = batch.bytes * len(self.members) <= SPREAD_BYTES_MAX
        if is_small and not is_cut and not is_long:
            if self._groups is None or self._times_full != outgoing.times_full:
                self._find_groups(outgoing)
            if self._groups is not None and not outgoing.is_full:
                for watcher, calls in self._groups:
                    if shared := batch.response(watcher):
                        outgoing.spread(calls, shared)
                return
        whole = batch.whole
        behind: list[Watcher] = []
        for watcher in self.members:
            stream = watcher.stream
            if stream.is_full or outgoing.is_full:
                behind.append(watcher)
            elif is_cut and watcher.next_revision > first:
                if watcher.next_revision <= last:
                    outgoing.add_all(stream.call, batch.cut(watcher))
            elif is_long and watcher.is_fragmented:
                outgoing.add_all(stream.call, batch.fragments(watcher))
            else:
                response = whole.get(watcher.variant)
                if response is None:
                    response = batch.response(watcher)
                if response:
                    outgoing.add(stream.call, response)
        for watcher in behind:
            self.leave(watcher, before)
            watcher.stream.fall_behind(watcher)

    def _find_groups(self, outgoing: "Outgoing") -> None:
        """Find out who is sent the same, unless a client is slow."""
        found: dict[bytes, tuple[Watcher, list[int]]] = {}
        self._groups, self._times_full = None, outgoing.times_full
        for watcher in self.members:
            if watcher.stream.is_full:
                return
            found.setdefault(watcher.variant, (watcher, []))[1].append(watcher.stream.call)
        self._groups = list(found.values())


class Batch:
    """The events of one message, and the responses made of them so far."""

    __slots__ = ("_bodies", "_events", "_header", "bytes", "is_long", "whole")

    def __init__(self, header: bytes, events: Sequence[Happening]) -> None:
        self._header = header
        self._events = events
        self._bodies: dict[int, bytes] = {}
        self.whole: dict[bytes, bytes] = {}
        """Responses with all events, by the variant of who gets them; empty if nothing is left."""
        self.bytes = sum([len(event.field) for event in events]) + _HEAD_BYTES_MAX
        """More than a response has."""
        self.is_long = self.bytes >= FRAGMENT_BYTES_MAX
        """Whether responses may have to be sent in fragments."""

    def response(self, watcher: Watcher) -> bytes:
        """Return the response with all events that a watcher selects."""
        selection = watcher.selection & ~PROGRESS
        body = self._bodies.get(selection)
        if body is None:
            body = b"".join(_selected(self._events, selection))
            self._bodies[selection] = body
        response = self._header + watcher.id_field + body if body else b""
        self.whole[watcher.variant] = response
        return response

    def cut(self, watcher: Watcher) -> list[bytes]:
        """Return the responses to a watcher that needs only the last of the events."""
        events = self._events
        first = bisect_left(events, watcher.next_revision, key=lambda event: event.revision)
        return self._made(watcher, events[first:])

    def fragments(self, watcher: Watcher) -> list[bytes]:
        """Return the responses to a watcher that takes them in fragments."""
        return self._made(watcher, self._events)

    def _made(self, watcher: Watcher, events: Sequence[Happening]) -> list[bytes]:
        fields = _selected(events, watcher.selection)
        if not fields:
            return []
        if watcher.is_fragmented:
            return watch_fragments(self._header, watcher.id_field, fields, FRAGMENT_BYTES_MAX)
        return [b"".join((self._header, watcher.id_field, *fields))]


def _selected(events: Sequence[Happening], selection: int) -> list[bytes]:
    if selection & _FILTERS:
        unwanted = (selection & NO_PUT != 0, selection & NO_DELETE != 0)
        events = [event for event in events if not unwanted[event.is_deletion]]
    if selection & PREV_KV:
        return [event.field for event in events]
    return [event.plain for event in events]
