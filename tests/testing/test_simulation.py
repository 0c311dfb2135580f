"""Scenarios of users: virtual time, one run per seed, processes that die, and errors that tell."""

import asyncio
import gc
import random
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kvorum.client import AsyncClient, KvorumError
from kvorum.testing import SimulatedCluster, SimulationError, simulate, simulated

CALM: tuple[str, ...] = ()
KEY = "key"


@simulated(seed=1, faults=CALM)
async def test_the_client_does_what_it_does_outside(cluster: SimulatedCluster) -> None:
    async with cluster.client() as client, client.watch(prefix="k") as watch:
        assert (await client.put(KEY, "1")).revision == 2
        found = await client.get(KEY)
        assert found is not None and found.value == b"1"
        assert [each.key async for each in client.range(prefix="k")] == [b"key"]
        assert [each.key async for each in client.stream(prefix="k")] == [b"key"]
        assert (await anext(aiter(watch))).value == b"1"
        assert len(await client.members.list()) == 3
        status = await client.maintenance.status("m1:2379")
        assert status.revision == 2
    assert cluster.leader in cluster.members


@simulated(seed=2, faults=CALM)
async def test_leases_end_on_virtual_time(cluster: SimulatedCluster) -> None:
    async with cluster.client() as client:
        lease = await client.lease(60)
        await client.put(KEY, lease=lease.id)
        async with client.watch(KEY) as watch:
            granted_at = cluster.now
            event = await anext(aiter(watch))
        assert not event.is_put
        assert 55.0 < cluster.now - granted_at < 75.0


@simulated(seed=3, faults=CALM)
async def test_all_clocks_are_the_virtual_one(cluster: SimulatedCluster) -> None:
    unix_seconds = time.time() - cluster.now
    for seconds in (0.25, 100.0):
        before = cluster.now
        await asyncio.sleep(seconds)
        assert cluster.now == before + seconds
        clocks = (time.monotonic(), time.perf_counter(), asyncio.get_running_loop().time())
        assert set(clocks) == {cluster.now}
        assert time.monotonic_ns() == int(cluster.now * 1e9)
        assert time.time() - unix_seconds == pytest.approx(cluster.now)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await asyncio.Event().wait()


def chance(seed: int) -> list[object]:
    drawn: list[object] = []

    async def scenario(_cluster: SimulatedCluster) -> None:
        drawn.extend([random.random(), uuid.uuid4(), random.SystemRandom().random()])

    simulate(scenario, seed=seed, members=1)
    return drawn


def test_chance_comes_from_the_seed_and_ends_with_the_run() -> None:
    random.seed(5)
    state = random.getstate()
    assert chance(1) == chance(1)
    assert not set(chance(1)) & set(chance(2))
    assert random.getstate() == state
    assert uuid.uuid4() != uuid.uuid4()


def thread() -> None:
    threading.Thread(target=print).start()


def connection() -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", 9))


def look_up() -> None:
    socket.create_connection(("localhost", 9))


def sleep() -> None:
    time.sleep(0.001)


def process() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


async def open_connection() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def to_thread() -> None:
    await asyncio.to_thread(print)


@pytest.mark.parametrize(
    ("forbidden", "named"),
    [
        (thread, "threading.Thread.start()"),
        (connection, "socket.socket()"),
        (look_up, "socket.getaddrinfo()"),
        (sleep, "time.sleep()"),
        (process, "subprocess.Popen()"),
        (open_connection, "loop.create_connection()"),
        (to_thread, "loop.run_in_executor()"),
    ],
)
@pytest.mark.parametrize("is_caught", [False, True])
def test_what_leads_out_of_the_simulation_is_refused(
    forbidden: Callable[[], Coroutine[Any, Any, None] | None], named: str, is_caught: bool
) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        try:
            called = forbidden()
            if called is not None:
                await called
        except Exception:
            if not is_caught:
                raise
        await cluster.heal()

    with pytest.raises(SimulationError) as found:
        simulate(scenario, seed=0, members=1, faults=CALM)
    assert f"ForbiddenError: {named} was called in a simulation" in str(found.value)


def test_other_threads_keep_their_clocks_and_sockets() -> None:
    begin, done = threading.Event(), threading.Event()
    told: list[float] = []

    def other() -> None:
        begin.wait()
        socket.socket().close()
        time.sleep(0.0)
        told.append(time.monotonic())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    async def scenario(cluster: SimulatedCluster) -> None:
        begin.set()
        done.wait()
        told.append(cluster.now)

    before = time.monotonic()
    simulate(scenario, seed=0, members=1, faults=CALM)
    thread.join()
    real, virtual = told
    assert before <= real <= time.monotonic()
    assert virtual != real


async def holds_a_lock(cluster: SimulatedCluster) -> None:
    async def main() -> None:
        async with cluster.client() as client, client.lock("lock", ttl=3):
            await asyncio.sleep(random.random())
            cluster.note(f"held it, {uuid.uuid4()}")

    for _ in range(3):
        cluster.process(main)
    await asyncio.sleep(8.0)
    await cluster.heal()


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_is_one_run_with_a_trace_and_without(seed: int) -> None:
    first = simulate(holds_a_lock, seed=seed)
    assert first == simulate(holds_a_lock, seed=seed)
    without = simulate(holds_a_lock, seeds=[seed])
    assert (without.seconds, without.faults) == (first.seconds, first.faults)
    assert "held it" in first.trace


# Processes.


@simulated(seed=4, faults=CALM)
async def test_a_killed_process_cleans_nothing_up(cluster: SimulatedCluster) -> None:
    lives: list[str] = []

    async def main() -> None:
        lives.append("begun")
        async with cluster.client() as client:
            try:
                async with client.lock("lock", ttl=10):
                    lives.append("held")
                    # Ends when its client does: whoever still ran would go on from here.
                    async for _ in client.watch(KEY):
                        pass
            finally:
                lives.append("cleaned up")

    worker = cluster.process(main, "worker")
    await cluster.until(lambda: "held" in lives)
    worker.kill()
    killed_at = cluster.now
    assert not worker.is_running
    await asyncio.sleep(1.0)
    worker.restart()
    await cluster.until(lambda: lives.count("held") == 2)
    assert lives == ["begun", "held", "begun", "held"]
    # The lock of the first life was not given back: it ended with its lease.
    assert cluster.now - killed_at > 8.0


@simulated(seed=5, faults=CALM)
async def test_a_paused_process_does_nothing_meanwhile(cluster: SimulatedCluster) -> None:
    ran: list[float] = []

    async def main() -> None:
        while True:
            ran.append(cluster.now)
            await asyncio.sleep(0.5)

    worker = cluster.process(main)
    await asyncio.sleep(2.1)
    worker.pause(30.0)
    before, paused_at = len(ran), cluster.now
    await asyncio.sleep(29.9)
    assert len(ran) == before and worker.is_running
    await asyncio.sleep(1.0)
    assert ran[before] == paused_at + 30.0


@simulated(seed=6, faults=CALM)
async def test_a_process_that_is_cut_off_reaches_no_member(cluster: SimulatedCluster) -> None:
    outcomes: list[str] = []

    async def main() -> None:
        async with cluster.client(timeout=2.0) as client:
            while True:
                try:
                    await client.put(KEY, str(cluster.now))
                    outcomes.append("put")
                except KvorumError:
                    outcomes.append("failed")
                await asyncio.sleep(0.1)

    worker = cluster.process(main)
    await cluster.until(lambda: "put" in outcomes)
    worker.cut_off(20.0)
    await asyncio.sleep(1.0)
    outcomes.clear()
    await cluster.until(lambda: "failed" in outcomes)
    assert "put" not in outcomes
    await cluster.until(lambda: "put" in outcomes)


@simulated(seed=7, faults=CALM)
async def test_a_process_that_the_store_fails_is_started_again(cluster: SimulatedCluster) -> None:
    lives: list[float] = []

    async def main() -> None:
        lives.append(cluster.now)
        if len(lives) < 3:
            raise KvorumError("the store is away")

    worker = cluster.process(main)
    await cluster.until(lambda: len(lives) == 3)
    await cluster.until(lambda: not worker.is_running)


# Members.


@simulated(seed=8, faults=CALM)
async def test_a_leader_without_a_majority_is_replaced(cluster: SimulatedCluster) -> None:
    old = cluster.leader
    assert old is not None
    cluster.partition(old)
    await cluster.until(lambda: cluster.leader not in (None, old))
    async with AsyncClient(f"{old}:2379", timeout=3.0) as client:
        with pytest.raises(KvorumError):
            await client.put(KEY, "lost")
    others = [name for name in cluster.endpoints if not name.startswith(old)]
    async with AsyncClient(others) as client:
        await client.put(KEY, "kept")
    cluster.reconnect()
    await cluster.heal()
    async with AsyncClient(f"{old}:2379") as client:
        found = await client.get(KEY)
        assert found is not None and found.value == b"kept"


@simulated(seed=9, faults=CALM)
async def test_members_are_killed_paused_and_started_again(cluster: SimulatedCluster) -> None:
    async with cluster.client() as client:
        await client.put(KEY, "1")
        for name in cluster.members:
            cluster.kill(name, power_cut=True)
        assert cluster.leader is None
        with pytest.raises(KvorumError):
            await client.get(KEY)
        cluster.restart("m1")
        cluster.restart("m2")
        await cluster.until(lambda: cluster.leader is not None)
        cluster.pause(cluster.leader or "", 10.0)
        await cluster.heal()
        found = await client.get(KEY)
        assert found is not None and found.value == b"1"


# Failures.


async def asserts(cluster: SimulatedCluster) -> None:
    async with cluster.client() as client:
        await client.put(KEY, "1")
    cluster.note("about to fail")
    raise AssertionError("as it was meant to")


def test_a_failure_says_all_that_is_needed_to_see_it_again(tmp_path: Path) -> None:
    picture = tmp_path / "picture.html"
    with pytest.raises(SimulationError) as found:
        simulate(asserts, seeds=[7, 8], faults=["kill"], picture=picture)
    error = found.value
    assert error.seed == 7
    lines = str(error).splitlines()
    assert lines[0] == "seed 7 failed: AssertionError: as it was meant to"
    call = "kvorum.testing.simulate(asserts, seed=7, members=3, faults=('kill',)"
    assert lines[1:3] == [f"replay:  {call})", f'picture: {call}, picture="sim-7.html")']
    assert any("scenario put #" in line for line in lines)
    assert "scenario about to fail" in lines[-2]
    assert lines[-1].endswith("!!! AssertionError: as it was meant to")
    assert isinstance(error.__cause__, AssertionError)
    assert error.trace.startswith("   0.000000 --- seed 7 members 3\n")
    assert picture.read_text() == error.picture and "as it was meant to" in error.picture


def test_a_failing_test_says_how_to_replay_it() -> None:
    @simulated(seeds=[3], members=1)
    async def test(_cluster: SimulatedCluster) -> None:
        raise AssertionError("as it was meant to")

    with pytest.raises(SimulationError) as found:
        test()
    lines = str(found.value).splitlines()
    assert lines[1] == "replay:  @kvorum.testing.simulated(seed=3, members=1)"


def test_the_page_shows_what_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 2
    for block in blocks:
        assert "seeds=100" in block
        exec(block.replace("seeds=100", "seeds=2"), {})


def failing(main: Callable[[SimulatedCluster], Coroutine[Any, Any, None]], **options: Any) -> str:
    """Run a scenario that must fail; return the first line of what it says."""
    with pytest.raises(SimulationError) as found:
        simulate(main, seed=0, members=1, faults=CALM, **options)
    return str(found.value).splitlines()[0]


async def fail(_cluster: SimulatedCluster | None = None) -> None:
    raise AssertionError("in there")


def test_errors_beside_the_scenario_fail_it() -> None:
    async def in_a_process(cluster: SimulatedCluster) -> None:
        cluster.process(fail)
        await asyncio.sleep(10.0)

    async def in_what_it_spawned(cluster: SimulatedCluster) -> None:
        cluster.spawn(fail())
        await asyncio.sleep(10.0)

    async def in_a_task_that_nobody_waits_for(_cluster: SimulatedCluster) -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(10.0)
        assert task.done()

    async def in_a_callback(_cluster: SimulatedCluster) -> None:
        asyncio.get_running_loop().call_soon(lambda: [][0])
        await asyncio.sleep(10.0)

    for scenario in (in_a_process, in_what_it_spawned, in_a_task_that_nobody_waits_for):
        assert failing(scenario) == "seed 0 failed: AssertionError: in there"
    assert failing(in_a_callback).startswith("seed 0 failed: IndexError")


def test_a_scenario_that_does_not_end_fails() -> None:
    async def scenario(_cluster: SimulatedCluster) -> None:
        await asyncio.Event().wait()

    told = failing(scenario, seconds_max=20.0)
    assert told == "seed 0 failed: TimeoutError: the scenario took more than 20 virtual seconds"


def test_a_condition_that_does_not_come_true_fails() -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await cluster.until(lambda: False, seconds=3.0)

    assert "still not so after 3 virtual seconds" in failing(scenario)


def test_dependence_on_more_than_the_seed_is_reported() -> None:
    runs: list[int] = []

    async def scenario(_cluster: SimulatedCluster) -> None:
        runs.append(len(runs))
        raise AssertionError(f"run {len(runs)}")

    with pytest.raises(SimulationError, match="depends on more than its seed"):
        simulate(scenario, seeds=1, members=1)


def test_mistakes_are_reported() -> None:
    async def elsewhere(_cluster: SimulatedCluster) -> None:
        AsyncClient("localhost:2379")

    async def nobody(cluster: SimulatedCluster) -> None:
        cluster.kill("m7")

    async def twice(cluster: SimulatedCluster) -> None:
        async def main() -> None:
            await asyncio.sleep(1.0)

        cluster.process(main, "one")
        cluster.process(main, "one")

    assert "nobody listens at localhost:2379" in failing(elsewhere)
    assert "'m7' is no member; there are m1" in failing(nobody)
    assert "there is a process or member 'one' already" in failing(twice)
    with pytest.raises(ValueError, match="'fire' is no kind of fault; there are kill, pause"):
        simulate(asserts, faults=["fire"])
    with pytest.raises(ValueError, match="at least one member"):
        simulate(asserts, members=0)


def test_a_simulation_within_a_loop_is_refused() -> None:
    async def main() -> None:
        simulate(asserts, seed=0)

    with pytest.raises(RuntimeError, match="call it from a plain function"):
        asyncio.run(main())


@pytest.mark.long
def test_a_run_leaves_nothing_behind() -> None:
    before = (time.monotonic, threading.Thread.start, socket.socket.__init__, AsyncClient.__init__)

    async def hangs(cluster: SimulatedCluster) -> None:
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.sleep(1.0)
                except asyncio.CancelledError:
                    await asyncio.sleep(1.0)

        cluster.process(stubborn)
        cluster.process(stubborn).kill()
        asyncio.get_running_loop().create_task(stubborn())
        client = cluster.client()
        await client.put(KEY)

    gc.collect()  # what other tests left is theirs
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        done = simulate(hangs, seeds=2)
        gc.collect()
    assert [str(each.message) for each in warned] == []
    assert done.seeds == 2 and done.trace == ""
    after = (time.monotonic, threading.Thread.start, socket.socket.__init__, AsyncClient.__init__)
    assert after == before
    assert asyncio.run(asyncio.sleep(0.0, "a loop of its own")) == "a loop of its own"


@pytest.mark.parametrize("value", ["1", "2"])
@simulated(seeds=2, members=1)
async def test_a_simulated_test_has_parameters_and_fixtures(
    cluster: SimulatedCluster, value: str, tmp_path: Path
) -> None:
    assert tmp_path.is_dir()
    await cluster.heal()
    async with cluster.client() as client:
        await client.put(KEY, value)
        found = await client.get(KEY)
        assert found is not None and found.value.decode() == value


@simulated(seed=1, faults=CALM)
async def test_a_suspended_process_knows_at_once_what_it_has_lost(
    cluster: SimulatedCluster,
) -> None:
    asked: list[object] = []

    async def main() -> None:
        async with cluster.client() as client, client.lock("lock", ttl=5) as lock:
            monotonic, now = time.monotonic(), cluster.now
            asked.append(lock.is_held)
            await asyncio.sleep(2.0)
            asked.extend((lock.is_held, type(lock.lost).__name__))
            asked.extend((round(time.monotonic() - monotonic, 3), round(cluster.now - now, 3)))

    process = cluster.process(main, "sleeper")
    await cluster.until(lambda: bool(asked))
    process.suspend(60.0)
    async with cluster.client() as client, client.lock("lock", ttl=5, timeout=30.0) as lock:
        assert lock.is_held and process.is_running
    await cluster.until(lambda: len(asked) > 1, seconds=120.0)
    assert asked == [True, False, "LeaseLostError", 2.0, 62.0]
