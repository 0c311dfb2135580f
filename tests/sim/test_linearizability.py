"""The checker against the definition: every order of every subset, tried one by one."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.sim.linearizability import find_contradiction, is_linearizable
from kvorum.sim.operations import NEVER, Operation, Value


def explains(order: Sequence[Operation]) -> bool:
    """Whether one store, empty at first, behaves like this order."""
    state: dict[bytes, Value] = {}
    for operation in order:
        if any(state.get(key) != value for key, value in operation.observed):
            return False
        state.update(operation.written)
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


KEYS = (b"x", b"y")
values = st.sampled_from([None, b"a", b"b", b"c"])


@st.composite
def pairs(draw: st.DrawFn, keys: Sequence[bytes]) -> tuple[tuple[bytes, Value], ...]:
    chosen = draw(st.lists(st.sampled_from(keys), unique=True, max_size=len(keys)))
    return tuple((key, draw(values)) for key in sorted(chosen))


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 6))
    keys = KEYS[: draw(st.integers(1, 2))]
    moments = draw(st.permutations(range(2 * count)))
    # Values that one operation writes are what the checker draws conclusions from.
    is_unique = draw(st.booleans())
    operations = []
    for number, (one, other) in enumerate(zip(moments[::2], moments[1::2], strict=True)):
        certain = draw(st.integers(0, 3)) > 0
        observed, written = draw(pairs(keys)), draw(pairs(keys))
        if is_unique:
            written = tuple(
                (key, None if value is None else b"%d" % number) for key, value in written
            )
            observed = tuple(
                (key, None if value is None else b"%d" % draw(st.integers(0, count - 1)))
                for key, value in observed
            )
        invoked, returned = min(one, other), max(one, other)
        operations.append(
            Operation(invoked, returned if certain else NEVER, observed, written, certain)
        )
    return operations


@pytest.mark.long
@given(histories())
def test_the_checker_agrees_with_the_definition(operations: list[Operation]) -> None:
    assert is_linearizable(operations) == by_definition(operations)


def history(
    seed: int, count: int, clients: int, keys: int, lost: float, *, blind: float = 0.5
) -> list[Operation]:
    """Return what clients see of a real store, up to all of them at once in a call.

    Operations over several keys, deletions and lost answers are among them.
    """
    source = random.Random(seed)
    names = [b"k%d" % number for number in range(keys)]
    state: dict[bytes, Value] = {}
    clock = 0
    operations: list[Operation] = []
    # Clients in a call: when it began, and what it saw and wrote once it took effect.
    calls: dict[int, tuple[int, tuple[object, object] | None]] = {}
    number = 0
    while len(operations) < count:
        client = source.randrange(clients)
        clock += 1
        begun = calls.get(client)
        if begun is None:
            calls[client] = (clock, None)
        elif begun[1] is None:
            number += 1
            chosen = sorted(source.sample(names, source.choice([1, 1, min(2, keys)])))
            observed: tuple[tuple[bytes, Value], ...] = ()
            written: tuple[tuple[bytes, Value], ...] = ()
            if source.random() > blind:
                observed = tuple((key, state.get(key)) for key in chosen)
            if not observed or source.random() < 0.5:
                is_delete = source.random() < 0.2
                value = None if is_delete else b"%d" % number
                written = tuple((key, value) for key in chosen)
            state.update(written)
            if source.random() < lost:
                operations.append(Operation(begun[0], NEVER, observed, written, certain=False))
                del calls[client]
            else:
                calls[client] = (begun[0], (observed, written))
        else:
            observed, written = begun[1]  # type: ignore[assignment]
            operations.append(Operation(begun[0], clock, observed, written))
            del calls[client]
    for invoked, effect in calls.values():
        if effect is not None:
            observed, written = effect  # type: ignore[assignment]
            operations.append(Operation(invoked, NEVER, observed, written, certain=False))
    # Of lost operations, some never happened.
    for _ in range(int(lost * count)):
        clock += 1
        key = source.choice(names)
        operations.append(Operation(clock, NEVER, (), ((key, b"never %d" % clock),), certain=False))
    return operations


def spoil(operations: list[Operation], seed: int) -> list[Operation]:
    """Let an operation see what was there long before."""
    source = random.Random(seed)
    older: dict[bytes, list[tuple[int, Value]]] = {}
    for operation in operations:
        for key, value in operation.written:
            if operation.certain and value is not None:
                older.setdefault(key, []).append((operation.returned, value))
    places = list(range(len(operations) // 2, len(operations)))
    source.shuffle(places)
    for place in places:
        operation = operations[place]
        if not operation.certain or not operation.observed:
            continue
        key, value = operation.observed[0]
        stale = [old for returned, old in older[key] if returned < operation.invoked]
        if len(stale) > 40 and stale[-40] != value:
            spoiled = list(operations)
            changed = ((key, stale[-40]), *operation.observed[1:])
            spoiled[place] = operation._replace(observed=changed)
            return spoiled
    raise AssertionError("nothing to spoil")


@pytest.mark.parametrize("keys", [1, 3, 10])
@pytest.mark.parametrize("clients", [4, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_two_thousand_operations_are_decided(keys: int, clients: int, lost: float) -> None:
    operations = history(keys * clients, 2000, clients, keys, lost)
    assert find_contradiction(operations) is None
    assert find_contradiction(spoil(operations, 1)) is not None


def test_a_stale_read_is_noticed() -> None:
    write = Operation(1, 2, (), ((b"x", b"a"),))
    assert is_linearizable([write, Operation(3, 4, ((b"x", b"a"),), ())])
    assert not is_linearizable([write, Operation(3, 4, ((b"x", None),), ())])
    assert is_linearizable([write, Operation(1, 4, ((b"x", None),), ())])


def test_two_keys_are_seen_at_one_moment() -> None:
    writes = [
        Operation(1, 10, (), ((b"x", b"1"), (b"y", b"1"))),
        Operation(1, 10, (), ((b"x", b"2"), (b"y", b"2"))),
    ]
    torn = Operation(1, 10, ((b"x", b"1"), (b"y", b"2")), ())
    assert not is_linearizable([*writes, torn])
    separate = [Operation(1, 10, (pair,), ()) for pair in torn.observed]
    assert is_linearizable([*writes, *separate])


def test_an_uncertain_write_may_come_late_or_never() -> None:
    lost = Operation(1, NEVER, (), ((b"x", b"a"),), certain=False)
    write = Operation(2, 3, (), ((b"x", b"b"),))
    assert is_linearizable([lost, write, Operation(4, 5, ((b"x", b"a"),), ())])
    assert is_linearizable([lost, write, Operation(4, 5, ((b"x", b"b"),), ())])
    changed_twice = [Operation(4, 5, ((b"x", b"a"),), ()), Operation(6, 7, ((b"x", b"b"),), ())]
    assert not is_linearizable([lost, write, *changed_twice])
