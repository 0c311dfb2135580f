"""Tasks that are cancelled while they wait leave nothing behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvorum.client.aio.client import AsyncClient
from kvorum.client.watch_set import WatchState

Wait = Callable[[AsyncClient, str], Awaitable[object]]

WAITS: dict[str, Wait] = {
    "lock": lambda client, name: client.lock(name, ttl=30).acquire(),
    "semaphore": lambda client, name: client.semaphore(name, 2, ttl=30).acquire(),
    "reader": lambda client, name: client.read_write_lock(name, ttl=30).read().acquire(),
    "writer": lambda client, name: client.read_write_lock(name, ttl=30).write().acquire(),
    "election": lambda client, name: client.election(name, ttl=30).campaign("x"),
    "double barrier": lambda client, name: client.double_barrier(name, 3, ttl=30).enter(),
    "queue": lambda client, name: client.queue(f"{name}/empty").get(),
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_cancelled_waiter_leaves_the_queue(server: str, name: str, kind: str) -> None:
    async def run() -> None:
        async with AsyncClient(server, timeout=20) as client:
            for key in ("write/0", "0"):
                await client.put(f"{name}/{key}", "2")
            waiting = asyncio.ensure_future(WAITS[kind](client, name))
            watches = client.shell.watching._watches
            while not any(each.state is WatchState.OPEN for each in watches.values()):
                # Each call lets the task go on.
                await client.get(name)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await client.count(prefix=f"{name}/") == 2
            assert not watches

    asyncio.run(run())
