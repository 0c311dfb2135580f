"""Long work in slices: a generator yields None wherever the turn may end.

The caller decides when to go on. Whether and where it is suspended may not change its result; each
operation says what may change meanwhile. A slice is at most `KEYS_PER_SLICE` keys, or
`BYTES_PER_SLICE` and what one more key has: well below a turn.
"""

from collections.abc import Generator
from io import BytesIO
from typing import Any, TypeVar

Result = TypeVar("Result")

Slices = Generator[None, None, Result]

# Plain variables, which tests make small, on the compiled core too.
KEYS_PER_SLICE = 250
BYTES_PER_SLICE = 1024 * 1024
FREED_PER_SLICE = 10_000


class Meter:
    """The work done since the turn could last end, by all generators that share it.

    In bytes: an operation counts as its part of a slice. A generator that adds to it checks whether
    the slice is over, and then yields and sets it to 0.
    """

    __slots__ = ("reads", "spent")

    def __init__(self) -> None:
        self.spent = 0
        self.reads = 0
        """How many reads there were of what the transaction found; for metrics."""


def begun(slices: Slices[Result]) -> Result | Slices[Result]:
    """Do the first slice at once; return the result if that was all, or else the rest."""
    try:
        next(slices)
    except StopIteration as end:
        result: Result = end.value
        return result
    return slices


def run_to_end(slices: Slices[Result]) -> Result:
    """Do all of the work at once and return its result."""
    try:
        while True:
            next(slices)
    except StopIteration as end:
        result: Result = end.value
        return result


def freed(items: list[Any]) -> Slices[None]:
    """Empty a list that may be long: freeing half a million items at once outlasts a turn."""
    while len(items) > FREED_PER_SLICE:
        del items[-FREED_PER_SLICE:]
        yield
    items.clear()


def joined(parts: list[bytes]) -> Slices[bytes]:
    """Join parts in slices; empties the list, so that no more than a part is there twice."""
    if sum(map(len, parts)) <= BYTES_PER_SLICE:
        whole = b"".join(parts)
        parts.clear()
        return whole
    parts.reverse()
    # Its buffer grows where it is and becomes the result, without a copy.
    buffer = BytesIO()
    written = 0
    while parts:
        part = parts.pop()
        buffer.write(part)
        written += len(part)
        if written >= BYTES_PER_SLICE:
            written = 0
            # A suspended generator would keep it.
            part = b""
            yield
    return buffer.getvalue()
