"""Long work in slices: a generator yields None wherever the turn may end.

The caller decides when to resume the generator. Suspending it must not change its result; each
operation documents which changes it tolerates meanwhile. A slice covers at most `slice_keys` keys,
or `slice_bytes` plus one more key (`kvorum.api.limits`): well below a turn.
"""

from collections.abc import Generator
from io import BytesIO
from typing import Any, TypeVar

from kvorum.api.limits import WorkLimits

Result = TypeVar("Result")

Slices = Generator[None, None, Result]


class Meter:
    """The work since the last yield, in bytes, summed over all generators that share the meter.

    An operation counts as its share of a slice's bytes. A generator that adds to `spent` checks
    whether the slice is full, and then yields and resets `spent` to 0.
    """

    __slots__ = ("_limits", "reads", "slice_bytes", "spent")

    def __init__(self, limits: WorkLimits) -> None:
        self._limits = limits
        self.spent = 0
        self.slice_bytes = limits.slice_bytes
        """A slice with this many bytes is full."""
        self.reads = 0
        """Reads by compares and operations of the transaction; for metrics."""

    @property
    def key_bytes(self) -> int:
        """The share of a slice, in bytes, that the check of one key counts for."""
        return self._limits.slice_bytes // self._limits.slice_keys


def run_first_slice(slices: Slices[Result]) -> Result | Slices[Result]:
    """Run the first slice; return the result if it was the last, otherwise the generator."""
    try:
        next(slices)
    except StopIteration as end:
        result: Result = end.value
        return result
    return slices


def run_to_end(slices: Slices[Result]) -> Result:
    """Run all slices in one call and return the result."""
    try:
        while True:
            next(slices)
    except StopIteration as end:
        result: Result = end.value
        return result


def free_in_slices(items: list[Any], count: int) -> Slices[None]:
    """Empty a list, `count` items at a time: freeing half a million at once outlasts a turn."""
    while len(items) > count:
        del items[-count:]
        yield
    items.clear()


def join_in_slices(parts: list[bytes], slice_bytes: int) -> Slices[bytes]:
    """Join parts in slices; empty the list, so that at most one part is in memory twice."""
    if sum(map(len, parts)) <= slice_bytes:
        whole = b"".join(parts)
        parts.clear()
        return whole
    parts.reverse()
    # BytesIO grows its buffer in place and returns it as the result without a copy.
    buffer = BytesIO()
    written = 0
    while parts:
        part = parts.pop()
        buffer.write(part)
        written += len(part)
        if written >= slice_bytes:
            written = 0
            # A suspended generator would otherwise keep the part in memory.
            part = b""
            yield
    return buffer.getvalue()
