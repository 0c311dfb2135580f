"""Workers that write invoices, simulated: what the example promises, and bugs that are found."""

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from examples.invoices.worker import NEXT, WRITTEN, Worker
from kvorum.client import AsyncClient
from kvorum.client.aio.recipes.elections import AsyncElection
from kvorum.client.transactions import put
from kvorum.testing import Scenario, SimulatedCluster, SimulationError, simulate, simulated

WORKERS = 3
SEEDS = 100
FEW_SEEDS = 4
FIRST_FOUND = 4
"""A seed that finds both bugs; where the code has changed since, others follow."""
REPOSITORY = Path(__file__).parents[2]


class Trusting(Worker):
    """Takes for granted that it leads as long as it was elected: its writes have no condition."""

    async def write(self, election: AsyncElection, number: int, invoice: str) -> bool:
        steps = (put(f"{WRITTEN}{number:06}", invoice), put(NEXT, str(number + 1)))
        await self.client.txn().then(*steps).commit()
        return election.lost is None


class Deaf(Trusting):
    """Does not even look whether its session is alive."""

    async def write(self, election: AsyncElection, number: int, invoice: str) -> bool:
        await super().write(election, number, invoice)
        return True


async def watch_over(cluster: SimulatedCluster, kind: type[Worker]) -> None:
    """Let workers work while things go wrong; no invoice is ever written twice, nor left out."""
    for number in range(1, WORKERS + 1):
        cluster.process(partial(work, cluster, kind, f"worker{number}"), f"worker{number}")
    written: list[int] = []
    async with cluster.client() as client:
        cluster.spawn(read(client, written))
        await asyncio.sleep(30.0)
        await cluster.heal()
        # Whoever is left leads once the sessions of the others have ended.
        before = len(written)
        await cluster.until(lambda: len(written) > before)


async def work(cluster: SimulatedCluster, kind: type[Worker], name: str) -> None:
    async with cluster.client() as client:
        await kind(client, name).run()


async def read(client: AsyncClient, written: list[int]) -> None:
    async for event in client.watch(prefix=WRITTEN, revision=1):
        number = int(event.key.removeprefix(WRITTEN.encode()))
        assert number == len(written) + 1, f"{number} was written after {len(written)}"
        written.append(number)


async def correct(cluster: SimulatedCluster) -> None:
    await watch_over(cluster, Worker)


async def trusting(cluster: SimulatedCluster) -> None:
    await watch_over(cluster, Trusting)


async def deaf(cluster: SimulatedCluster) -> None:
    await watch_over(cluster, Deaf)


@simulated(seeds=FEW_SEEDS)
async def test_no_invoice_is_written_twice(cluster: SimulatedCluster) -> None:
    await watch_over(cluster, Worker)


@pytest.mark.campaign
def test_no_invoice_is_written_twice_in_a_hundred_seeds() -> None:
    assert simulate(correct, seeds=SEEDS).seeds == SEEDS


@pytest.mark.campaign
@pytest.mark.parametrize("scenario", [trusting, deaf])
def test_a_bug_is_found_within_a_hundred_seeds(scenario: Scenario) -> None:
    with pytest.raises(SimulationError, match="was written after"):
        simulate(scenario, seeds=SEEDS)


@pytest.mark.parametrize("scenario", [trusting, deaf])
def test_a_bug_is_found_and_its_seed_finds_it_again(scenario: Scenario) -> None:
    with pytest.raises(SimulationError, match="was written after") as found:
        simulate(scenario, seeds=range(FIRST_FOUND, SEEDS))
    assert f"simulate({scenario.__name__}, seed={found.value.seed}, members=3)" in str(found.value)
    with pytest.raises(SimulationError) as again:
        simulate(scenario, seed=found.value.seed)
    assert str(again.value) == str(found.value)
    assert again.value.trace == found.value.trace


TRACE = """
from kvorum.testing import SimulationError, simulate
from tests.examples.test_invoices import trusting
try:
    simulate(trusting, seed=%d)
except SimulationError as error:
    print(error.trace, end="")
"""


def test_one_seed_is_one_run_in_any_process() -> None:
    def trace(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", TRACE % FIRST_FOUND]
        return subprocess.check_output(command, cwd=REPOSITORY, env=environment, text=True)

    with pytest.raises(SimulationError) as found:
        simulate(trusting, seed=FIRST_FOUND)
    assert found.value.trace == trace("1") == trace("2")
