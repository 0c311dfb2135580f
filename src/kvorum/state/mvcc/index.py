"""The in-memory index: the revisions of each key, and the keys in order.

The rules of this module:

- Every key that has a revision is in `entries`, and in exactly one of two sorted sets: `live`
  if its newest revision is a put, `ended` if it is a tombstone that is not compacted yet.
- `key_changes` records keys that moved between the sets recently, so that `count_at` can count the
  keys of an older state without visiting each.
- The index may be ahead of readers: it already has uncommitted writes. A read of the newest state
  uses only `live`; a read at an older revision walks both sets and looks up each key's newest
  revision up to a limit.
- The dict and the set share one bytes object per key.

Ranges are [first, end); an end of None means all keys from first on.
"""

from itertools import islice
from sys import getsizeof
from typing import Final

from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc import history
from kvorum.state.mvcc.history import Entry, KeyFacts
from kvorum.state.mvcc.key_changes import CHANGES_PER_KEY, KeyChanges
from kvorum.state.mvcc.slices import Slices
from kvorum.state.mvcc.sortedkeys import SortedKeys

KEYS_SAMPLED: Final = 256
"""Keys whose sizes `size_bytes` extrapolates to all keys."""
PLACE_BYTES: Final = 8
"""Bytes of one reference in a sorted set."""


def range_end(key: bytes, end: bytes) -> bytes | None:
    r"""Convert a request's range end: b"" means the key alone, b"\0" no end."""
    if not end:
        return key + b"\0"
    return None if end == b"\0" else end


class Index:
    """Keys, their revisions, and their order."""

    __slots__ = ("_limits", "ended", "entries", "key_changes", "live", "newest_revision")

    def __init__(self, limits: WorkLimits) -> None:
        self._limits = limits
        self.entries: dict[bytes, Entry] = {}
        self.live = SortedKeys(limits)
        self.ended = SortedKeys(limits)
        self.key_changes = KeyChanges()
        self.newest_revision = 0  # of all keys, including uncommitted writes

    @property
    def size_bytes(self) -> int:
        """Estimated memory in bytes, extrapolated from some of the keys."""
        some = list(islice(self.entries.items(), KEYS_SAMPLED))
        if not some:
            return 0
        sampled = sum(getsizeof(key) + getsizeof(entry) for key, entry in some)
        each = sampled // len(some) + PLACE_BYTES
        return getsizeof(self.entries) + each * len(self.entries)

    def put(self, key: bytes, revision: int) -> tuple[int, int, int]:
        """Record a put; return create revision, version and the key's previous revision, or 0.

        The previous revision may be a tombstone.
        """
        self.newest_revision = revision
        entry = self.entries.get(key)
        if entry is None:
            self.entries[key] = revision
            self.live.add(key)
            self.key_changes.note(revision, key)
            return revision >> 32, 1, 0
        self.entries[key], create, version, previous = history.appended(entry, revision)
        if previous & 1:
            held = self.ended.remove(key)
            self.live.add(held)
            self.key_changes.note(revision, held)
        return create, version, previous

    def delete_run(self, keys: list[bytes], first: int) -> list[int]:
        """Record tombstones of neighbouring live keys, in order; return the previous revisions.

        The first key gets the tombstone revision `first`, and each further key the next sub
        revision.
        """
        entries = self.entries
        before = []
        assert keys, "nothing to delete"
        self.key_changes.note_ends(first, keys)
        for key in keys:
            entries[key], _, _, previous = history.appended(entries[key], first)
            before.append(previous)
            first += 2
        self.newest_revision = first - 2
        self.live.remove_run(keys)
        self.ended.add_run(keys)
        return before

    def newest(self, key: bytes) -> int:
        """Return the newest revision of a key; 0 if it has none or it is a tombstone."""
        entry = self.entries.get(key)
        if isinstance(entry, int):
            return 0 if entry & 1 else entry
        if entry is None:
            return 0
        revision = history.newest(entry)
        return 0 if revision & 1 else revision

    def at(self, key: bytes, limit: int) -> int:
        """Return the newest revision of a key up to a limit; 0 if it has none or was deleted."""
        entry = self.entries.get(key)
        return 0 if entry is None else history.at(entry, limit)

    def facts(self, key: bytes, limit: int) -> KeyFacts | None:
        """Return the facts of a key's newest revision up to a limit, if that is a put."""
        entry = self.entries.get(key)
        return None if entry is None else history.facts(entry, limit)

    def create_revisions_of(self, keys: list[bytes], limit: int) -> list[int]:
        """Return the create revisions of keys that are live at a revision."""
        of_many = self._create_revision
        return [
            entry >> 32 if isinstance(entry, int) else of_many(entry, limit)
            for entry in map(self.entries.__getitem__, keys)
        ]

    def versions_of(self, keys: list[bytes], limit: int) -> list[int]:
        """Return the versions of keys that are live at a revision."""
        of_many = self._version
        return [
            1 if isinstance(entry, int) else of_many(entry, limit)
            for entry in map(self.entries.__getitem__, keys)
        ]

    def _create_revision(self, entry: Entry, limit: int) -> int:
        facts = history.facts(entry, limit)
        assert facts is not None, f"a key vanished at revision {limit >> 32}"
        return facts.create_revision

    def _version(self, entry: Entry, limit: int) -> int:
        facts = history.facts(entry, limit)
        assert facts is not None, f"a key vanished at revision {limit >> 32}"
        return facts.version

    def count_at(self, first: bytes, end: bytes | None, limit: int) -> Slices[int]:
        """Return how many keys of a range are live at a revision; -1 if visiting each is cheaper.

        Changes made while the generator is suspended do not affect the result.
        """
        live, key_changes = self.live.count(first, end), self.key_changes
        if self.newest_revision <= limit:
            return live
        keys = live + self.ended.count(first, end)
        if limit < key_changes.since or key_changes.changes_after(limit) > CHANGES_PER_KEY * keys:
            return -1
        return live - (yield from key_changes.growth(first, end, limit, self._limits.slice_keys))

    def newest_of(self, keys: list[bytes]) -> list[int]:
        """Return the newest revisions of live keys."""
        from_bytes, record = int.from_bytes, -history.RECORD_BYTES
        return [
            entry if isinstance(entry, int) else from_bytes(entry[record:], "big")
            for entry in map(self.entries.__getitem__, keys)
        ]

    def run(self, first: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Return the first keys of a range, live or ended, at most `limit`."""
        ended = self.ended.run(first, end, limit)
        live = self.live.run(first, end, limit)
        if not ended:
            return live
        return sorted(live + ended)[:limit]

    def compact_run(self, keys: list[bytes], main: int) -> bytes:
        """Remove the revisions of these keys that a compaction drops; return their records."""
        entries = self.entries
        dropped = []
        gone = []
        for key in keys:
            entry = entries[key]
            if isinstance(entry, int) and not entry & 1:
                continue
            left, lost = history.compact_entry(entry, main)
            if not lost:
                continue
            dropped.append(lost)
            if left is None:
                del entries[key]
                gone.append(key)
            else:
                entries[key] = left
        self.ended.remove_run(gone)
        return b"".join(dropped)

    def restore(self, key: bytes, revision: int, create: int, version: int) -> None:
        """Add a revision read from disk; call oldest first, and `build_sets` after the last.

        Only the oldest revision of a key uses `create` and `version`.
        """
        entry = self.entries.get(key)
        if entry is None:
            self.entries[key] = history.make_entry(revision, create, version)
        else:
            self.entries[key] = history.appended(entry, revision)[0]

    def build_sets(self) -> None:
        """Build the sorted sets after the last `restore`."""
        # The lowest bit of a revision, and of the last byte of a packed history, is the tombstone.
        ended = [
            key
            for key, entry in self.entries.items()
            if (entry if isinstance(entry, int) else entry[-1]) & 1
        ]
        live = sorted(self.entries.keys() - ended if ended else self.entries)
        self.live = SortedKeys(self._limits, live)
        self.ended = SortedKeys(self._limits, sorted(ended))
        self.key_changes.since = self.newest_revision

    def build_sets_in_slices(self) -> Slices[None]:
        """Do what `build_sets` does, in slices."""
        slice_keys = self._limits.slice_keys
        live: list[bytes] = []
        ended: list[bytes] = []
        for key, entry in self.entries.items():
            is_ended = (entry if isinstance(entry, int) else entry[-1]) & 1
            (ended if is_ended else live).append(key)
            if len(live) + len(ended) == slice_keys:
                self._order(live, ended)
                live, ended = [], []
                yield
        self._order(live, ended)
        self.key_changes.since = self.newest_revision

    def _order(self, live: list[bytes], ended: list[bytes]) -> None:
        live.sort()
        ended.sort()
        self.live.add_run(live)
        self.ended.add_run(ended)

    def free_all(self) -> Slices[None]:
        """Free everything in slices: freeing half a million keys at once outlasts a turn."""
        entries, count = self.entries, self._limits.slice_freed_items
        while entries:
            for _ in range(min(count, len(entries))):
                entries.popitem()
            yield
        self.key_changes = KeyChanges()
        yield from self.live.free_all()
        yield from self.ended.free_all()
