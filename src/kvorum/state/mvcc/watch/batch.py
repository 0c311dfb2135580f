"""Encodes each event once for all watchers that receive it.

Rules: a batch holds whole revisions in order. A match is the part of a batch that lies in one
range. Watchers of that range with the same options and the same first event share the encoded
events; watchers that also have the same watch id, on any streams, share the whole response.
"""

from bisect import bisect_left
from collections.abc import Sequence

from kvorum.api.responses import event_field, watch_fragments
from kvorum.state.mvcc.watch.history import MAIN_SHIFT, UNKNOWN, Change, History
from kvorum.state.mvcc.watch.watcher import NO_DELETE, NO_PUT, PREV_KV, Watcher


class ChangeBatch:
    """Changes, and their events encoded so far."""

    __slots__ = ("_events", "_events_with_previous", "changes")

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self._events: dict[int, bytes] = {}
        self._events_with_previous: dict[int, bytes] = {}

    def event(self, index: int) -> bytes:
        """Return the encoded event of a change."""
        event = self._events.get(index)
        if event is None:
            key, revision, kv, _ = self.changes[index]
            event = event_field(key, revision >> MAIN_SHIFT, kv, bool(revision & 1), None)
            self._events[index] = event
        return event

    def event_with_previous(self, index: int, history: History) -> bytes:
        """Return the encoded event, with the previous value if one exists and is not compacted."""
        event = self._events_with_previous.get(index)
        if event is None:
            change = self.changes[index]
            prev_kv = _value_before(change, history)
            if prev_kv is None:
                event = self.event(index)
            else:
                key, revision, kv, _ = change
                event = event_field(key, revision >> MAIN_SHIFT, kv, bool(revision & 1), prev_kv)
            self._events_with_previous[index] = event
        return event


def _value_before(change: Change, history: History) -> bytes | None:
    """Return a key's value before the transaction that changed it; None if absent or compacted."""
    key, revision, _, previous = change
    main = revision >> MAIN_SHIFT
    if not previous or main - 1 < history.compacted_revision:
        return None
    if previous == UNKNOWN:
        return history.get(key, main - 1)
    assert previous >> MAIN_SHIFT < main, f"{previous:x} is not before the transaction {main}"
    return history.row(previous)


class Match:
    """The changes of a batch that lie in one range, by their indexes."""

    __slots__ = ("_batch", "_bodies", "_later", "indexes", "whole")

    def __init__(self, batch: ChangeBatch, indexes: list[int]) -> None:
        self._batch = batch
        self.indexes = indexes
        self._bodies: dict[tuple[int, int], list[bytes]] = {}
        self.whole: dict[bytes, tuple[list[bytes], int]] = {}
        """Responses for watchers that need every change of the match, by `Watcher.variant`."""
        # Responses for watchers that need only later changes, by (first event's index, variant).
        self._later: dict[tuple[int, bytes], tuple[list[bytes], int]] = {}

    def responses(
        self, watcher: Watcher, header: bytes, history: History, fragment_bytes_max: int
    ) -> tuple[list[bytes], int]:
        """Return a watcher's responses (none, one, or fragments of one) and their number of events.

        Every call for one match must pass the same header.
        """
        changes, indexes = self._batch.changes, self.indexes
        first = 0
        if changes[indexes[0]][1] >> MAIN_SHIFT < watcher.next_revision:
            needed = watcher.next_revision << MAIN_SHIFT
            first = bisect_left(indexes, needed, key=lambda index: changes[index][1])
        if watcher.is_fragmented:
            events = self._body(first, watcher.selection, history)
            if not events:
                return [], 0
            found = watch_fragments(header, watcher.id_field, events, fragment_bytes_max)
            return found, len(events)
        variant = watcher.variant
        made = self._later.get((first, variant)) if first else self.whole.get(variant)
        if made is None:
            events = self._body(first, watcher.selection, history)
            response = [b"".join((header, watcher.id_field, *events))] if events else []
            made = response, len(events)
            if first:
                self._later[first, variant] = made
            else:
                self.whole[variant] = made
        return made

    def _body(self, first: int, selection: int, history: History) -> list[bytes]:
        events = self._bodies.get((first, selection))
        if events is None:
            wanted = self.indexes[first:] if first else self.indexes
            if selection & (NO_PUT | NO_DELETE):
                changes = self._batch.changes
                unwanted = (NO_PUT, NO_DELETE)
                wanted = [i for i in wanted if not selection & unwanted[changes[i][1] & 1]]
            if selection & PREV_KV:
                events = [self._batch.event_with_previous(i, history) for i in wanted]
            else:
                events = [self._batch.event(i) for i in wanted]
            self._bodies[first, selection] = events
        return events
