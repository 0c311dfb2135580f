"""Workers that write invoices, simulated: what the example promises, and bugs that are found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.invoices.scenario import no_invoice_is_written_twice
from examples.invoices.worker import NEXT, WRITTEN, Worker
from kvorum.client.aio.recipes.elections import AsyncElection
from kvorum.client.transactions import put
from kvorum.testing import Scenario, SimulatedCluster, SimulationError, simulate

SEEDS = 100
FEW_SEEDS = 3
FIRST_FOUND = 4
"""A seed that finds both bugs; where the code has changed since, others follow."""
REPOSITORY = Path(__file__).parents[2]


class Trusting(Worker):
    """Takes for granted that it leads as long as nobody said otherwise: it writes in any case."""

    async def write(self, election: AsyncElection, number: int, invoice: str) -> bool:
        steps = (put(f"{WRITTEN}{number:06}", invoice), put(NEXT, str(number + 1)))
        await self.client.txn().then(*steps).commit()
        return election.lost is None


class Deaf(Trusting):
    """Does not even look whether its session is alive."""

    async def write(self, election: AsyncElection, number: int, invoice: str) -> bool:
        await super().write(election, number, invoice)
        return True


async def trusting(cluster: SimulatedCluster) -> None:
    await no_invoice_is_written_twice(cluster, Trusting)


async def deaf(cluster: SimulatedCluster) -> None:
    await no_invoice_is_written_twice(cluster, Deaf)


def test_no_invoice_is_written_twice() -> None:
    assert simulate(no_invoice_is_written_twice, seeds=FEW_SEEDS).seeds == FEW_SEEDS


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_no_invoice_is_written_twice_in_a_hundred_seeds() -> None:
    assert simulate(no_invoice_is_written_twice, seeds=SEEDS).seeds == SEEDS


@pytest.mark.campaign
@pytest.mark.parametrize("scenario", [trusting, deaf])
def test_a_bug_is_found_within_a_hundred_seeds(scenario: Scenario) -> None:
    with pytest.raises(SimulationError, match="was written after"):
        simulate(scenario, seeds=SEEDS)


@pytest.mark.parametrize("scenario", [trusting, pytest.param(deaf, marks=pytest.mark.long)])
def test_a_bug_is_found_and_its_seed_finds_it_again(scenario: Scenario) -> None:
    with pytest.raises(SimulationError, match="was written after") as found:
        simulate(scenario, seeds=range(FIRST_FOUND, SEEDS))
    seed = found.value.seed
    name = getattr(scenario, "__name__", "")
    assert f"kvorum.testing.simulate({name}, seed={seed}, members=3)" in str(found.value)
    with pytest.raises(SimulationError) as again:
        simulate(scenario, seed=seed)
    assert str(again.value) == str(found.value)
    assert again.value.trace == found.value.trace


TRACE = """
from examples.invoices.scenario import no_invoice_is_written_twice
from kvorum.testing import simulate
print(simulate(no_invoice_is_written_twice, seed=1).trace, end="")
"""


def test_one_seed_is_one_run_in_any_process() -> None:
    # Sets are in another order there: theirs depends on a hash that is drawn for each process.
    environment = {**os.environ, "PYTHONHASHSEED": "26"}
    command = [sys.executable, "-c", TRACE]
    elsewhere = subprocess.check_output(command, cwd=REPOSITORY, env=environment, text=True)
    assert simulate(no_invoice_is_written_twice, seed=1).trace == elsewhere
