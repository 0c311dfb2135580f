"""Finds the watchers of a key in three tables, so that a change needs few lookups.

Rules: each range is normalised once, when its watcher is created. Single keys are in a dictionary;
prefixes in one dictionary per length, so a key needs one lookup per length up to its own; other
intervals in a tree. Watchers of one range share one entry. Keys are never empty, so the empty
prefix matches every key.
"""

from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from kvorum.api.ranges import prefix_end
from kvorum.state.mvcc.watch import intervals

T = TypeVar("T")


class RangeKind(IntEnum):
    """The table a range belongs to."""

    KEY = 0
    PREFIX = 1
    INTERVAL = 2


class NormalRange(NamedTuple):
    """A normalised range. `end` is empty for an interval without an end."""

    kind: RangeKind
    begin: bytes
    end: bytes = b""


def key_range(key: bytes, range_end: bytes) -> NormalRange | None:
    """Normalise a request's range; return None if no key can be in it.

    An empty `key` means the smallest key. As everywhere in the API, an empty `range_end` means
    the single key and one zero byte means all keys from `key` on.
    """
    key = key or b"\0"
    if not range_end or range_end == key + b"\0":
        return NormalRange(RangeKind.KEY, key)
    if range_end == b"\0" == key:
        return NormalRange(RangeKind.PREFIX, b"")
    if range_end != b"\0" and key >= range_end:
        return None
    if range_end == prefix_end(key):
        return NormalRange(RangeKind.PREFIX, key)
    return NormalRange(RangeKind.INTERVAL, key, b"" if range_end == b"\0" else range_end)


class RangeWatchers(Generic[T]):
    """The watchers of one range, in the order in which they were added."""

    __slots__ = ("audience", "watchers")

    def __init__(self) -> None:
        self.watchers: dict[T, None] = {}
        self.audience: DeliveryGroups[T] | None = None
        """The same watchers grouped by response bytes; None until the hub computes it."""


class DeliveryGroups(Generic[T]):
    """Watchers that need no individual checks, and the calls that they belong to."""

    __slots__ = ("groups", "pauses")

    def __init__(self, groups: list[tuple[T, list[int]]], pauses: int) -> None:
        self.groups = groups
        """Per response: one watcher that represents its group, and the calls of the whole group."""
        self.pauses = pauses
        """The hub's count of pauses when this was computed; any later pause makes it stale."""


class WatchedRanges(Generic[T]):
    """Holds the three tables. Callers may read `keys` and `has_wide` directly, for speed."""

    __slots__ = ("_intervals", "_prefixes", "count", "has_wide", "keys")

    def __init__(self) -> None:
        self.count = 0
        """Watchers in all entries."""
        self.keys: dict[bytes, RangeWatchers[T]] = {}
        self.has_wide = False
        """Whether any range covers more than a single key."""
        # Pairs of a length and its table, shortest first.
        self._prefixes: list[tuple[int, dict[bytes, RangeWatchers[T]]]] = []
        self._intervals: intervals.Tree[RangeWatchers[T]] = None

    def add(self, where: NormalRange, watcher: T) -> RangeWatchers[T]:
        """Add a new watcher and return the entry that it shares."""
        entry = self._find(where)
        if entry is None:
            entry = RangeWatchers()
            self._insert(where, entry)
        assert watcher not in entry.watchers, f"watched twice: {where}"
        entry.watchers[watcher] = None
        entry.audience = None
        self.count += 1
        return entry

    def remove(self, where: NormalRange, watcher: T) -> None:
        """Remove an existing watcher, and its entry if no watcher is left."""
        entry = self._find(where)
        assert entry is not None, f"not watched: {where}"
        del entry.watchers[watcher]
        entry.audience = None
        self.count -= 1
        if not entry.watchers:
            self._delete(where)

    def matching(self, key: bytes) -> list[RangeWatchers[T]]:
        """Return the entries whose range contains a key: the key itself, prefixes, intervals."""
        entry = self.keys.get(key)
        found = [] if entry is None else [entry]
        if self.has_wide:
            size = len(key)
            for length, table in self._prefixes:
                if length > size:
                    break
                entry = table.get(key[:length])
                if entry is not None:
                    found.append(entry)
            intervals.holding(self._intervals, key, found)
        return found

    def entries(self) -> list[RangeWatchers[T]]:
        """Return every entry."""
        found = list(self.keys.values())
        for _, table in self._prefixes:
            found.extend(table.values())
        waiting = [self._intervals]
        while waiting:
            node = waiting.pop()
            if node is not None:
                found.append(node.item)
                waiting += (node.right, node.left)
        return found

    def _find(self, where: NormalRange) -> RangeWatchers[T] | None:
        if where.kind is RangeKind.KEY:
            return self.keys.get(where.begin)
        if where.kind is RangeKind.PREFIX:
            for length, table in self._prefixes:
                if length == len(where.begin):
                    return table.get(where.begin)
            return None
        return intervals.find(self._intervals, where.begin, where.end)

    def _insert(self, where: NormalRange, entry: RangeWatchers[T]) -> None:
        if where.kind is RangeKind.KEY:
            self.keys[where.begin] = entry
            return
        self.has_wide = True
        if where.kind is RangeKind.INTERVAL:
            self._intervals = intervals.insert(self._intervals, where.begin, where.end, entry)
            return
        for length, table in self._prefixes:
            if length == len(where.begin):
                table[where.begin] = entry
                return
        self._prefixes.append((len(where.begin), {where.begin: entry}))
        self._prefixes.sort(key=_length)

    def _delete(self, where: NormalRange) -> None:
        if where.kind is RangeKind.KEY:
            del self.keys[where.begin]
            return
        if where.kind is RangeKind.INTERVAL:
            self._intervals = intervals.remove(self._intervals, where.begin, where.end)
        else:
            for index, (length, table) in enumerate(self._prefixes):
                if length == len(where.begin):
                    del table[where.begin]
                    if not table:
                        del self._prefixes[index]
                    break
        self.has_wide = bool(self._prefixes) or self._intervals is not None


def _length(pair: tuple[int, object]) -> int:
    return pair[0]
