"""Recipes shared with a Go program that uses etcd's own: both keep to the same keys."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvorum.client.sync.client import Client
from tests.client.recipes.queueing import queue_of

SOURCE = Path(__file__).parents[3] / "tools" / "oracle" / "etcd"
BUILD_SECONDS_MAX = 300

Start = Callable[..., "Go"]


class Go:
    """A run of the program: it prints what happened, and continues after each line of input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def write_line(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("there is no Go to build the program with")
    path = tmp_path_factory.mktemp("go") / "recipes"
    built = subprocess.run(
        ["go", "build", "-trimpath", "-o", path, "./recipes"],
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    missing = ("module lookup disabled", "requires go", "go.mod requires")
    if any(reason in built.stderr for reason in missing):
        pytest.skip(f"Go lacks what the program needs; 'make oracle' gets it: {built.stderr}")
    assert built.returncode == 0, built.stderr
    return path


@pytest.fixture
def go(program: Path, server: str) -> Iterator[Start]:
    """Return what starts the program on a recipe."""
    with ExitStack() as stack:

        def start(*arguments: str) -> Go:
            process = stack.enter_context(
                subprocess.Popen(
                    [program, server, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return Go(process)

        yield start


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server, timeout=20) as made:
        yield made


@pytest.mark.long
def test_a_lock(client: Client, go: Start, name: str) -> None:
    with client.lock(name, ttl=30) as lock:
        other = go("lock", name)
        assert other.read_line() == "busy"
        other.write_line()
        queue_of(client, f"{name}/", 2)
        fencing = lock.fencing
    held, number = other.read_line().split()
    assert held == "held"
    assert int(number) > fencing
    assert not client.lock(name, ttl=30).try_acquire()
    with ThreadPoolExecutor(1) as pool:
        mine = client.lock(name, ttl=30)
        waiting = pool.submit(mine.acquire)
        queue_of(client, f"{name}/", 2)
        other.write_line()
        waiting.result()
        assert mine.fencing > int(number)
        mine.release()
    assert other.read_line() == "done"


def test_an_election(client: Client, go: Start, name: str) -> None:
    mine = client.election(name, ttl=30)
    mine.campaign("python")
    assert go("leader", name).read_line() == "leader python"
    other = go("election", name)
    queue_of(client, f"{name}/", 2)
    leaders = mine.observe()
    assert next(leaders).value == b"python"
    mine.resign()
    leads, number = other.read_line().split()
    assert leads == "leads"
    found = mine.leader()
    assert (found.value, found.create_revision) == (b"go", int(number))
    assert next(leaders).value == b"go"
    other.write_line("still go")
    assert other.read_line() == "proclaimed"
    assert next(leaders).value == b"still go"
    other.write_line()
    mine.campaign("python again")
    assert mine.fencing > int(number)
    mine.resign()


def test_queues(client: Client, go: Start, name: str) -> None:
    queue, other = client.queue(name), go("queue", name)
    assert queue.get() == b"from go"
    assert other.read_line() == "put"
    queue.put("from python")
    other.write_line()
    assert other.read_line() == "got from python"
    # A dequeue that waits takes what comes.
    waiting = go("queue", f"{name}-2")
    assert waiting.read_line() == "put"
    assert client.queue(f"{name}-2").get() == b"from go"
    waiting.write_line()
    client.queue(f"{name}-2").put("late")
    assert waiting.read_line() == "got late"


def test_priority_queues(client: Client, go: Start, name: str) -> None:
    queue, other = client.priority_queue(name), go("priority", name)
    assert other.read_line() == "put"
    queue.put("later", 5)
    queue.put("last", 6)
    queue.put("first", 4)
    other.write_line()
    assert other.read_line() == "got first"
    assert [queue.get() for _ in range(3)] == [b"from go", b"later", b"last"]


def test_barriers(client: Client, go: Start, name: str) -> None:
    barrier, other = client.barrier(name), go("barrier", name)
    assert other.read_line() == "holds"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(barrier.wait)
        other.write_line()
        waiting.result()
    assert other.read_line() == "released"
    barrier.create()
    other.write_line()
    barrier.remove()
    assert other.read_line() == "done"


def test_double_barriers(client: Client, go: Start, name: str) -> None:
    others = [go("double", name, "3") for _ in range(2)]
    with client.double_barrier(name, 3, ttl=30):
        for each in others:
            assert each.read_line() == "entered"
            each.write_line()
    assert [each.read_line() for each in others] == ["done", "done"]
    assert client.count(prefix=f"{name}/") == 0


def test_locks_for_readers_and_writers(client: Client, go: Start, name: str) -> None:
    lock = client.read_write_lock(name, ttl=30)
    with lock.read():
        reading = go("read", name)
        assert reading.read_line() == "held"
        writing = go("write", name)
        queue_of(client, f"{name}/write/", 1)
        assert not lock.read().try_acquire()
        reading.write_line()
        assert reading.read_line() == "done"
    assert writing.read_line() == "held"
    with ThreadPoolExecutor(1) as pool:
        mine = lock.write()
        waiting = pool.submit(mine.acquire)
        queue_of(client, f"{name}/write/", 2)
        writing.write_line()
        waiting.result()
        mine.release()


def test_transactions(client: Client, go: Start, name: str) -> None:
    other = go("stm", name)
    for _ in range(20):
        client.counter(name).add()
    assert other.read_line() == "done"
    assert client.counter(name).value() == 40


def test_leasing(client: Client, go: Start, name: str) -> None:
    client.put(name, "first")
    with client.leasing(f"{name}/own/") as leased:
        # Theirs: it is given up before we write.
        other = go("leasing", name)
        assert other.read_line() == "got first"
        assert client.get(f"{name}/own/{name}") is not None
        leased.put(name, "second")
        assert client.get(f"{name}/own/{name}") is None
        # Ours: it is given up before they write.
        assert leased.get(name) is not None
        assert client.get(f"{name}/own/{name}") is not None
        other.write_line()
        assert other.read_line() == "got second"
        other.write_line()
        assert other.read_line() == "put"
        found = leased.get(name)
        assert found is not None
        assert found.value == b"from go"
        other.write_line()
        assert other.read_line() == "done"
