"""Sort long lists in slices, without blocking the loop.

The generator yields where the turn may end; its result does not depend on where, or on whether,
it was suspended.
"""

from collections.abc import Generator, Sequence
from heapq import merge
from typing import Any, TypeVar

Ordered = TypeVar("Ordered", bound=Any)


def sorted_in_slices(
    items: Sequence[Ordered], slice_items: int
) -> Generator[None, None, list[Ordered]]:
    """Return the items in ascending order, as `sorted` does; a slice covers `slice_items`."""
    runs = []
    for start in range(0, len(items), slice_items):
        runs.append(sorted(items[start : start + slice_items]))
        yield
    ordered: list[Ordered] = []
    for item in merge(*runs):
        ordered.append(item)
        if len(ordered) % slice_items == 0:
            yield
    return ordered
