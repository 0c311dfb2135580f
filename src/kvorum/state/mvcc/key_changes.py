"""Tracks recent creations and deletions of keys, to count the keys of a range at older revisions.

The count at an older revision is the newest count less the growth since then. Clients that list a
large range in pages read every page after the first at the revision of the first page, and each
such answer has a count; without this module the index would have to visit every key for it.
"""

from bisect import bisect_right
from typing import Final

from kvorum.state.mvcc.slices import Slices

KEPT = 10_000
"""Changes to keep at least. Reads of states before the oldest one visit every key."""
KEPT_BYTES_MAX = 4 << 20
"""Limit of bytes of the changed keys; takes precedence over `KEPT`.

Only this module keeps the keys that a compaction has removed in memory."""
CHANGES_PER_KEY: Final = 10
"""Changes that `growth` can check in the time of looking up one key's revision."""


class KeyChanges:
    """The newest changes, oldest first: revisions of puts that created, and of tombstones."""

    __slots__ = ("_bytes", "_keys", "_revisions", "since")

    def __init__(self) -> None:
        self._revisions: list[int] = []
        self._keys: list[bytes] = []
        self._bytes = 0  # of the keys
        self.since = 0
        """The revision after which every change is kept."""

    def note(self, revision: int, key: bytes) -> None:
        """Record that a key was created, or deleted if the revision is a tombstone's."""
        self._revisions.append(revision)
        self._keys.append(key)
        self._bytes += len(key)
        if len(self._keys) > 2 * KEPT or self._bytes > KEPT_BYTES_MAX:
            self._forget()

    def note_ends(self, first: int, keys: list[bytes]) -> None:
        """Record deletions of keys, in order, by this tombstone and the next sub revisions."""
        self._revisions += range(first, first + 2 * len(keys), 2)
        self._keys += keys
        self._bytes += sum(map(len, keys))
        if len(self._keys) > 2 * KEPT or self._bytes > KEPT_BYTES_MAX:
            self._forget()

    def _forget(self) -> None:
        """Drop the oldest changes, half of all at a time, so that the cost per change is small."""
        while len(self._keys) > 2 * KEPT or self._bytes > KEPT_BYTES_MAX:
            old = max(len(self._keys) - KEPT, (len(self._keys) + 1) // 2)
            self.since = self._revisions[old - 1]
            del self._revisions[:old]
            del self._keys[:old]
            self._bytes = sum(map(len, self._keys))

    def changes_after(self, revision: int) -> int:
        """Return the number of changes after a revision, which must not be before `since`."""
        return len(self._revisions) - bisect_right(self._revisions, revision)

    def growth(
        self, first: bytes, end: bytes | None, revision: int, slice_keys: int
    ) -> Slices[int]:
        """Return how many keys a range has gained since a revision that is not before `since`.

        Changes made while the generator is suspended do not count.
        """
        begin = bisect_right(self._revisions, revision)
        revisions, keys = self._revisions[begin:], self._keys[begin:]
        grown = 0
        want = CHANGES_PER_KEY * slice_keys
        for start in range(0, len(keys), want):
            if start:
                yield
            for at in range(start, min(start + want, len(keys))):
                key = keys[at]
                if first <= key and (end is None or key < end):
                    grown += -1 if revisions[at] & 1 else 1
        return grown
