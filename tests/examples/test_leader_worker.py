"""Workers of the example, on a store and on a cluster that loses its leader."""

import asyncio

from examples.leader_worker import DONE, LEADER, OPEN, run
from kvorum import AsyncClient, Client
from kvorum.testing import Cluster, Store

SECONDS_MAX = 60


async def wait_done(client: AsyncClient, count: int) -> list[str]:
    """Wait until so many jobs are done; return by whom."""
    async with asyncio.timeout(SECONDS_MAX), client.cache(DONE) as cache:
        while len(cache) < count:
            await cache.wait_change(cache.revision)
        return [kv.text for kv in cache]


def worker(client: AsyncClient, name: str) -> asyncio.Task[None]:
    return asyncio.create_task(run(client, name, lambda _: name))


def test_another_worker_goes_on(kvorum: Store, kvorum_client: Client) -> None:
    async def main() -> list[str]:
        client = kvorum.async_client()
        workers = {name: worker(client, name) for name in ("one", "two")}
        for number in range(5):
            await client.put(f"{OPEN}{number}", "")
        await wait_done(client, 5)
        first = (await client.election(LEADER).leader()).text
        workers.pop(first).cancel()
        for number in range(5, 10):
            await client.put(f"{OPEN}{number}", "")
        done = await wait_done(client, 10)
        assert done[:5] == [first] * 5
        (second,) = workers
        workers[second].cancel()
        await asyncio.wait(workers.values())
        assert done[5:] == [second] * 5
        return done

    assert len(asyncio.run(main())) == 10
    assert kvorum_client.count(prefix=OPEN) == 0


def test_jobs_go_on_without_the_leader_of_the_cluster(kvorum_cluster: Cluster) -> None:
    async def main() -> list[str]:
        client = kvorum_cluster.async_client(timeout=30)
        worker = asyncio.create_task(run(client, "one", lambda job: job.text))
        try:
            await client.put(f"{OPEN}0", "before")
            await wait_done(client, 1)
            kvorum_cluster.kill(kvorum_cluster.leader())
            await asyncio.to_thread(kvorum_cluster.leader)
            await client.put(f"{OPEN}1", "after")
            return await wait_done(client, 2)
        finally:
            worker.cancel()
            await asyncio.wait([worker])

    assert asyncio.run(main()) == ["before", "after"]
