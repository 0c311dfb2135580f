"""Catching up: reads a bounded piece of history once for many watchers.

Rules: a piece begins at the revision that one of the watchers needs next, ends at the end of a
revision, and has at most 1,000 revisions and, unless one revision alone is larger, 1,000 rows and
about 4 MiB. Several calls read and match a larger revision. The hub abandons the piece if the store
compacts past its beginning or is replaced.
"""

from collections.abc import Iterator

from kvorum.api.codec import read_varint
from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc.watch.batch import ChangeBatch, Match
from kvorum.state.mvcc.watch.history import MAIN_SHIFT, UNKNOWN, Change, History
from kvorum.state.mvcc.watch.matching import RangeWatchers, WatchedRanges
from kvorum.state.mvcc.watch.watcher import Watcher


class CatchUp:
    """One piece of history and the watchers that may need it."""

    __slots__ = (
        "_batch",
        "_changes",
        "_entries",
        "_is_ready",
        "_limits",
        "_matches",
        "_position",
        "_ranges",
        "_rows",
        "_watchers",
        "ahead",
        "first",
        "served_revision",
        "store_revision",
        "targets",
    )

    def __init__(self, watchers: list[Watcher], first: int, limits: WorkLimits) -> None:
        self.targets: Iterator[tuple[Watcher, Match | None]] = iter(())
        """Watchers to send to, each with the part of the piece that lies in its range."""
        self.ahead: list[Watcher] = []
        """Targets whose next revision lies beyond the piece; the hub puts them here."""
        self.first = first
        """The first main revision of the piece."""
        self.served_revision = 0
        """The last main revision of the piece; 0 until it is read."""
        self.store_revision = 0
        """The store's revision when the piece was read."""
        self._limits = limits
        self._watchers = watchers
        self._is_ready = False
        self._ranges: WatchedRanges[Watcher] = WatchedRanges()
        self._entries = [self._ranges.add(watcher.where, watcher) for watcher in watchers]
        self._rows: list[tuple[int, bytes]] = []
        self._changes: list[Change] = []
        self._batch = ChangeBatch(self._changes)
        self._matches: dict[RangeWatchers[Watcher], Match] = {}
        self._position = 0

    def advance(self, history: History) -> bool:
        """Read and match some more; return True when the piece is ready for its `targets`."""
        if not self.served_revision and not self._read(history):
            return False
        if not self._is_ready:
            self._match()
            if self._position < len(self._rows):
                return False
            found = map(self._matches.get, self._entries)
            self.targets = iter(list(zip(self._watchers, found, strict=True)))
            self._is_ready = True
        return True

    def unserved(self) -> list[Watcher]:
        """Return the watchers that have not received the piece."""
        if not self._is_ready:
            return self._watchers
        return self.ahead + [watcher for watcher, _ in self.targets]

    def _read(self, history: History) -> bool:
        """Read rows up to the end of a revision; return False if that takes another call."""
        rows, limits = self._rows, self._limits
        rows_max = limits.watch_history_rows_max
        target = self.store_revision = history.revision
        last = ((target + 1) << MAIN_SHIFT) - 1
        already = len(rows)
        # Growing reads detect large values before hundreds of them are in memory.
        limit = limits.watch_history_first_read_rows
        size = 0
        while len(rows) - already < rows_max:
            first = rows[-1][0] + 1 if rows else self.first << MAIN_SHIFT
            limit = min(2 * limit, rows_max - (len(rows) - already))
            found = history.backend.scan_rows(first, last, limit)
            rows += found
            if len(found) < limit:
                self.served_revision = target
                return True
            size += sum(len(kv) for _, kv in found)
            if size >= limits.watch_history_bytes_max:
                break
        # More rows of the last revision may follow, so it belongs to the next piece, unless the
        # rows read so far have no other revision.
        incomplete = rows[-1][0] >> MAIN_SHIFT
        if rows[0][0] >> MAIN_SHIFT == incomplete:
            return False
        self.served_revision = incomplete - 1
        while rows[-1][0] >> MAIN_SHIFT == incomplete:
            rows.pop()
        return True

    def _match(self) -> None:
        rows, changes = self._rows, self._changes
        end = min(self._position + self._limits.watch_history_rows_max, len(rows))
        for index in range(self._position, end):
            revision, kv = rows[index]
            # An empty row only raised the revision: it has no key and matches no watcher.
            key = _key_of(kv) if kv else b""
            changes.append((key, revision, kv, UNKNOWN))
            if not kv:
                continue
            for entry in self._ranges.matching(key):
                match = self._matches.get(entry)
                if match is None:
                    match = self._matches[entry] = Match(self._batch, [])
                match.indexes.append(index)
        self._position = end


def _key_of(kv: bytes) -> bytes:
    """Return the key of an encoded KeyValue, which is its first field."""
    assert kv[0] == 0x0A, f"a stored row does not begin with its key: {kv[:16]!r}"
    length, start = read_varint(kv, 1)
    return kv[start : start + length]
