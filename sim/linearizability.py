"""Whether the operations on one key could have happened one after the other.

A history is linearizable if there is an order of its operations that a single register explains
and that agrees with real time: what returned before another was invoked comes first. The search
is that of Wing and Gong with Lowe's cache: depth first over the operations that may come next,
never twice from the same set of done operations and the same value.

An operation is reduced to what it saw and what it wrote. One whose answer never came is
uncertain: it may take effect at any time after its invocation, or never.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

NEVER: Final = 1 << 62
"""The return of an operation whose answer never came."""


class Anything:
    """Stands for a value nobody looked at, or nobody wrote."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = Anything()
Value = bytes | None
"""What a register holds; None is a key that does not exist."""


class Operation(NamedTuple):
    """One operation on one key.

    It needs the value `observed` to be there, unless that is ANYTHING, and leaves `written`,
    unless that is ANYTHING. `invoked` and `returned` are moments of one counter; an operation
    that is not certain has `returned` NEVER.
    """

    invoked: int
    returned: int
    observed: Value | Anything
    written: Value | Anything
    certain: bool = True


def is_linearizable(operations: Sequence[Operation], initial: Value = None) -> bool:
    """Tell whether some order explains all certain operations, and any of the others."""
    ordered = sorted(_relevant(operations), key=lambda operation: operation.invoked)
    remaining = sum(operation.certain for operation in ordered)
    seen: set[tuple[int, Value]] = set()
    # The way so far: what is done (a bit each), all before which place is done, the value, how
    # many certain ones remain, and which of those that may come next were not tried.
    path = [(0, 0, initial, remaining, _candidates(ordered, 0, 0, initial))]
    while path:
        done, first, state, remaining, candidates = path[-1]
        if not remaining:
            return True
        if not candidates:
            path.pop()
            continue
        chosen = candidates.pop()
        operation = ordered[chosen]
        done |= 1 << chosen
        if not isinstance(operation.written, Anything):
            state = operation.written
        if (done, state) in seen:
            continue
        seen.add((done, state))
        while done >> first & 1:
            first += 1
        remaining -= operation.certain
        path.append((done, first, state, remaining, _candidates(ordered, done, first, state)))
    return False


def _relevant(operations: Sequence[Operation]) -> list[Operation]:
    """Leave out what no certain operation can have noticed.

    An uncertain write whose value nobody saw explains nothing: without it, whatever saw the
    value before it sees it still.
    """
    observed = {operation.observed for operation in operations}
    return [
        operation
        for operation in operations
        if operation.certain
        or (not isinstance(operation.written, Anything) and operation.written in observed)
    ]


def _candidates(ordered: Sequence[Operation], done: int, first: int, state: Value) -> list[int]:
    """Return the places of those worth to come next, the best one last."""
    deadline = NEVER
    possible: list[int] = []
    # An operation may come now unless one that is not done returned before its invocation.
    for place in range(first, len(ordered)):
        operation = ordered[place]
        if operation.invoked > deadline:
            break
        if not done >> place & 1:
            possible.append(place)
            if operation.returned < deadline:
                deadline = operation.returned
    wanted = {ordered[place].observed for place in possible}
    certain: list[int] = []
    uncertain: dict[tuple[Value | Anything, Value | Anything], int] = {}
    for place in possible:
        operation = ordered[place]
        if not isinstance(operation.observed, Anything) and operation.observed != state:
            continue
        if operation.certain:
            if isinstance(operation.written, Anything):
                # It fits and changes nothing: whatever comes can as well come after it.
                return [place]
            certain.append(place)
        elif operation.written in wanted and operation.written != state:
            # Only for the sake of one that sees it right afterwards; and of equal ones any.
            uncertain.setdefault((operation.observed, operation.written), place)
    return [*uncertain.values(), *reversed(certain)]
