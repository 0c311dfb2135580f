"""Servers of the example come and go, and clients take them in turn."""

import asyncio

from examples.service_registry import Servers, announced
from kvorum import AsyncClient

SECONDS_MAX = 60


def test_servers_come_and_go(kvorum_async_client: AsyncClient) -> None:
    client = kvorum_async_client

    async def main() -> None:
        servers = Servers(client, "shop")
        following = asyncio.create_task(servers.follow())
        picking = asyncio.create_task(servers.pick())
        async with announced(client, "shop", "one", "10.0.0.1:80"):
            assert await picking == "10.0.0.1:80"
            async with announced(client, "shop", "two", "10.0.0.2:80"):
                assert await servers.wait_for(2) == ["10.0.0.1:80", "10.0.0.2:80"]
                picked = [await servers.pick() for _ in range(4)]
                assert sorted(picked) == ["10.0.0.1:80"] * 2 + ["10.0.0.2:80"] * 2
                assert picked[:2] == picked[2:]
            assert await servers.wait_for(1) == ["10.0.0.1:80"]
        assert await servers.wait_for(0) == []
        following.cancel()
        await asyncio.wait([following])

    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))
