"""Rows that were written or read lately, within a limit of bytes.

Two halves: rows enter the young one, and when that is full it becomes the old one, whose rows are
forgotten at the next change unless they are asked for before. No row is moved on a hit in the young
half, which is what keeps a range over cached rows cheap. Forgotten rows are freed bit by bit:
freeing a hundred thousand at once would hold the loop for tens of milliseconds.
"""

from typing import Final

# A row's objects beside its bytes: the value's header, the revision, a place in the table.
ROW_BYTES: Final = 136
ADDED_MAX = 20_000
"""So many rows at once are not kept."""


class RowCache:
    """Values by revision. All of them are in the database, too, or about to be."""

    __slots__ = ("_half_bytes", "_young_bytes", "forgotten", "old", "young")

    def __init__(self, bytes_max: int) -> None:
        self.young: dict[int, bytes] = {}
        self.old: dict[int, bytes] = {}
        self._half_bytes = bytes_max // 2
        self._young_bytes = 0
        # Forgotten rows that are not freed yet.
        self.forgotten: list[dict[int, bytes]] = []

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes: the old half was full when it was the young one."""
        return self._young_bytes + (self._half_bytes if self.old else 0)

    def get(self, revision: int) -> bytes | None:
        """Return a row if it is here."""
        value = self.young.get(revision)
        if value is None:
            value = self.old.pop(revision, None)
            if value is not None:
                self.add(revision, value)
        return value

    def add(self, revision: int, value: bytes) -> None:
        """Keep a row for a while."""
        self.young[revision] = value
        self._young_bytes += len(value) + ROW_BYTES
        if self._young_bytes > self._half_bytes:
            self._age()

    def add_all(self, rows: dict[int, bytes], value_bytes: int) -> None:
        """Keep rows, whose values have that many bytes together, for a while."""
        added = value_bytes + ROW_BYTES * len(rows)
        if added > self._half_bytes or len(rows) > ADDED_MAX:
            return  # one long entry would drive out everything else
        self.young.update(rows)
        self._young_bytes += added
        if self._young_bytes > self._half_bytes:
            self._age()

    def discard(self, revision: int) -> None:
        """Forget a row."""
        value = self.young.pop(revision, None)
        if value is not None:
            self._young_bytes -= len(value) + ROW_BYTES
        else:
            self.old.pop(revision, None)

    def clear(self) -> None:
        """Forget everything."""
        self.young, self.old, self._young_bytes = {}, {}, 0

    def free(self, count: int) -> None:
        """Free so many of the rows that were forgotten."""
        rows = self.forgotten[-1]
        for _ in range(min(count, len(rows))):
            rows.popitem()
        if not rows:
            self.forgotten.pop()

    def _age(self) -> None:
        if self.old:
            self.forgotten.append(self.old)
        self.old, self.young, self._young_bytes = self.young, {}, 0
