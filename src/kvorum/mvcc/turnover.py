"""Which keys came to life and which ended lately: by how much ranges have grown since a revision.

With that, the number of keys that an older state has is the newest state's, less the growth since.
Clients that list a large range in pages ask for it with every page after the first, all at one
revision, and the index would have to look at every key.
"""

from bisect import bisect_right
from typing import Final

from kvorum.mvcc.slices import KEYS_PER_SLICE, Slices

KEPT = 10_000
"""So many changes are kept at least. Reads of states before them look at every key."""
KEPT_BYTES_MAX = 4 << 20
"""Unless their keys have more: those that are compacted are in memory for this alone."""
CHANGES_PER_KEY: Final = 10
"""How many changes are looked at in the time that it takes to look for a key's revision."""


class Turnover:
    """The newest changes, oldest first: revisions of puts that created, and of tombstones."""

    __slots__ = ("_bytes", "_keys", "_revisions", "since")

    def __init__(self) -> None:
        self._revisions: list[int] = []
        self._keys: list[bytes] = []
        self._bytes = 0  # of the keys
        self.since = 0
        """Every change after this revision is known."""

    def note(self, revision: int, key: bytes) -> None:
        """Note that a key came to life, or that it ended if the revision is a tombstone's."""
        self._revisions.append(revision)
        self._keys.append(key)
        self._bytes += len(key)
        if len(self._keys) > 2 * KEPT or self._bytes > KEPT_BYTES_MAX:
            self._forget()

    def note_ends(self, first: int, keys: list[bytes]) -> None:
        """Note that keys ended, with this tombstone and the next sub revisions, in order."""
        self._revisions += range(first, first + 2 * len(keys), 2)
        self._keys += keys
        self._bytes += sum(map(len, keys))
        if len(self._keys) > 2 * KEPT or self._bytes > KEPT_BYTES_MAX:
            self._forget()

    def _forget(self) -> None:
        """Forget the oldest changes; half of all at a time, so that each costs little."""
        while len(self._keys) > 2 * KEPT or self._bytes > KEPT_BYTES_MAX:
            old = max(len(self._keys) - KEPT, (len(self._keys) + 1) // 2)
            self.since = self._revisions[old - 1]
            del self._revisions[:old]
            del self._keys[:old]
            self._bytes = sum(map(len, self._keys))

    def changes_after(self, revision: int) -> int:
        """Return how many changes there were after a revision that is not before `since`."""
        return len(self._revisions) - bisect_right(self._revisions, revision)

    def growth(self, first: bytes, end: bytes | None, revision: int) -> Slices[int]:
        """Return how many keys more a range has now than at a revision not before `since`.

        Changes that come while it is suspended do not count.
        """
        begin = bisect_right(self._revisions, revision)
        revisions, keys = self._revisions[begin:], self._keys[begin:]
        grown = 0
        want = CHANGES_PER_KEY * KEYS_PER_SLICE
        for start in range(0, len(keys), want):
            if start:
                yield
            for at in range(start, min(start + want, len(keys))):
                key = keys[at]
                if first <= key and (end is None or key < end):
                    grown += -1 if revisions[at] & 1 else 1
        return grown
