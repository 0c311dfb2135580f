"""Changes of many keys, cut into transactions that every server takes."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

KEYS_MAX = 100
"""Of a transaction; servers allow 128 operations unless told otherwise."""
BYTES_MAX = 512 << 10

T = TypeVar("T")


def batches(changes: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut changes into transactions; `size_of` tells how many bytes one of them has."""
    batch: list[T] = []
    size = 0
    for change in changes:
        length = size_of(change)
        if batch and (len(batch) == KEYS_MAX or size + length > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += length
    if batch:
        yield batch
