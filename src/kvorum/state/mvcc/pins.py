"""Revisions that reads in progress protect from compaction."""


class Pins:
    """Counts the reads that hold each revision. A compaction waits for reads below it."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def hold(self, main: int) -> None:
        """Protect everything that a read at this revision can see."""
        self._counts[main] = self._counts.get(main, 0) + 1

    def release(self, main: int) -> None:
        """Undo one `hold` of this revision."""
        count = self._counts[main] - 1
        if count:
            self._counts[main] = count
        else:
            del self._counts[main]

    def is_held_below(self, main: int) -> bool:
        """Return whether a read at an older revision is in progress."""
        return any(held < main for held in self._counts)
