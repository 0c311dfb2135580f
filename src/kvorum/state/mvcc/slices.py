"""Long work in slices: a generator yields None wherever the turn may end.

The caller decides when to resume the generator. Suspending it must not change its result; each
operation documents which changes it tolerates meanwhile. A slice covers at most `KEYS_PER_SLICE`
keys, or `BYTES_PER_SLICE` plus one more key: well below a turn.
"""

from collections.abc import Generator
from io import BytesIO
from typing import Any, TypeVar

Result = TypeVar("Result")

Slices = Generator[None, None, Result]

# Not `Final`, so that tests can lower these limits, on the compiled core too.
KEYS_PER_SLICE = 250
BYTES_PER_SLICE = 1024 * 1024
FREED_PER_SLICE = 10_000


class Meter:
    """The work since the last yield, in bytes, summed over all generators that share the meter.

    An operation counts as its share of a slice's bytes. A generator that adds to `spent` checks
    whether the slice is full, and then yields and resets `spent` to 0.
    """

    __slots__ = ("reads", "spent")

    def __init__(self) -> None:
        self.spent = 0
        self.reads = 0
        """Reads by compares and operations of the transaction; for metrics."""


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


def free_in_slices(items: list[Any]) -> Slices[None]:
    """Empty a list that may be long: freeing half a million items at once outlasts a turn."""
    while len(items) > FREED_PER_SLICE:
        del items[-FREED_PER_SLICE:]
        yield
    items.clear()


def join_in_slices(parts: list[bytes]) -> Slices[bytes]:
    """Join parts in slices; empty the list, so that at most one part is in memory twice."""
    if sum(map(len, parts)) <= BYTES_PER_SLICE:
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
        if written >= BYTES_PER_SLICE:
            written = 0
            # A suspended generator would otherwise keep the part in memory.
            part = b""
            yield
    return buffer.getvalue()
