"""The checker against the definition: every order of every subset, tried one by one."""

import itertools
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.linearizability import (
    ANYTHING,
    NEVER,
    Anything,
    Operation,
    Value,
    is_linearizable,
)


def explains(order: Sequence[Operation]) -> bool:
    """Whether one register, empty at first, behaves like this order."""
    state: Value = None
    for operation in order:
        if not isinstance(operation.observed, Anything) and operation.observed != state:
            return False
        if not isinstance(operation.written, Anything):
            state = operation.written
    return all(
        earlier.invoked <= later.returned for earlier, later in itertools.combinations(order, 2)
    )


def by_definition(operations: Sequence[Operation]) -> bool:
    certain = [operation for operation in operations if operation.certain]
    uncertain = [operation for operation in operations if not operation.certain]
    return any(
        explains(order)
        for count in range(len(uncertain) + 1)
        for some in itertools.combinations(uncertain, count)
        for order in itertools.permutations([*certain, *some])
    )


values = st.sampled_from([None, b"a", b"b", b"c"])
seen = st.one_of(values, st.just(ANYTHING))


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 6))
    moments = draw(st.permutations(range(2 * count)))
    operations = []
    for one, other in zip(moments[::2], moments[1::2], strict=True):
        certain = draw(st.integers(0, 3)) > 0
        observed, written = draw(seen), draw(seen)
        invoked, returned = min(one, other), max(one, other)
        operations.append(
            Operation(invoked, returned if certain else NEVER, observed, written, certain)
        )
    return operations


@settings(max_examples=600, deadline=None)
@given(histories())
def test_agrees_with_the_definition(operations: list[Operation]) -> None:
    assert is_linearizable(operations) == by_definition(operations)


def history_of_a_register(seed: int, count: int, clients: int) -> list[Operation]:
    """What clients see of a real register; some answers never come."""
    source = random.Random(seed)
    state: Value = None
    clock = 0
    operations: list[Operation] = []
    begun: dict[int, int] = {}
    for number in range(count):
        client = source.randrange(clients)
        clock += 1
        invoked = begun.pop(client, clock)
        for other in range(clients):
            if other != client and other not in begun and source.random() < 0.5:
                clock += 1
                begun[other] = clock
        observed = state
        clock += 1
        returned = clock
        written: Value | Anything = source.choice([ANYTHING, b"%d" % number, None])
        if not isinstance(written, Anything):
            state = written
        certain = source.random() < 0.9
        operations.append(
            Operation(
                invoked,
                returned if certain else NEVER,
                observed if source.random() < 0.8 else ANYTHING,
                written,
                certain,
            )
        )
    return operations


def test_a_long_history_is_decided() -> None:
    for seed in range(3):
        operations = history_of_a_register(seed, 200, 4)
        assert is_linearizable(operations)
        reads = [
            place
            for place, operation in enumerate(operations)
            if operation.certain and isinstance(operation.written, Anything)
        ]
        spoiled = list(operations)
        place = reads[len(reads) // 2]
        spoiled[place] = spoiled[place]._replace(observed=b"never written")
        assert not is_linearizable(spoiled)


def test_a_stale_read_is_noticed() -> None:
    write = Operation(1, 2, ANYTHING, b"a")
    assert is_linearizable([write, Operation(3, 4, b"a", ANYTHING)])
    assert not is_linearizable([write, Operation(3, 4, None, ANYTHING)])
    assert is_linearizable([write, Operation(1, 4, None, ANYTHING)])


def test_an_uncertain_write_may_come_late_or_never() -> None:
    lost = Operation(1, NEVER, ANYTHING, b"a", certain=False)
    write = Operation(2, 3, ANYTHING, b"b")
    assert is_linearizable([lost, write, Operation(4, 5, b"a", ANYTHING)])
    assert is_linearizable([lost, write, Operation(4, 5, b"b", ANYTHING)])
    changed_twice = [Operation(4, 5, b"a", ANYTHING), Operation(6, 7, b"b", ANYTHING)]
    assert not is_linearizable([lost, write, *changed_twice])
