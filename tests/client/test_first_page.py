"""What the first page of a user's program does, with both clients, on our server and on etcd."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import ClosedError, KeyEmptyError, UnavailableError
from kvorum.client.sync.client import Client
from kvorum.client.transactions import get, put, version
from tests.waiting import WAIT_SECONDS_MAX


def test_keys_transactions_leases_and_watches(server: str) -> None:
    with Client(server, timeout=WAIT_SECONDS_MAX) as client:
        revision = client.put("greeting", "hello").revision
        found = client.get("greeting")
        assert found is not None
        assert (found.value, found.mod_revision) == (b"hello", revision)
        txn = client.txn().when(version("greeting") == found.version)
        done = txn.then(put("answer", "42")).otherwise(get("greeting")).commit()
        assert done.succeeded
        with client.lease(30) as lease:
            for number in range(25):
                client.put(f"jobs/{number:02}", str(number), lease=lease.id)
            assert [kv.value for kv in client.range(prefix="jobs/", page=7)] == [
                str(number).encode() for number in range(25)
            ]
            with client.watch(prefix="jobs/", revision=revision) as watch:
                keys = [next(watch).key for _ in range(25)]
            assert keys == [f"jobs/{number:02}".encode() for number in range(25)]
        assert client.count(prefix="jobs/") == 0
        with pytest.raises(KeyEmptyError):
            client.put("", "nothing")
    with pytest.raises(ClosedError):
        client.get("greeting")


def test_the_same_on_asyncio(server: str) -> None:
    async def page() -> None:
        async with AsyncClient(server, timeout=WAIT_SECONDS_MAX) as client:
            put_at = await client.put("a", "1")
            found = await client.get("a")
            assert found is not None
            assert (found.value, found.mod_revision) == (b"1", put_at.revision)
            async with await client.lease(30) as lease:
                await client.put("b", "2", lease=lease.id)
                assert await client.count(prefix="b") == 1
            async with client.watch("b", revision=put_at.revision + 1) as watch:
                kinds = [(await anext(watch)).is_put for _ in range(2)]
            assert kinds == [True, False]

    asyncio.run(page())


def test_unreachable_endpoints_are_named() -> None:
    with (
        Client("127.0.0.1:1", timeout=0.2) as client,
        pytest.raises(UnavailableError, match=r"0\.0\.1:1"),
    ):
        client.put("a", "b")


def test_a_watch_without_a_server_ends_with_its_client() -> None:
    with Client("127.0.0.1:1") as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.watch("a", revision=1).changes)
        client.close()
        with pytest.raises(ClosedError):
            waiting.result()
        with pytest.raises(ClosedError):
            client.watch("a", revision=1).changes()


def test_a_watch_without_a_server_ends_with_its_client_on_asyncio() -> None:
    async def close() -> None:
        client = AsyncClient("127.0.0.1:1")
        waiting = asyncio.ensure_future(client.watch("a", revision=1).changes())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await client.watch("a", revision=1).changes()

    asyncio.run(close())
