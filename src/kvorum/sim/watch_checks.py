"""The nine promises of a watch, each by its name, against the history.

| promise | what it means |
| --- | --- |
| filter | only events of the range, of the wanted kinds, from the watcher's first revision on |
| ordered | revisions never go back |
| unique | no event comes twice |
| atomic | the events of a revision come in one response |
| bookmarkable | after a bookmark for a revision, nothing of it or before it follows |
| reliable | there is no gap |
| resumable | nor where a connection ended and the next one continued |
| prev_kv | the previous value is the history's |
| is-create | an event says correctly whether its key is new |
"""

from collections.abc import Sequence
from itertools import pairwise

from kvorum.api.pb.mvccpb import Event
from kvorum.sim.history import History, Row, is_in_range
from kvorum.sim.watchers import Got, Watcher
from kvorum.state.mvcc.keyvalue import key_of, value_of


def check_watcher(watcher: Watcher, history: History) -> None:
    """Compare the responses that a watcher got with the history."""
    _check_filter(watcher)
    _check_order(watcher)
    _check_bookmarks(watcher)
    _check_atomic(watcher)
    _check_complete(watcher, history)
    for got in watcher.got:
        for event in got.events:
            _check_event(watcher, history, event)


def _check_filter(watcher: Watcher) -> None:
    for got in watcher.got:
        for event in got.events:
            kv = event.kv
            if not is_in_range(kv.key, watcher.key, watcher.end) or event.type in watcher.filters:
                watcher.violate("filter", f"got {event!r}, which it does not want")
            if kv.mod_revision < watcher.first:
                watcher.violate("filter", f"got {event!r}, and watches from {watcher.first}")


def _check_order(watcher: Watcher) -> None:
    seen: set[tuple[int, bytes]] = set()
    last = 0
    for got in watcher.got:
        for event in got.events:
            main = event.kv.mod_revision
            if (main, event.kv.key) in seen:
                watcher.violate("unique", f"got {event.kv.key!r} of revision {main} twice")
            seen.add((main, event.kv.key))
            if main < last:
                watcher.violate("ordered", f"got revision {main} after {last}")
            if main > got.revision:
                watcher.violate("ordered", f"got revision {main} under header {got.revision}")
            last = main


def _check_bookmarks(watcher: Watcher) -> None:
    complete = 0
    for got in watcher.got:
        for event in got.events:
            if event.kv.mod_revision <= complete:
                watcher.violate(
                    "bookmarkable",
                    f"was told that {complete} is complete, then got {event.kv.mod_revision}",
                )
        if not got.events:
            complete = max(complete, got.revision)


def _check_atomic(watcher: Watcher) -> None:
    for one, other in pairwise(got for got in watcher.got if got.events):
        main = one.events[-1].kv.mod_revision
        if other.events[0].kv.mod_revision == main:
            watcher.violate("atomic", f"got the events of revision {main} in two responses")


def _check_complete(watcher: Watcher, history: History) -> None:
    if not watcher.first:
        return

    def is_skipped(main: int) -> bool:
        return any(low <= main <= high for low, high in watcher.skipped)

    expected = [
        row
        for row in history.changes(watcher.first, watcher.next - 1, watcher.key, watcher.end)
        if watcher.wants(row) and not is_skipped(row[0] >> 32)
    ]
    # The watcher may have got the first part of what was compacted while it was away.
    got = [
        (event, response)
        for response in watcher.got
        for event in response.events
        if not is_skipped(event.kv.mod_revision)
    ]
    for place, row in enumerate(expected):
        if place >= len(got) or not _is_event_of(got[place][0], row):
            _missed(watcher, row, got[place:])
    if len(got) > len(expected):
        watcher.violate("reliable", f"got {got[len(expected)][0]!r}, which the history lacks")


def _missed(watcher: Watcher, row: Row, rest: Sequence[tuple[Event, Got]]) -> None:
    main, key = row[0] >> 32, key_of(row[1])
    following = rest[0][0] if rest else None
    if following is not None and following.kv.mod_revision == main and following.kv.key == key:
        watcher.violate("reliable", f"got {following!r}, where the history has {row!r}")
    # If the first event that a connection wanted did not come, it was lost between connections.
    resumed = {got.wanted for place, got in enumerate(watcher.got) if _is_first(watcher, place)}
    promise = "resumable" if main in resumed and watcher.connections > 1 else "reliable"
    watcher.violate(promise, f"missed {key!r} of revision {main}; next it got {following!r}")


def _is_first(watcher: Watcher, place: int) -> bool:
    return place > 0 and watcher.got[place].connection != watcher.got[place - 1].connection


def _is_event_of(event: Event, row: Row) -> bool:
    main, kv = row[0] >> 32, row[1]
    if event.kv.mod_revision != main or event.kv.key != key_of(kv):
        return False
    if row[0] & 1:
        return event.type == Event.DELETE
    return event.type == Event.PUT and event.kv.value == value_of(kv)


def _check_event(watcher: Watcher, history: History, event: Event) -> None:
    main = event.kv.mod_revision
    before = history.at(event.kv.key, main - 1)
    if event.type == Event.PUT:
        is_new = event.kv.create_revision == main and event.kv.version == 1
        if is_new != (before is None):
            watcher.violate("is-create", f"got {event!r}, before it there was {before!r}")
        if event.kv.SerializeToString() != history.at(event.kv.key, main):
            watcher.violate("reliable", f"got {event!r}, which is not what was written")
    if event.HasField("prev_kv"):
        if not watcher.has_prev_kv:
            watcher.violate("prev_kv", f"got {event!r}, and had not asked for the value before")
        if event.prev_kv.SerializeToString() != before:
            watcher.violate("prev_kv", f"got {event!r}, before it there was {before!r}")
    elif watcher.has_prev_kv and before is not None and main > history.compacted:
        # Below a compaction the previous value may be gone.
        watcher.violate("prev_kv", f"got {event!r} without the value before, {before!r}")
