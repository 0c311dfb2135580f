"""Operations of clients on keys, the input of the linearizability checker.

`components` divides a history where no operation connects keys; `prepare` gives values numbers, and
decides about operations that got no answer: if another saw its value, an operation has taken
effect; if none saw its values, it explains nothing and is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

NEVER: Final = 1 << 62
"""The return of an operation that got no answer."""

Value = bytes | None
"""The value of a key; None if it does not exist, as no key does in the beginning."""
Pairs = tuple[tuple[bytes, Value], ...]


class Operation(NamedTuple):
    """One operation: it needs the values in `observed`, and leaves the values in `written`.

    Keys that are not named were not read, or not written. `invoked` and `returned` are moments of
    one counter; an operation that is not certain has `returned` NEVER.
    """

    invoked: int
    returned: int
    observed: Pairs
    written: Pairs
    certain: bool = True


@dataclass(slots=True)
class Prepared:
    """A history in numbers: keys and values are small numbers, operations are their places."""

    operations: list[Operation]
    invoked: list[int]
    returned: list[int]
    observed: list[tuple[tuple[int, int], ...]]
    """Pairs of a key and a value."""
    written: list[tuple[tuple[int, int], ...]]
    certain: list[bool]
    initial: list[int]
    """The value of every key in the beginning."""
    values: int
    """How many values there are; each belongs to one key."""
    sole_writer: dict[int, int]
    """The writer of a value, if there is only one and the value is not an initial one."""
    precede: list[int]
    """For each operation, a bit mask of those that must precede it, set by `kvorum.sim.bounds`."""


def components(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Divide operations into groups that have no key in common."""
    parents: dict[bytes, bytes] = {}

    def root(key: bytes) -> bytes:
        while parents.setdefault(key, key) != key:
            key = parents[key]
        return key

    for operation in operations:
        keys = [key for key, _ in (*operation.observed, *operation.written)]
        for key in keys:
            parents[root(key)] = root(keys[0])
    groups: dict[bytes, list[Operation]] = {}
    for operation in operations:
        pairs = operation.observed or operation.written
        if pairs:
            groups.setdefault(root(pairs[0][0]), []).append(operation)
    yield from groups.values()


def prepare(operations: Sequence[Operation]) -> Prepared | Operation:
    """Return the history in numbers, or an operation that saw a value that no client wrote."""
    writers = _writers(operations)
    kept, happened = _decide(operations, writers)
    keys: dict[bytes, int] = {}
    values: dict[tuple[bytes, Value], int] = {}

    def number(pair: tuple[bytes, Value]) -> tuple[int, int]:
        return keys.setdefault(pair[0], len(keys)), values.setdefault(pair, len(values))

    prepared = Prepared([], [], [], [], [], [], [], 0, {}, [])
    written_by: dict[int, list[int]] = {}
    for operation, is_certain in zip(kept, happened, strict=True):
        place = len(prepared.operations)
        prepared.operations.append(operation)
        prepared.invoked.append(operation.invoked)
        prepared.returned.append(operation.returned)
        prepared.observed.append(tuple(map(number, operation.observed)))
        prepared.written.append(tuple(map(number, operation.written)))
        prepared.certain.append(is_certain)
        for _, value in prepared.written[-1]:
            written_by.setdefault(value, []).append(place)
        for pair in operation.observed:
            if is_certain and pair[1] is not None and pair not in writers:
                return operation
    prepared.initial = [number((key, None))[1] for key in keys]
    prepared.values = len(values)
    beginning = set(prepared.initial)
    prepared.sole_writer = {
        value: places[0]
        for value, places in written_by.items()
        if len(places) == 1 and value not in beginning
    }
    prepared.precede = [0] * len(prepared.operations)
    return prepared


def _writers(operations: Sequence[Operation]) -> dict[tuple[bytes, Value], list[int]]:
    writers: dict[tuple[bytes, Value], list[int]] = {}
    for place, operation in enumerate(operations):
        for pair in operation.written:
            writers.setdefault(pair, []).append(place)
    return writers


def _decide(
    operations: Sequence[Operation], writers: dict[tuple[bytes, Value], list[int]]
) -> tuple[list[Operation], list[bool]]:
    """Return the operations that matter, and for each whether it certainly took effect."""
    happened = [operation.certain for operation in operations]
    waiting = [place for place, is_certain in enumerate(happened) if is_certain]
    while waiting:
        for pair in operations[waiting.pop()].observed:
            places = writers.get(pair, ())
            if len(places) == 1 and pair[1] is not None and not happened[places[0]]:
                happened[places[0]] = True
                waiting.append(places[0])
    observed = {pair for operation in operations for pair in operation.observed}
    kept = [
        place
        for place, operation in enumerate(operations)
        if happened[place] or any(pair in observed for pair in operation.written)
    ]
    return [operations[place] for place in kept], [happened[place] for place in kept]
