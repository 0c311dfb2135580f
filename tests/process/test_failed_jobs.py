"""No job of the log runs after a failed one, in any hand, in a process and in the simulator.

The simulator replaces the hands that run jobs, so its findings about failing disks are valid only
as long as both do the same. Each example is a row of jobs for the log, given to the hands of a
process, with real threads, and to a machine of the simulator.
"""

import asyncio
import errno
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvorum.member.jobs import ExecutorKind, Job
from kvorum.network.edge import open_edge
from kvorum.process.executor import ProcessExecutor
from kvorum.server.jobs import JobOrder
from kvorum.server.telemetry.logs import Logger
from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import without_faults
from kvorum.sim.run import memory_directory
from kvorum.sim.world import World
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import AppendLog
from tests.edges import EDGES
from tests.waiting import WAIT_SECONDS_MAX

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")

RECORD = 8


class Hand(Enum):
    """What runs a job in a process."""

    INLINE = "the loop"
    NATIVE = "the edge's writer"
    THREAD = "the thread"


class Planned(NamedTuple):
    """One job, and its outcome."""

    hand: Hand
    fails: bool = False
    is_borne: bool = False


class Note(NamedTuple):
    """A job that leaves a file, or fails."""

    path: str
    fails: bool

    def run(self, files: Files) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        write_file(files, self.path, b"done")


def make_jobs(directory: str, plan: Sequence[Planned], log: int, full: int) -> list[Job]:
    jobs = []
    for number, (hand, fails, is_borne) in enumerate(plan):
        work: object
        if hand is Hand.THREAD:
            work = Note(f"{directory}/note{number}", fails)
        else:
            work = AppendLog(full if fails else log, number * RECORD, b"appended")
        on_failure = (lambda _: None) if is_borne and hand is Hand.THREAD else None
        jobs.append(Job(ExecutorKind.LOG, work, lambda _: None, on_failure))
    return jobs


def traces(files: Files, directory: str, plan: Sequence[Planned]) -> list[int]:
    """Return which jobs had an effect."""
    content = read_file(files, f"{directory}/log")
    found = []
    for number, planned in enumerate(plan):
        if planned.hand is Hand.THREAD:
            had_effect = files.exists(f"{directory}/note{number}")
        else:
            had_effect = content[number * RECORD : (number + 1) * RECORD] == b"appended"
        if had_effect:
            found.append(number)
    return found


def run_here(edge_name: str, plan: Sequence[Planned], patch: pytest.MonkeyPatch) -> list[int]:
    """Run jobs as a process does, until one fails whose failure is not tolerated."""
    patch.setenv("KVORUM_EDGE", edge_name)
    with TemporaryDirectory() as directory:
        files = RealFiles()
        log = files.open(f"{directory}/log", Opening.CREATE)
        full = os.open("/dev/full", os.O_WRONLY)
        edge = open_edge([])
        loop = asyncio.new_event_loop()
        woken = asyncio.Event()
        environments = LmdbEnvironments()
        executor = ProcessExecutor(
            loop, edge, files, environments, Logger([]), woken.set, sync=False
        )
        order = JobOrder(executor)
        jobs = make_jobs(directory, plan, log, full)

        async def drive() -> None:
            loop.add_reader(edge.fileno(), woken.set)
            left = len(jobs)
            # Jobs up to one that the loop itself runs are submitted together, as a turn does.
            batch: list[Job] = []
            for job, planned in zip(jobs, plan, strict=True):
                batch.append(job)
                if planned.hand is Hand.INLINE:
                    order.submit(batch, 1 << 16)
                    batch = []
            order.submit(batch)
            while left:
                edge.awake()
                for job, _, error in order.take_ended():
                    left -= 1
                    if error is not None and job.on_failure is None:
                        return
                if left and not order.has_ended and edge.announce_sleep():
                    await asyncio.wait_for(woken.wait(), WAIT_SECONDS_MAX)
                    woken.clear()

        try:
            loop.run_until_complete(drive())
        finally:
            loop.remove_reader(edge.fileno())
            edge.stop()
            executor.stop()
            loop.close()
            os.close(full)
        found = traces(files, directory, plan)
        files.close(log)
        return found


def run_in_the_simulator(plan: Sequence[Planned]) -> list[int]:
    world = World(1)
    with TemporaryDirectory(dir=memory_directory()) as directory:
        cluster = Cluster(world, 1, without_faults(), directory, {"segment_bytes": 4096})
        machine = cluster.machines[1]
        machine.start()
        member, files = machine.member, machine.files
        assert member is not None
        assert world.run_while(lambda: not member.is_published, 100.0)
        log, full = (files.open(f"/data/{name}", Opening.CREATE) for name in ("log", "full"))
        files.sync_directory("/data")
        before = files.before
        assert before is not None

        def fill(call: DiskCall) -> None:
            before(call)
            if call.path == "/data/full":
                raise OSError(errno.ENOSPC, "No space left on device", call.path)

        files.before = fill
        member.out.jobs += make_jobs("/data", plan, log, full)
        machine.request_turn()
        world.run_until(world.now + 1.0)
        found = traces(machine.files, "/data", plan)
        machine.end()
        return found


def expected(plan: Sequence[Planned]) -> list[int]:
    found = []
    for number, (hand, fails, is_borne) in enumerate(plan):
        if not fails:
            found.append(number)
        elif not (is_borne and hand is Hand.THREAD):
            break
    return found


append, native, cut = Planned(Hand.INLINE), Planned(Hand.NATIVE), Planned(Hand.THREAD)


@pytest.mark.parametrize("edge", EDGES)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(plan=[append._replace(fails=True), cut, append])
@example(plan=[append._replace(fails=True), append, native])
@example(plan=[native._replace(fails=True), cut, append])
@example(plan=[cut._replace(fails=True), native, native])
@example(plan=[cut._replace(fails=True), append, cut])
@example(plan=[native, cut._replace(fails=True, is_borne=True), native, cut])
@given(
    plan=st.lists(
        st.builds(Planned, st.sampled_from(Hand), st.integers(0, 3).map(lambda n: not n)),
        max_size=8,
    )
)
def test_nothing_is_run_after_a_failed_job_of_the_log(
    edge: str, plan: list[Planned], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_here(edge, plan, monkeypatch) == expected(plan)
    assert run_in_the_simulator(plan) == expected(plan)
