"""Workers that work one at a time: the leader works, and another worker replaces it when it ends.

Jobs are keys below `jobs/open/`. The leader takes them in order. It writes a result in a
transaction whose condition is that it still leads, so a deposed leader writes nothing.

Run as many as you like: `python -m examples.leader_worker worker-1 localhost:2379`
"""

import asyncio
import sys
from collections.abc import Callable

from kvorum import AsyncClient
from kvorum.client import AsyncElection, KeyValue, KvorumError, delete, mod_revision, put

OPEN, DONE, LEADER = "jobs/open/", "jobs/done/", "jobs/leader"
SESSION_SECONDS = 5
"""After a worker's crash, another worker leads this much later."""
AGAIN_SECONDS = 0.5


async def run(client: AsyncClient, name: str, work: Callable[[KeyValue], str]) -> None:
    """Campaign, and do jobs while leading, until the task is cancelled."""
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
    """Do one job after the other; return when this worker no longer leads."""
    while True:
        found = await client.read(prefix=OPEN, limit=1)
        for job in found.kvs:
            if not await finish(client, election, job, work(job)):
                return
        if not found.kvs:
            async with client.watch(prefix=OPEN, revision=found.revision + 1) as watch:
                await anext(watch)


async def finish(client: AsyncClient, election: AsyncElection, job: KeyValue, result: str) -> bool:
    """Replace a job by its result; return whether this worker led and the job was unchanged."""
    number = job.key.decode().removeprefix(OPEN)
    written = (
        client.txn()
        .when(election.condition, mod_revision(job.key) == job.mod_revision)
        .then(delete(job.key), put(DONE + number, result))
    )
    return (await written.commit()).succeeded


async def main(name: str, endpoint: str) -> None:
    """Run a worker for ever."""
    async with AsyncClient(endpoint) as client:
        await run(client, name, lambda job: f"{name} did {job.text}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
