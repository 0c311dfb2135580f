"""Workers of which one works at a time: the one that leads; another one goes on when it is gone.

Jobs are keys below `jobs/open/`. A worker that leads takes them in order, and what it writes down
holds only if it still leads, because that is a condition of the very transaction that writes it.

Run as many as you like: `python -m examples.leader_worker worker-1 localhost:2379`
"""

import asyncio
import sys
from collections.abc import Callable

from kvorum import AsyncClient
from kvorum.client import AsyncElection, KeyValue, KvorumError, delete, mod_revision, put

OPEN, DONE, LEADER = "jobs/open/", "jobs/done/", "jobs/leader"
SESSION_SECONDS = 5
"""So long after a worker has crashed another one leads."""
AGAIN_SECONDS = 0.5


async def run(client: AsyncClient, name: str, work: Callable[[KeyValue], str]) -> None:
    """Stand for election, and do jobs while leading, until the task is cancelled."""
    while True:
        election = client.election(LEADER, ttl=SESSION_SECONDS)
        try:
            await election.campaign(name)
            try:
                await lead(client, election, work)
            finally:
                await election.resign()
        except KvorumError as error:
            print(f"{name}: {error}; standing for election again", file=sys.stderr)
            await asyncio.sleep(AGAIN_SECONDS)


async def lead(
    client: AsyncClient, election: AsyncElection, work: Callable[[KeyValue], str]
) -> None:
    """Do one job after the other; return when another worker leads."""
    while True:
        found = await client.read(prefix=OPEN, limit=1)
        for job in found.kvs:
            if not await finish(client, election, job, work(job)):
                return
        if not found.kvs:
            async with client.watch(prefix=OPEN, revision=found.revision + 1) as watch:
                await anext(watch)


async def finish(client: AsyncClient, election: AsyncElection, job: KeyValue, result: str) -> bool:
    """Write a result down in place of its job; return whether this worker was still to do so."""
    number = job.key.decode().removeprefix(OPEN)
    written = (
        client.txn()
        .when(election.condition, mod_revision(job.key) == job.mod_revision)
        .then(delete(job.key), put(DONE + number, result))
    )
    return (await written.commit()).succeeded


async def main(name: str, endpoint: str) -> None:
    """Work for ever."""
    async with AsyncClient(endpoint) as client:
        await run(client, name, lambda job: f"{name} did {job.text}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
