"""A broadcast: one watch at a member, and the clients' watchers that share it.

Rules:

* A broadcast receives all events from its position on, in order and in whole revisions. A watcher
  that needs no event below the position may therefore join at any time; each watcher drops the
  events it does not need.
* The proxy cuts an event out of the member's message once. Watchers with the same options and the
  same id, on any number of streams, share the bytes of a whole response.
* A watcher whose client does not read leaves the broadcast with the revision it needs next, so
  that it delays no other watcher.

A broadcast requests as much from the member as the most demanding of its watchers: one with
previous values also serves watchers that do not want them. Filters are the member's work only for
watchers that want periodic progress: a member skips the progress message of a watcher that had
events, so it must know which events the filters remove.
"""

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from kvorum.api.responses import watch_fragments, watch_id_field
from kvorum.proxy.counters import ProxyCounters
from kvorum.proxy.watch_wire import EncodedEvent, ParsedResponse
from kvorum.state.mvcc.watch.hub import FRAGMENT_OVERHEAD_BYTES, REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from kvorum.proxy.watch import ClientStream, Outgoing
    from kvorum.proxy.watch_sessions import WatchedRange

PREV_KV: Final = 1
NO_PUT: Final = 2
NO_DELETE: Final = 4
PROGRESS: Final = 8
"""Bits of a watcher's selection: its options."""
_FILTERS: Final = NO_PUT | NO_DELETE

FRAGMENT_BYTES_MAX = REQUEST_BYTES_MAX + FRAGMENT_OVERHEAD_BYTES
"""Size from which a response is sent in fragments, if the watcher asked for fragments."""
FAN_OUT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that a fan-out may send before each watcher's stream is checked individually."""
_HEAD_BYTES_MAX: Final = 256
"""Upper bound for the size of a header and a watch id."""


class Creation:
    """A client's request for a watcher, until a member has accepted or refused it."""

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
        """The range with the namespace, as members know it."""
        self.start_revision = start_revision
        self.watch_id = watch_id
        self.selection = selection
        self.is_fragmented = is_fragmented
        self.is_answered = False
        self.header = b""
        self.revision = 0
        """The revision in the member's answer."""
        self.refusal = ""
        """The reason of a refusal; empty if the member accepted."""

    @property
    def upstream_selection(self) -> int:
        """The selection that the proxy requests from a member."""
        selection = self.selection
        return selection if selection & PROGRESS else selection & ~_FILTERS


class ClientWatcher:
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
        """The watcher needs no events below this revision. While it is in a broadcast, it has
        also had those below the broadcast's position."""
        self.selection = creation.selection
        self.upstream_selection = creation.upstream_selection
        self.is_fragmented = creation.is_fragmented
        self.variant = bytes((self.selection & ~PROGRESS,)) + self.id_field
        """Watchers with equal variants receive the same bytes."""
        self.broadcast: Broadcast | None = None
        self.is_compacted = False
        """Whether a compaction ended the watcher; its id stays in use until the client cancels."""


class BroadcastState(Enum):
    """How far a broadcast's watch at the member is known to be."""

    UNCONFIRMED = "unconfirmed"
    """The member has not answered yet."""
    BEHIND = "behind"
    """The watch may still be catching up from history."""
    SYNCED = "synced"
    """The watch receives every event as it happens."""
    DROPPED = "dropped"


def covers(selection: int, other: int) -> bool:
    """Return whether a broadcast with `selection` serves watchers that need `other`."""
    return not (selection ^ other) & _FILTERS and not other & ~selection & (PREV_KV | PROGRESS)


class Broadcast:
    """A watch at a member, with the watchers that receive its events."""

    __slots__ = (
        "_counters",
        "_groups",
        "_times_full",
        "ceiling",
        "complete_revision",
        "created_revision",
        "members",
        "number",
        "position",
        "progress_requests",
        "selection",
        "start_revision",
        "state",
        "waiting",
        "watched",
    )

    def __init__(
        self,
        watched: "WatchedRange",
        number: int,
        start_revision: int,
        selection: int,
        counters: ProxyCounters,
    ) -> None:
        self._counters = counters
        self.watched = watched
        self.number = number
        """The watch id at the member."""
        self.start_revision = start_revision
        """The start revision sent to the member; 0: the revision after the member's current one.
        It may be lower than the position."""
        self.position = start_revision
        """The lowest revision whose events may still come; 0 until it is known."""
        self.complete_revision = 0
        """Every event up to this revision has come, according to the member's progress messages."""
        self.selection = selection
        self.state = BroadcastState.UNCONFIRMED
        self.created_revision = 0
        """The member's revision when the watch was created there."""
        self.progress_requests = 0
        """The session's count of progress requests when the member confirmed the watch."""
        self.members: dict[ClientWatcher, None] = {}
        # Calls that receive the same bytes, each group with one of its watchers. Valid while
        # `outgoing.times_full` equals `_times_full`, that is, while no further client was found
        # slow; None if not yet computed, or if a client of the broadcast is slow.
        self._groups: list[tuple[ClientWatcher, list[int]]] | None = None
        self._times_full = 0
        self.ceiling = 0
        """Every watcher needs all events from this revision on; below it some may not."""
        self.waiting: list[Creation] = []
        """Clients' requests that the member's answer to this watch's creation also answers."""

    def serves(self, watcher: ClientWatcher) -> bool:
        """Return whether a watcher may join, because every event it needs is still to come."""
        if not covers(self.selection, watcher.upstream_selection):
            return False
        if self.state is BroadcastState.SYNCED:
            return self.position <= watcher.next_revision
        # A broadcast that is behind may have a long history to send, so only watchers that start at
        # its position join.
        return self.position == watcher.next_revision

    def join(self, watcher: ClientWatcher) -> None:
        """Add a watcher, which receives the events from now on."""
        watcher.broadcast = self
        self._counters.watchers_coalesced += bool(self.members)
        self.members[watcher] = None
        self._groups = None
        self.ceiling = max(self.ceiling, watcher.next_revision)

    def leave(self, watcher: ClientWatcher, next_revision: int) -> None:
        """Remove a watcher that has had all events below `next_revision`."""
        del self.members[watcher]
        self._groups = None
        self._counters.watchers_coalesced -= bool(self.members)
        watcher.broadcast = None
        watcher.next_revision = max(watcher.next_revision, next_revision)

    def deliver(self, response: ParsedResponse, outgoing: "Outgoing") -> None:
        """Send a message's events to the watchers."""
        events = response.events
        before = self.position
        if events[0].revision < before:
            # A resumed watch starts with a revision that was delivered already.
            events = [event for event in events if event.revision >= before]
            if not events:
                return
        first, last = events[0].revision, events[-1].revision
        self.position = last + 1
        batch = EventBatch(response.header, events)
        is_cut, is_long = self.ceiling > first, batch.is_long
        is_small = batch.bytes * len(self.members) <= FAN_OUT_BYTES_MAX
        if is_small and not is_cut and not is_long:
            if self._groups is None or self._times_full != outgoing.times_full:
                self._find_groups(outgoing)
            if self._groups is not None and not outgoing.is_full:
                for watcher, calls in self._groups:
                    if shared := batch.response(watcher):
                        outgoing.send_to_all(calls, shared)
                return
        whole = batch.whole
        behind: list[ClientWatcher] = []
        for watcher in self.members:
            stream = watcher.stream
            if stream.is_full or outgoing.is_full:
                behind.append(watcher)
            elif is_cut and watcher.next_revision > first:
                if watcher.next_revision <= last:
                    outgoing.add_all(stream.call, batch.responses_from(watcher))
            elif is_long and watcher.is_fragmented:
                outgoing.add_all(stream.call, batch.fragments(watcher))
            else:
                encoded = whole.get(watcher.variant)
                if encoded is None:
                    encoded = batch.response(watcher)
                if encoded:
                    outgoing.add(stream.call, encoded)
        for watcher in behind:
            self.leave(watcher, before)
            watcher.stream.fall_behind(watcher)

    def _find_groups(self, outgoing: "Outgoing") -> None:
        """Group the calls that receive the same bytes, unless a client is slow."""
        found: dict[bytes, tuple[ClientWatcher, list[int]]] = {}
        self._groups, self._times_full = None, outgoing.times_full
        for watcher in self.members:
            if watcher.stream.is_full:
                return
            found.setdefault(watcher.variant, (watcher, []))[1].append(watcher.stream.call)
        self._groups = list(found.values())


class EventBatch:
    """The events of one message, and the responses made of them so far."""

    __slots__ = ("_bodies", "_events", "_header", "bytes", "is_long", "whole")

    def __init__(self, header: bytes, events: Sequence[EncodedEvent]) -> None:
        self._header = header
        self._events = events
        self._bodies: dict[int, bytes] = {}
        self.whole: dict[bytes, bytes] = {}
        """Responses with all events, by variant; empty bytes if the filters remove all events."""
        self.bytes = sum([len(event.field) for event in events]) + _HEAD_BYTES_MAX
        """Upper bound for the size of a response."""
        self.is_long = self.bytes >= FRAGMENT_BYTES_MAX
        """Whether a response may be large enough for fragments."""

    def response(self, watcher: ClientWatcher) -> bytes:
        """Return the response with all events that pass a watcher's filters."""
        selection = watcher.selection & ~PROGRESS
        body = self._bodies.get(selection)
        if body is None:
            body = b"".join(_select_fields(self._events, selection))
            self._bodies[selection] = body
        response = self._header + watcher.id_field + body if body else b""
        self.whole[watcher.variant] = response
        return response

    def responses_from(self, watcher: ClientWatcher) -> list[bytes]:
        """Return the responses to a watcher that needs only events from `next_revision` on."""
        events = self._events
        first = bisect_left(events, watcher.next_revision, key=lambda event: event.revision)
        return self._encode(watcher, events[first:])

    def fragments(self, watcher: ClientWatcher) -> list[bytes]:
        """Return the responses to a watcher that takes them in fragments."""
        return self._encode(watcher, self._events)

    def _encode(self, watcher: ClientWatcher, events: Sequence[EncodedEvent]) -> list[bytes]:
        fields = _select_fields(events, watcher.selection)
        if not fields:
            return []
        if watcher.is_fragmented:
            return watch_fragments(self._header, watcher.id_field, fields, FRAGMENT_BYTES_MAX)
        return [b"".join((self._header, watcher.id_field, *fields))]


def _select_fields(events: Sequence[EncodedEvent], selection: int) -> list[bytes]:
    if selection & _FILTERS:
        unwanted = (selection & NO_PUT != 0, selection & NO_DELETE != 0)
        events = [event for event in events if not unwanted[event.is_deletion]]
    if selection & PREV_KV:
        return [event.field for event in events]
    return [event.plain for event in events]
