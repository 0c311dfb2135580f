"""A scenario with three workers, and a reader that receives every invoice as it is written."""

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
    """Run workers during faults, and require that one of them continues afterwards."""
    for number in range(1, WORKERS + 1):
        name = f"worker{number}"
        cluster.process(partial(work, cluster, kind, name), name)
    written: list[int] = []
    async with cluster.client() as client:
        cluster.spawn(read(client, written))
        await asyncio.sleep(TROUBLED_SECONDS)
        await cluster.heal()
        # A remaining worker leads once the other workers' sessions have expired.
        before = len(written)
        await cluster.until(lambda: len(written) > before)


async def work(cluster: SimulatedCluster, kind: type[Worker], name: str) -> None:
    """Run one worker, as a program of its own would."""
    async with cluster.client() as client:
        await kind(client, name).run()


async def read(client: AsyncClient, written: list[int]) -> None:
    """Follow all invoices, whose numbers must have no gaps."""
    async for event in client.watch(prefix=WRITTEN, revision=1):
        number = int(event.key.removeprefix(WRITTEN.encode()))
        assert number == len(written) + 1, f"{number} was written after {len(written)}"
        written.append(number)
