"""Queues, by order and by priority: every item is taken once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.client.errors import DeadlineError
from kvorum.client.sync.client import Client
from kvorum.client.values import RangeResult
from tests.client.recipes.conftest import Connect

TAKERS = 3


def test_items_come_in_their_order_and_of_no_other_queue(client: Client, name: str) -> None:
    queue = client.queue(name)
    client.queue(f"{name}x").put("of another")
    for item in ("a", "b", "c"):
        queue.put(item)
    assert queue.size() == 3
    assert [queue.get() for _ in range(3)] == [b"a", b"b", b"c"]
    assert queue.get_nowait() is None
    with pytest.raises(DeadlineError, match=r"had no item within 0\.05 s"):
        queue.get(timeout=0.05)


def test_every_item_is_taken_once_by_many(client: Client, connect: Connect, name: str) -> None:
    items = [b"%d" % number for number in range(24)]

    def take(user: Client) -> list[bytes]:
        queue = user.queue(name)
        return [queue.get() for _ in range(len(items) // TAKERS)]

    with connect() as other, ThreadPoolExecutor(TAKERS + 2) as pool:
        takers = [pool.submit(take, (client, other)[at % 2]) for at in range(TAKERS)]
        list(pool.map(client.queue(name).put, items))
        taken = [item for each in takers for item in each.result()]
    assert Counter(taken) == Counter(items)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.lists(st.integers(0, 3) | st.integers(65534, 65535), max_size=6))
def test_the_lowest_number_comes_first_then_whoever_came_first(
    client: Client, name: str, priorities: list[int]
) -> None:
    queue = client.priority_queue(name)
    for at, priority in enumerate(priorities):
        queue.put(f"{priority} {at}", priority)
    expected = [f"{priority} {at}" for at, priority in enumerate(priorities)]
    expected.sort(key=lambda item: int(item.split()[0]))
    assert [queue.get().decode() for _ in priorities] == expected
    assert queue.get_nowait() is None


def test_a_waiter_gets_the_next_item(client: Client, connect: Connect, name: str) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.priority_queue(name).get)
        client.priority_queue(name).put("late", 7)
        assert waiting.result() == b"late"
    with pytest.raises(ValueError, match="priority 65536 was given; expected 0 to 65535"):
        client.priority_queue(name).put("x", 65536)


def test_no_number_is_given_twice(server: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others add and take between the two calls of a put."""
    with Client(server, timeout=20) as client, Client(server, timeout=20) as other:
        read, theirs = client.read, other.priority_queue(name)

        def interrupted(*arguments: Any, **named: Any) -> RangeResult:
            found = read(*arguments, **named)
            monkeypatch.undo()
            theirs.put("first")
            theirs.put("second")
            assert theirs.get() == b"first"
            return found

        monkeypatch.setattr(client, "read", interrupted)
        client.priority_queue(name).put("third")
        assert [theirs.get(), theirs.get()] == [b"second", b"third"]
