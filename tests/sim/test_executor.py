"""The hands of a simulated machine: they fail, die and hang amid jobs, and others go on."""

from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest

from kvorum.api.pb.etcdserverpb import PutRequest
from kvorum.member.jobs import ExecutorKind, Job, JobLostError
from kvorum.member.member import Member
from kvorum.sim import executor
from kvorum.sim.cluster import Cluster
from kvorum.sim.executor import SimulatedWorker
from kvorum.sim.faults import without_faults
from kvorum.sim.machine import Machine
from kvorum.sim.run import memory_directory
from kvorum.sim.world import World
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.state.auth.passwords import HashPassword
from kvorum.storage.backend import open_view
from kvorum.storage.backend.environment import Environments
from kvorum.storage.files import Files
from kvorum.storage.files.interface import write_file

SECONDS = 5.0


class Stage:
    """One machine, without faults but those that a test asks for."""

    def __init__(self, directory: str) -> None:
        self.world = World(1)
        cluster = Cluster(self.world, 1, without_faults(), directory, {"flush_seconds": 0.02})
        self.machine: Machine = cluster.machines[1]
        self.machine.start()
        assert self.world.run_while(lambda: not self.member.is_published, 100.0)
        self.ended: list[object] = []

    @property
    def member(self) -> Member:
        assert self.machine.member is not None
        return self.machine.member

    def submit(self, place: ExecutorKind, work: object) -> None:
        """Give the machine a job; what it returns or raises is added to `ended`."""
        self.member.out.jobs.append(Job(place, work, self.ended.append, self.ended.append))
        self.machine.request_turn()

    def wait(self) -> None:
        """Wait until a job has ended."""
        count = len(self.ended)
        assert self.world.run_while(lambda: len(self.ended) == count, self.world.now + SECONDS)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(executor, "_PAUSE_CHANCES", (1.0,))
    with TemporaryDirectory(dir=memory_directory()) as directory:
        stage = Stage(directory)
        yield stage
        stage.machine.end()


class WriteFiles:
    """Work that writes two files."""

    def run(self, files: Files, environments: Environments | None = None) -> str:
        del environments
        write_file(files, "/data/one", b"1")
        write_file(files, "/data/two", b"2")
        return "both"


class ReadTwice:
    """Work that reads the database twice, so that other work could change it in between."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def run(self, files: Files, environments: Environments) -> tuple[int, int, int]:
        with open_view(files, environments, self.directory) as view:
            first = view.applied()[0]
            for _ in range(20):
                view.scan_rows(0, 1 << 96, 1)
            again = view.applied()[0]
        with open_view(files, environments, self.directory) as view:
            return first, again, view.applied()[0]


@pytest.mark.sources
def test_flushes_happen_amid_a_job_of_the_helper_which_does_not_see_them(stage: Stage) -> None:
    faults = stage.machine.faults
    assert faults.helper_time[1] * 20 > 0.02, "a flush is due while the job runs"
    stage.submit(ExecutorKind.HELPER, ReadTwice(stage.member.replica.backend_directory))
    for number in range(50):
        stage.world.after(0.002 * number, _put, stage.member, stage.machine, number)
    stage.wait()
    (outcome,) = stage.ended
    assert isinstance(outcome, tuple)
    first, again, later = outcome
    assert first == again < later


def _put(member: Member, machine: Machine, number: int) -> None:
    request = PutRequest(key=b"%d" % number)
    member.replica.propose(
        1000 + number, MEMBER, requests.PUT, request.SerializeToString(), request
    )
    machine.request_turn()


def test_a_helper_that_dies_leaves_what_it_had_done_and_is_replaced(stage: Stage) -> None:
    files = stage.machine.files
    stage.machine.executor.kill_helper(4)
    stage.submit(ExecutorKind.HELPER, WriteFiles())
    stage.wait()
    assert isinstance(stage.ended.pop(), JobLostError)
    assert stage.machine.helpers_lost == 1
    assert not files.exists("/data/two")
    stage.submit(ExecutorKind.HELPER, WriteFiles())
    stage.wait()
    assert stage.ended == ["both"]
    assert files.exists("/data/two")


@pytest.mark.sources
def test_a_helper_that_hangs_takes_its_time_and_the_member_serves_meanwhile(stage: Stage) -> None:
    began, applied = stage.world.now, stage.member.state.applied
    stage.machine.executor.hang_helper(3.0)
    stage.submit(ExecutorKind.HELPER, WriteFiles())
    stage.world.after(1.0, _put, stage.member, stage.machine, 1)
    assert stage.world.run_while(lambda: stage.member.state.applied == applied, began + 2.0)
    stage.wait()
    assert stage.ended == ["both"]
    assert stage.world.now >= began + 3.0


@pytest.mark.parametrize(
    ("hand", "place"),
    [
        (SimulatedWorker.THREAD, ExecutorKind.LOG),
        (SimulatedWorker.FLUSHER, ExecutorKind.FLUSHER),
        (SimulatedWorker.HELPER, ExecutorKind.HELPER),
        (SimulatedWorker.POOL, ExecutorKind.POOL),
    ],
)
def test_the_next_job_of_a_hand_fails(
    stage: Stage, hand: SimulatedWorker, place: ExecutorKind
) -> None:
    stage.machine.executor.fail(hand, 1)
    stage.submit(place, WriteFiles())
    stage.wait()
    assert isinstance(stage.ended.pop(), OSError)
    stage.submit(place, WriteFiles())
    stage.wait()
    assert stage.ended == ["both"]


def test_a_process_that_ends_amid_a_job_of_the_helper_takes_it_along(stage: Stage) -> None:
    files = stage.machine.files
    stage.machine.executor.hang_helper(3.0)
    stage.submit(ExecutorKind.HELPER, WriteFiles())
    assert stage.world.run_while(lambda: stage.machine.executor._stepped is None, SECONDS)
    stage.machine.crash(power_cut=False)
    assert not files.exists("/data/two")
    stage.machine.start()
    stage.world.run_until(stage.world.now + SECONDS)
    assert stage.ended == []
    assert not files.exists("/data/two")


def test_a_failed_password_ends_its_job_and_not_the_member(stage: Stage) -> None:
    work = HashPassword("secret", 4, bytes(16))
    stage.submit(ExecutorKind.PASSWORDS, work)
    stage.wait()
    assert isinstance(stage.ended[0], bytes)
    stage.machine.faults = replace(stage.machine.faults, password_error_chance=1.0)
    stage.submit(ExecutorKind.PASSWORDS, work)
    stage.wait()
    assert isinstance(stage.ended[1], OSError) and stage.member.stopped is None


def test_passwords_are_done_one_after_the_other(stage: Stage) -> None:
    for cost in (5, 4, 6):
        stage.submit(ExecutorKind.PASSWORDS, HashPassword("secret", cost, bytes(16)))
    while len(stage.ended) < 3:
        stage.wait()
    assert [bytes(each)[4:6] for each in stage.ended if isinstance(each, bytes)] == [
        b"05",
        b"04",
        b"06",
    ]
