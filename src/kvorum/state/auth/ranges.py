"""Permitted keys as disjoint ranges, so that a check is one look-up for any number of grants.

Overlapping or touching ranges are merged. A permission for a single key is the range from that key
to the next possible one, so that points and ranges merge too.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

OPEN_END: Final = b"\0"
"""As the end of a range, in permissions and in requests: every key from its start on."""


class KeyRanges:
    """The union of permitted ranges."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, permitted: Iterable[tuple[bytes, bytes]]) -> None:
        """Merge pairs of a key and a range end; a pair with an empty end permits only its key."""
        # None stands for the open end.
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []
        starts, ends = self._starts, self._ends
        for start, given in sorted(permitted):
            end = None if given == OPEN_END else given or start + b"\0"
            if end is not None and end <= start:
                continue  # older etcds stored such permissions, which permit nothing
            if starts:
                last = ends[-1]
                if last is None:
                    break
                if start <= last:
                    if end is None or end > last:
                        ends[-1] = end
                    continue
            starts.append(start)
            ends.append(end)

    def permits(self, key: bytes, range_end: bytes) -> bool:
        """Return whether every key of a request's range is permitted.

        If the range ends before it starts, the check applies to the key itself.
        """
        place = bisect_right(self._starts, key) - 1
        if place < 0:
            return False
        end = self._ends[place]
        if end is None:
            return True
        if range_end == OPEN_END:
            return False
        return range_end <= end and key < end if range_end > key else key < end
