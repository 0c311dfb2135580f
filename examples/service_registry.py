"""Servers that say where they are, and clients that find them: no list of addresses to maintain.

A server is announced for as long as its session lives, so one that crashes is forgotten by itself.
A client keeps a list that follows every change, and takes the servers in turn. Go programs find the
same servers by gRPC's resolver.

Run several: `python -m examples.service_registry shop server-1 10.0.0.1:80 localhost:2379`
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvorum import AsyncClient

SESSION_SECONDS = 5
"""So long after a server has crashed its clients do not find it any more."""


@asynccontextmanager
async def announced(
    client: AsyncClient, service: str, name: str, address: str
) -> AsyncIterator[None]:
    """Let clients find a server while the block runs."""
    async with await client.session(SESSION_SECONDS) as session:
        await client.service_registry(service).register(name, address, lease=session.id)
        yield


class Servers:
    """The servers of one service, as they come and go."""

    def __init__(self, client: AsyncClient, service: str) -> None:
        self._registry = client.service_registry(service)
        self._addresses: dict[str, str] = {}
        self._turn = 0
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Keep the list, until the task is cancelled."""
        async for change in self._registry.watch():
            if change.service is None:
                del self._addresses[change.name]
            else:
                self._addresses[change.name] = change.service.address
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def addresses(self) -> list[str]:
        """Those that are there now, in the order of their names."""
        return [address for _, address in sorted(self._addresses.items())]

    async def wait_for(self, count: int) -> list[str]:
        """Return the addresses when there are so many."""
        while len(self._addresses) != count:
            await self._changed.wait()
        return self.addresses

    async def pick(self) -> str:
        """Return the address of the next server, as soon as there is one."""
        while not self._addresses:
            await self._changed.wait()
        self._turn += 1
        return self.addresses[self._turn % len(self._addresses)]


async def main(service: str, name: str, address: str, endpoint: str) -> None:
    """Announce a server, and print who else is there, for ever."""
    async with AsyncClient(endpoint) as client, announced(client, service, name, address):
        async for change in client.service_registry(service).watch():
            print(change.name, change.service.address if change.service else "has gone")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
