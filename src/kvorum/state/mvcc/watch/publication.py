"""Publishes one write transaction to the synced watchers in bounded steps.

Rules: `match_some` matches a bounded number of changes per call; the hub then sends them to one
matching watcher after another. Between two calls watchers may come, go, or catch up, so the hub
checks each watcher again before sending.
"""

from collections.abc import Iterator, Sequence

from kvorum.state.mvcc.watch.batch import ChangeBatch, Match
from kvorum.state.mvcc.watch.history import Change
from kvorum.state.mvcc.watch.matching import RangeWatchers, WatchedRanges
from kvorum.state.mvcc.watch.watcher import Watcher


class Publication:
    """A transaction's changes, their matches so far, and the watchers still to be served."""

    __slots__ = ("_batch", "_matches", "_position", "main", "targets")

    def __init__(self, main: int, changes: Sequence[Change]) -> None:
        self.main = main
        self.targets: Iterator[tuple[Watcher, Match]] = iter(())
        """The watchers to send to, each once; empty until every change is matched."""
        self._batch = ChangeBatch(changes)
        self._matches: dict[RangeWatchers[Watcher], Match] = {}
        self._position = 0

    def match_some(self, ranges: WatchedRanges[Watcher], changes_max: int) -> bool:
        """Match at most `changes_max` more changes; return True when all are matched."""
        changes, matches = self._batch.changes, self._matches
        if self._position == len(changes):
            return True
        end = min(self._position + changes_max, len(changes))
        for index in range(self._position, end):
            for entry in ranges.matching(changes[index][0]):
                match = matches.get(entry)
                if match is None:
                    match = matches[entry] = Match(self._batch, [])
                match.indexes.append(index)
        self._position = end
        if end < len(changes):
            return False
        self.targets = _targets(matches)
        return True


def _targets(matches: dict[RangeWatchers[Watcher], Match]) -> Iterator[tuple[Watcher, Match]]:
    for entry in tuple(matches):
        # Free the matches one by one: freeing a hundred thousand at the end would take long.
        match = matches.pop(entry)
        # Sending may remove a watcher from its entry.
        for watcher in tuple(entry.watchers):
            yield watcher, match
