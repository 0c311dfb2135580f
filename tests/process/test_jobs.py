"""Jobs: in order at each place, whatever runs them; failures and a dead helper are reported."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.member.jobs import ExecutorKind, Job, JobLostError, Nothing
from kvorum.network.edge import open_edge
from kvorum.process.executor import IDLE_NICENESS, ProcessExecutor
from kvorum.process.helper import LENGTH, PACKAGES, START, Helper
from kvorum.server.jobs import Ended, JobOrder, Outcome
from kvorum.server.telemetry.logs import Logger
from kvorum.state.auth.passwords import CheckPassword
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import AppendLog
from tests.edges import EDGES
from tests.waiting import WAIT_SECONDS_MAX

RECORD = 8


class Look(NamedTuple):
    """Reads how many records are in the log's file when it is run."""

    path: str

    def run(self, files: Files) -> int:
        descriptor = files.open(self.path, Opening.READ)
        try:
            return files.size(descriptor) // RECORD
        finally:
            files.close(descriptor)


def run_jobs(
    edge_name: str,
    path: Path,
    shape: list[tuple[bool, bool]],
    patch: pytest.MonkeyPatch,
    *,
    in_memory: bool,
) -> None:
    """Give jobs to a runner, some at once, and check when each is run."""
    patch.setenv("KVORUM_EDGE", edge_name)
    edge = open_edge([])
    files = RealFiles()
    descriptor = files.open(str(path), Opening.CREATE)
    loop = asyncio.new_event_loop()
    woken = asyncio.Event()
    environments, logger = LmdbEnvironments(), Logger([])
    executor = ProcessExecutor(
        loop, edge, files, environments, logger, woken.set, sync=False, in_memory=in_memory
    )
    order = JobOrder(executor)
    expected: list[int | None] = []
    jobs = []
    appended = 0
    for is_append, _ in shape:
        work: object
        if is_append:
            work = AppendLog(descriptor, appended * RECORD, appended.to_bytes(RECORD, "big"))
            appended += 1
            expected.append(None)
        else:
            work = Look(str(path))
            expected.append(appended)
        jobs.append(Job(ExecutorKind.LOG, work, lambda _: None))

    async def drive() -> list[object]:
        loop.add_reader(edge.fileno(), woken.set)
        ended: list[Ended] = []
        for job, (_, may_write) in zip(jobs, shape, strict=True):
            order.submit([job], 1 << 16 if may_write else 0)
        while len(ended) < len(jobs):
            edge.awake()
            ended += order.take_ended()
            if len(ended) < len(jobs) and not order.has_ended and edge.announce_sleep():
                await asyncio.wait_for(woken.wait(), WAIT_SECONDS_MAX)
                woken.clear()
        assert [job for job, _, _ in ended] == jobs
        assert [error for _, _, error in ended] == [None] * len(jobs)
        loop.remove_reader(edge.fileno())
        return [result for _, result, _ in ended]

    try:
        assert loop.run_until_complete(drive()) == expected
    finally:
        executor.stop()
        edge.stop()
        loop.close()
        files.close(descriptor)


@pytest.mark.parametrize("edge", EDGES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shape=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12), in_memory=st.booleans()
)
def test_jobs_of_the_log_run_in_order(
    edge: str,
    shape: list[tuple[bool, bool]],
    in_memory: bool,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path_factory.mktemp("log") / "file"
    run_jobs(edge, path, shape, monkeypatch, in_memory=in_memory)


@pytest.fixture
def _finds_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the helper import work that is defined here."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


class Compute(NamedTuple):
    """Work for the helper."""

    what: str
    size: int = 0
    given: bytes = b""

    def run(self, _files: object, _environments: object) -> object:
        if self.what == "wait":
            return Path(self.given.decode()).read_bytes()
        if self.what == "fail":
            raise ValueError("nothing to compute")
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid(), b"x" * self.size


def with_helper(use: Callable[[Helper, "asyncio.Queue[tuple[object, Outcome]]"], object]) -> None:
    async def drive() -> None:
        outcomes: asyncio.Queue[tuple[object, Outcome]] = asyncio.Queue()
        helper = Helper(
            asyncio.get_running_loop(),
            lambda token, outcome: outcomes.put_nowait((token, outcome)),
        )
        try:
            await asyncio.wait_for(use(helper, outcomes), WAIT_SECONDS_MAX)  # type: ignore[arg-type]
        finally:
            helper.stop()

    asyncio.run(drive())


@pytest.mark.usefixtures("_finds_tests")
def test_the_helper_computes_elsewhere_and_survives_errors() -> None:
    async def use(helper: Helper, outcomes: "asyncio.Queue[tuple[object, Outcome]]") -> None:
        found = []
        for token, work in enumerate(
            [Compute("work", 10), Compute("fail"), Compute("work", 3_000_000)]
        ):
            helper.run(token, work)
            found.append(await outcomes.get())
        first, failed, large = found
        assert [first[0], failed[0], large[0]] == [0, 1, 2]
        assert isinstance(first[1][0], tuple) and first[1][0][0] != os.getpid()
        assert isinstance(failed[1][1], ValueError)
        assert str(failed[1][1]) == "nothing to compute"
        assert isinstance(large[1][0], tuple) and len(large[1][0][1]) == 3_000_000

    with_helper(use)


@pytest.mark.usefixtures("_finds_tests")
def test_a_helper_that_dies_is_replaced() -> None:
    async def use(helper: Helper, outcomes: "asyncio.Queue[tuple[object, Outcome]]") -> None:
        helper.run("dying", Compute("die"))
        token, (_, error) = await outcomes.get()
        assert token == "dying"
        assert isinstance(error, JobLostError)
        helper.run("behind", Compute("work", 1))
        token, (result, error) = await outcomes.get()
        assert (token, error) == ("behind", None)
        assert isinstance(result, tuple)

    with_helper(use)


class Written(NamedTuple):
    """Work for a thread: waits for a file."""

    path: str

    def run(self, _files: object, _environments: object = None) -> bytes:
        return Path(self.path).read_bytes()


def with_order(use: Callable[[JobOrder, Callable[[], Awaitable[Ended]]], Awaitable[None]]) -> None:
    """Let jobs run in real hands; the second argument waits for the next one that ends."""

    async def drive() -> None:
        loop, woken, edge = asyncio.get_running_loop(), asyncio.Event(), open_edge([])
        executor = ProcessExecutor(
            loop, edge, RealFiles(), LmdbEnvironments(), Logger([]), woken.set
        )
        order = JobOrder(executor)
        ended: list[Ended] = []

        async def next_ended() -> Ended:
            while not ended:
                ended.extend(order.take_ended())
                if not ended:
                    await asyncio.wait_for(woken.wait(), WAIT_SECONDS_MAX)
                    woken.clear()
            return ended.pop(0)

        try:
            await use(order, next_ended)
        finally:
            executor.stop()
            edge.stop()

    asyncio.run(drive())


@pytest.mark.usefixtures("_finds_tests")
def test_work_waits_for_a_busy_helper_and_nobody_waits_for_its_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    busy = Job(ExecutorKind.HELPER, Compute("wait", given=str(fifo).encode()))
    behind = [Job(ExecutorKind.HELPER, Compute("work", given=bytes(8 << 20))) for _ in range(3)]

    async def use(order: JobOrder, next_ended: Callable[[], Awaitable[Ended]]) -> None:
        order.submit([busy, *behind])
        # Only now the first job can end: if `submit` had waited for it, it would have hung.
        await asyncio.to_thread(fifo.write_bytes, b"go on")
        assert await next_ended() == (busy, b"go on", None)
        for job in behind:
            ended, _, error = await next_ended()
            assert (ended, error) == (job, None)

    with_order(use)


@pytest.mark.usefixtures("_finds_tests")
def test_short_work_does_not_wait_for_the_helper_to_start() -> None:
    short = [Job(ExecutorKind.HELPER, Compute("work"), is_short=True) for _ in range(2)]

    async def use(order: JobOrder, next_ended: Callable[[], Awaitable[Ended]]) -> None:
        order.submit(short)
        first, second = [cast(tuple[int, bytes], (await next_ended())[1]) for _ in short]
        assert first[0] == os.getpid() != second[0]

    with_order(use)


@pytest.mark.usefixtures("_finds_tests")
def test_work_that_a_dead_helper_had_not_begun_is_not_lost_with_it() -> None:
    dying = Job(ExecutorKind.HELPER, Compute("die"))
    behind = Job(ExecutorKind.HELPER, Compute("work", 1))

    async def use(order: JobOrder, next_ended: Callable[[], Awaitable[Ended]]) -> None:
        order.submit([dying, behind])
        job, _, error = await next_ended()
        assert job is dying
        assert isinstance(error, JobLostError)
        job, _, error = await next_ended()
        assert (job, error) == (behind, None)

    with_order(use)


def test_a_job_that_is_awaited_ends_after_those_before_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    first = Job(ExecutorKind.FLUSHER, Written(str(fifo)))
    awaited = Job(ExecutorKind.FLUSHER, Nothing(), is_awaited=True)

    async def use(order: JobOrder, next_ended: Callable[[], Awaitable[Ended]]) -> None:
        order.submit([first])
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, fifo.write_bytes, b"done")
        order.submit([awaited])
        assert order.take_ended() == [(first, b"done", None), (awaited, None, None)]
        await writing
        # What was waited for is not reported again.
        after = Job(ExecutorKind.FLUSHER, Nothing())
        order.submit([after])
        assert await next_ended() == (after, None, None)

    with_order(use)


@pytest.mark.usefixtures("_finds_tests")
def test_large_work_is_lost_with_a_helper_that_does_not_read_it() -> None:

    async def use(helper: Helper, outcomes: "asyncio.Queue[tuple[object, Outcome]]") -> None:
        helper.run("first", Compute("work"))
        _, (result, _) = await outcomes.get()
        assert isinstance(result, tuple)
        os.kill(result[0], signal.SIGSTOP)
        helper.run("large", Compute("work", given=bytes(8 << 20)))
        os.kill(result[0], signal.SIGKILL)
        token, (_, error) = await outcomes.get()
        assert token == "large"
        assert isinstance(error, JobLostError)
        helper.run("next", Compute("work"))
        assert (await outcomes.get())[1][1] is None

    with_helper(use)


def test_nothing_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    for name in ("struct", "pickle", "lmdb", "kvorum"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)

    async def use(helper: Helper, outcomes: "asyncio.Queue[tuple[object, Outcome]]") -> None:
        helper.run("work", Nothing())
        assert await outcomes.get() == ("work", (None, None))

    with_helper(use)
    for command in ("kvorum", "kvorumutl"):
        path = Path(sys.executable).with_name(command)
        subprocess.run([path, "--help"], check=True, capture_output=True)
    assert not marker.exists()


@pytest.mark.usefixtures("_finds_tests")
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_helper_whose_server_was_killed_ends_without_a_word(is_cut: bool) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-c", START, str(PACKAGES), "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE
    ) as process:
        os.close(reader)
        os.close(writer)
        work = pickle.dumps(Compute("work"))
        sent = LENGTH.pack(len(work)) + work
        _, said = process.communicate(sent[:-1] if is_cut else sent)
    assert (process.returncode, said) == (0 if is_cut else -signal.SIGPIPE, b"")


def test_only_the_idle_process_of_passwords_gives_way_to_others() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    password = CheckPassword(b"no hash", "anything")

    async def use(order: JobOrder, next_ended: Callable[[], Awaitable[Ended]]) -> None:
        for place, work in (
            (ExecutorKind.PASSWORDS, password),
            (ExecutorKind.PASSWORDS_IDLE, password),
            (ExecutorKind.HELPER, Nothing()),
        ):
            order.submit([Job(place, work)])
            _, result, error = await next_ended()
            assert error is None and not result
        executor = cast("ProcessExecutor", order._executor)
        niceness = {}
        for place, helper in executor._helpers.items():
            assert helper._process is not None
            niceness[place] = os.getpriority(os.PRIO_PROCESS, helper._process.pid)
        assert niceness == {
            ExecutorKind.HELPER: before,
            ExecutorKind.PASSWORDS: before,
            ExecutorKind.PASSWORDS_IDLE: min(19, before + IDLE_NICENESS),
        }

    with_order(use)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
