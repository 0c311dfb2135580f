"""Barriers and double barriers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from kvorum.client.errors import DeadlineError
from kvorum.client.recipes.errors import BarrierExistsError, TooManyClientsError
from kvorum.client.sync.client import Client
from tests.client.recipes.conftest import Connect
from tests.client.recipes.queueing import queue_of


def test_many_wait_until_a_barrier_is_removed(client: Client, connect: Connect, name: str) -> None:
    with connect() as other, ThreadPoolExecutor(2) as pool:
        barrier = client.barrier(name)
        barrier.wait()
        barrier.create()
        with pytest.raises(BarrierExistsError, match="key already exists"):
            other.barrier(name).create()
        with pytest.raises(DeadlineError, match=r"was not removed within 0\.05 s"):
            barrier.wait(timeout=0.05)
        waiting = [pool.submit(each.barrier(name).wait) for each in (client, other)]
        assert not any(each.done() for each in waiting)
        barrier.remove()
        for each in waiting:
            each.result()


def test_all_begin_and_end_together(client: Client, connect: Connect, name: str) -> None:
    entered: list[int] = []
    left: list[int] = []

    def work(user: Client, number: int) -> None:
        barrier = user.double_barrier(name, 3, ttl=30)
        entered.append(number)
        barrier.enter()
        assert sorted(entered) == [0, 1, 2]
        left.append(number)
        barrier.leave()
        assert sorted(left) == [0, 1, 2]

    with connect() as other, ThreadPoolExecutor(3) as pool:
        users = (client, other, client)
        for each in [pool.submit(work, user, number) for number, user in enumerate(users)]:
            each.result()
    assert client.count(prefix=f"{name}/") == 0


@pytest.mark.parametrize("first_leaves", [True, False])
def test_a_leaving_client_waits_for_the_others(
    client: Client, connect: Connect, name: str, *, first_leaves: bool
) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool:
        first = client.double_barrier(name, 2, ttl=30)
        entering = pool.submit(first.enter)
        queue_of(client, f"{name}/waiters/", 1)
        last = other.double_barrier(name, 2, ttl=30)
        last.enter()
        entering.result()
        leaves, stays = (first, last) if first_leaves else (last, first)
        with pytest.raises(DeadlineError, match="not all left"):
            leaves.leave(timeout=0.05)
        # It gave up, so the other is alone.
        stays.leave()
    assert client.count(prefix=f"{name}/") == 0


def test_more_than_a_double_barrier_is_for_are_refused(client: Client, name: str) -> None:
    with client.double_barrier(name, 1, ttl=30):
        with pytest.raises(TooManyClientsError, match="too many clients"):
            client.double_barrier(name, 1, ttl=30).enter()
        alone = client.double_barrier(f"{name}-2", 2, ttl=30)
        with pytest.raises(DeadlineError, match="2 did not enter"):
            alone.enter(timeout=0.05)
        assert client.count(prefix=f"{name}-2/") == 0
