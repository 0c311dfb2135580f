"""Cut the changes of many keys into transactions that every server accepts."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

KEYS_MAX = 100
"""The most keys in a transaction; servers allow 128 operations by default."""
BYTES_MAX = 512 << 10

T = TypeVar("T")


def batches(changes: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut changes into transactions; `size_of` returns the bytes of a change."""
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
