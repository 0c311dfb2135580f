"""The asyncio client `aetcd`, with everything it has that a single member serves."""

import asyncio
from collections.abc import Awaitable, Callable

import aetcd
import pytest

pytestmark = pytest.mark.timeout(60)


def _with_client(server: str, body: Callable[[aetcd.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        host, _, port = server.rpartition(":")
        async with aetcd.Client(host=host, port=int(port)) as client:
            await body(client)

    asyncio.run(main())


def test_keys(server: str) -> None:
    async def body(client: aetcd.Client) -> None:
        await client.put(b"a", b"1")
        previous = await client.put(b"a", b"2", prev_kv=True)
        assert previous.prev_kv.value == b"1"
        found = await client.get(b"a")
        assert (found.value, found.version, found.mod_revision) == (b"2", 2, 3)
        assert await client.get(b"missing") is None
        await client.put(b"b", b"3")
        everything = await client.get_all(sort_order="descend", sort_target="key")
        assert [kv.key for kv in everything] == [b"b", b"a"]
        assert [kv.value for kv in await client.get_prefix(b"a")] == [b"2"]
        assert (await client.delete_range(b"a", b"z", prev_kv=True)).deleted == 2
        await client.compact(4, physical=True)
        with pytest.raises(aetcd.ClientError, match="revision has been compacted"):
            await client.compact(4)

    _with_client(server, body)


def test_transactions(server: str) -> None:
    async def body(client: aetcd.Client) -> None:
        transactions = client.transactions
        for expected in (True, False):
            succeeded, _ = await client.transaction(
                compare=[transactions.version(b"t") == 0],
                success=[transactions.put(b"t", b"1")],
                failure=[transactions.get(b"t")],
            )
            assert succeeded is expected
        assert await client.replace(b"t", b"1", b"2")
        assert not await client.replace(b"t", b"1", b"3")

    _with_client(server, body)


def test_watch(server: str) -> None:
    async def body(client: aetcd.Client) -> None:
        await client.put(b"w/1", b"a")
        watch = await client.watch_prefix(b"w/", start_revision=2, prev_kv=True)
        await client.put(b"w/1", b"b")
        await client.delete(b"w/1")
        seen = []
        async for event in watch:
            seen.append((event.kind, event.kv.value))
            if len(seen) == 3:
                break
        await watch.cancel()
        assert seen == [("PUT", b"a"), ("PUT", b"b"), ("DELETE", b"")]

    _with_client(server, body)


def test_lease_and_lock(server: str) -> None:
    async def body(client: aetcd.Client) -> None:
        lease = await client.lease(100)
        await client.put(b"leased", b"x", lease=lease)
        assert list(await lease.keys()) == [b"leased"]
        assert (await lease.refresh()).TTL == 100
        await lease.revoke()
        assert await client.get(b"leased") is None
        async with client.lock(b"mutex", ttl=30) as held:
            assert await held.is_acquired()

    _with_client(server, body)


def test_maintenance(server: str) -> None:
    async def body(client: aetcd.Client) -> None:
        status = await client.status()
        assert status.leader is not None
        assert [member.name async for member in client.members()] == ["default"]
        await client.defragment()
        assert [alarm async for alarm in client.list_alarms()] == []

    _with_client(server, body)
