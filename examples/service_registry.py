"""Servers that announce their addresses, and clients that find them, without a list to maintain.

A server stays announced while its session lives, so a crashed server disappears after its session
expires. A client's list follows every change, and the client uses the servers in turn. Go programs
find the same servers with gRPC's resolver.

Run several: `python -m examples.service_registry shop server-1 10.0.0.1:80 localhost:2379`
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvorum import AsyncClient

SESSION_SECONDS = 5
"""After a server's crash, clients stop finding it this much later."""


@asynccontextmanager
async def announced(
    client: AsyncClient, service: str, name: str, address: str
) -> AsyncIterator[None]:
    """Announce a server to clients within the block."""
    async with await client.session(SESSION_SECONDS) as session:
        await client.service_registry(service).register(name, address, lease=session.id)
        yield


class Servers:
    """The current servers of one service."""

    def __init__(self, client: AsyncClient, service: str) -> None:
        self._registry = client.service_registry(service)
        self._addresses: dict[str, str] = {}
        self._turn = 0
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Update the list until the task is cancelled."""
        async for change in self._registry.watch():
            if change.service is None:
                del self._addresses[change.name]
            else:
                self._addresses[change.name] = change.service.address
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def addresses(self) -> list[str]:
        """The current addresses, in the order of the servers' names."""
        return [address for _, address in sorted(self._addresses.items())]

    async def wait_for(self, count: int) -> list[str]:
        """Return the addresses when there are exactly `count`."""
        while len(self._addresses) != count:
            await self._changed.wait()
        return self.addresses

    async def pick(self) -> str:
        """Return the next server's address, as soon as there is one."""
        while not self._addresses:
            await self._changed.wait()
        self._turn += 1
        return self.addresses[self._turn % len(self._addresses)]


async def main(service: str, name: str, address: str, endpoint: str) -> None:
    """Announce a server, and print all servers that come and go, for ever."""
    async with AsyncClient(endpoint) as client, announced(client, service, name, address):
        async for change in client.service_registry(service).watch():
            print(change.name, change.service.address if change.service else "has gone")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
