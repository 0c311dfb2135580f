"""A cache of recently written or read rows, within a limit of bytes.

The cache has two halves. Rows enter the young half; when it is full it becomes the old half, and
the previous old half is dropped. A hit in the old half moves the row to the young half. A hit in
the young half moves nothing, which keeps a range over cached rows cheap. Dropped rows are freed in
slices: freeing a hundred thousand at once would hold the loop for tens of milliseconds.
"""

from typing import Final

# The cost of a row besides its bytes: the value's header, the revision, a slot in the table.
ROW_BYTES: Final = 136


class RowCache:
    """Values by revision. The database has all of them, or a flush is about to write them."""

    __slots__ = ("_added_max", "_half_bytes", "_young_bytes", "forgotten", "old", "young")

    def __init__(self, bytes_max: int, added_max: int) -> None:
        """Make a cache of `bytes_max` bytes that takes at most `added_max` rows at once."""
        self.young: dict[int, bytes] = {}
        self.old: dict[int, bytes] = {}
        self._added_max = added_max
        self._half_bytes = bytes_max // 2
        self._young_bytes = 0
        # Dropped rows that are not freed yet.
        self.forgotten: list[dict[int, bytes]] = []

    @property
    def size_bytes(self) -> int:
        """Estimated memory in bytes; a half that became old was full."""
        return self._young_bytes + (self._half_bytes if self.old else 0)

    def get(self, revision: int) -> bytes | None:
        """Return a row if it is cached."""
        value = self.young.get(revision)
        if value is None:
            value = self.old.pop(revision, None)
            if value is not None:
                self.add(revision, value)
        return value

    def add(self, revision: int, value: bytes) -> None:
        """Cache a row."""
        self.young[revision] = value
        self._young_bytes += len(value) + ROW_BYTES
        if self._young_bytes > self._half_bytes:
            self._age()

    def add_all(self, rows: dict[int, bytes], value_bytes: int) -> None:
        """Cache rows, whose values have `value_bytes` together, unless they are too many."""
        added = value_bytes + ROW_BYTES * len(rows)
        if added > self._half_bytes or len(rows) > self._added_max:
            return  # one long entry would drive out everything else
        self.young.update(rows)
        self._young_bytes += added
        if self._young_bytes > self._half_bytes:
            self._age()

    def discard(self, revision: int) -> None:
        """Drop a row."""
        value = self.young.pop(revision, None)
        if value is not None:
            self._young_bytes -= len(value) + ROW_BYTES
        else:
            self.old.pop(revision, None)

    def clear(self) -> None:
        """Drop everything."""
        self.young, self.old, self._young_bytes = {}, {}, 0

    def free(self, count: int) -> None:
        """Free up to `count` of the dropped rows."""
        rows = self.forgotten[-1]
        for _ in range(min(count, len(rows))):
            rows.popitem()
        if not rows:
            self.forgotten.pop()

    def _age(self) -> None:
        if self.old:
            self.forgotten.append(self.old)
        self.old, self.young, self._young_bytes = self.young, {}, 0
