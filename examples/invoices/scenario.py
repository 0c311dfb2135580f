"""A scenario for workers: three of them, and a reader that sees every invoice as it is written."""

import asyncio
from functools import partial

from examples.invoices.worker import WRITTEN, Worker
from kvorum.client import AsyncClient
from kvorum.testing import SimulatedCluster

WORKERS = 3
TROUBLED_SECONDS = 30.0


async def no_invoice_is_written_twice(
    cluster: SimulatedCluster, kind: type[Worker] = Worker
) -> None:
    """Let workers work while things go wrong; then one of them must go on."""
    for number in range(1, WORKERS + 1):
        name = f"worker{number}"
        cluster.process(partial(work, cluster, kind, name), name)
    written: list[int] = []
    async with cluster.client() as client:
        cluster.spawn(read(client, written))
        await asyncio.sleep(TROUBLED_SECONDS)
        await cluster.heal()
        # Whoever is left leads once the sessions of the others have ended.
        before = len(written)
        await cluster.until(lambda: len(written) > before)


async def work(cluster: SimulatedCluster, kind: type[Worker], name: str) -> None:
    """Be one of the workers, as a program that is started by itself."""
    async with cluster.client() as client:
        await kind(client, name).run()


async def read(client: AsyncClient, written: list[int]) -> None:
    """Follow all invoices, which must come one after the other."""
    async for event in client.watch(prefix=WRITTEN, revision=1):
        number = int(event.key.removeprefix(WRITTEN.encode()))
        assert number == len(written) + 1, f"{number} was written after {len(written)}"
        written.append(number)
