"""Which watchers want a key: three tables, so that a change needs few lookups.

Rules: a range is put into its simplest form once, when the watcher is created. Single keys are
looked up in a dictionary; prefixes in one dictionary per length, for every length up to the key's;
other intervals in a tree. Watchers of one range share one entry. Keys are never empty, so the empty
prefix is every key.
"""

from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from kvorum.api.ranges import prefix_end
from kvorum.mvcc.watch import intervals

T = TypeVar("T")


class Kind(IntEnum):
    """The table a range belongs to."""

    KEY = 0
    PREFIX = 1
    INTERVAL = 2


class KeyRange(NamedTuple):
    """A range in its simplest form. An interval without an end has `end` empty."""

    kind: Kind
    begin: bytes
    end: bytes = b""


def key_range(key: bytes, range_end: bytes) -> KeyRange | None:
    """Give a request's range its simplest form; None if no key can be in it.

    An empty key is the smallest one. `range_end` is as everywhere in the API: empty for the
    single key, one zero byte for all keys from `key` on.
    """
    key = key or b"\0"
    if not range_end or range_end == key + b"\0":
        return KeyRange(Kind.KEY, key)
    if range_end == b"\0" == key:
        return KeyRange(Kind.PREFIX, b"")
    if range_end != b"\0" and key >= range_end:
        return None
    if range_end == prefix_end(key):
        return KeyRange(Kind.PREFIX, key)
    return KeyRange(Kind.INTERVAL, key, b"" if range_end == b"\0" else range_end)


class Entry(Generic[T]):
    """The watchers of one range, in the order in which they were added."""

    __slots__ = ("audience", "watchers")

    def __init__(self) -> None:
        self.watchers: dict[T, None] = {}
        self.audience: Audience[T] | None = None
        """The same watchers by what they are sent, where that is known."""


class Audience(Generic[T]):
    """Watchers of which none needs a look of its own, and the calls that they belong to."""

    __slots__ = ("groups", "pauses")

    def __init__(self, groups: list[tuple[T, list[int]]], pauses: int) -> None:
        self.groups = groups
        """One of those who are sent the same bytes, and the calls of all of them."""
        self.pauses = pauses
        """How often streams had been paused when no stream of these was."""


class WatchedRanges(Generic[T]):
    """The three tables. Callers may read `keys` and `has_wide` directly, for speed."""

    __slots__ = ("_intervals", "_prefixes", "count", "has_wide", "keys")

    def __init__(self) -> None:
        self.count = 0
        """Watchers in all entries."""
        self.keys: dict[bytes, Entry[T]] = {}
        self.has_wide = False
        """Whether any range is more than a single key."""
        # Pairs of a length and its table, shortest first.
        self._prefixes: list[tuple[int, dict[bytes, Entry[T]]]] = []
        self._intervals: intervals.Tree[Entry[T]] = None

    def add(self, where: KeyRange, watcher: T) -> Entry[T]:
        """Add a watcher, which must not be there, and return the entry it shares."""
        entry = self._find(where)
        if entry is None:
            entry = Entry()
            self._insert(where, entry)
        assert watcher not in entry.watchers, f"watched twice: {where}"
        entry.watchers[watcher] = None
        entry.audience = None
        self.count += 1
        return entry

    def remove(self, where: KeyRange, watcher: T) -> None:
        """Remove a watcher, which must be there, and the entry with its last watcher."""
        entry = self._find(where)
        assert entry is not None, f"not watched: {where}"
        del entry.watchers[watcher]
        entry.audience = None
        self.count -= 1
        if not entry.watchers:
            self._delete(where)

    def matching(self, key: bytes) -> list[Entry[T]]:
        """Return the entries whose range holds a key: the key itself, prefixes, intervals."""
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

    def entries(self) -> list[Entry[T]]:
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

    def _find(self, where: KeyRange) -> Entry[T] | None:
        if where.kind is Kind.KEY:
            return self.keys.get(where.begin)
        if where.kind is Kind.PREFIX:
            for length, table in self._prefixes:
                if length == len(where.begin):
                    return table.get(where.begin)
            return None
        return intervals.find(self._intervals, where.begin, where.end)

    def _insert(self, where: KeyRange, entry: Entry[T]) -> None:
        if where.kind is Kind.KEY:
            self.keys[where.begin] = entry
            return
        self.has_wide = True
        if where.kind is Kind.INTERVAL:
            self._intervals = intervals.insert(self._intervals, where.begin, where.end, entry)
            return
        for length, table in self._prefixes:
            if length == len(where.begin):
                table[where.begin] = entry
                return
        self._prefixes.append((len(where.begin), {where.begin: entry}))
        self._prefixes.sort(key=_length)

    def _delete(self, where: KeyRange) -> None:
        if where.kind is Kind.KEY:
            del self.keys[where.begin]
            return
        if where.kind is Kind.INTERVAL:
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
