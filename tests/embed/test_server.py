"""A member in this process: its start, its end, and that the process stays as it was."""

import asyncio
import gc
import logging
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kvorum.client import Client, KvorumError
from kvorum.embed import Config, ConfigError, Server, StartError
from kvorum.embed.errors import ForkedError
from tests.waiting import WAIT_SECONDS_MAX, until


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> set[str]:
    return {each.name for each in threading.enumerate()}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that what a block opens is closed by its end: threads, descriptors."""
    gc.collect()
    before = descriptors(), threads()
    yield
    gc.collect()
    assert (descriptors(), threads()) == before


def value_of(client: Client, key: str = "key") -> bytes | None:
    found = client.get(key)
    return None if found is None else found.value


def patient(server: Server) -> Client:
    """Return a client whose calls a busy machine does not end."""
    return server.client(timeout=WAIT_SECONDS_MAX)


def put_and_get(server: Server, key: str = "key") -> None:
    with patient(server) as client:
        client.put(key, "value")
    with Client(server.client_urls, timeout=WAIT_SECONDS_MAX) as client:
        assert value_of(client, key) == b"value"


@pytest.fixture(scope="module", autouse=True)
def warmed_up() -> None:
    """Import what a first start and a first client import, and start what stays."""
    with Server(Config(ephemeral=True)) as server:
        put_and_get(server)


def test_servers_one_after_another_leave_nothing() -> None:
    with nothing_left():
        for _ in range(3):
            with Server(Config(ephemeral=True)) as server:
                put_and_get(server)
                directory = Path(server.config.data_directory)
                assert directory.exists()
            assert not directory.exists() and server.is_stopped and server.error is None


@pytest.mark.campaign
def test_fifty_servers_one_after_another_leave_nothing() -> None:
    sizes = []
    with nothing_left():
        for _ in range(50):
            with Server(Config(ephemeral=True)) as server:
                put_and_get(server)
            gc.collect()
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    # The first ones fill caches and the arenas of threads.
    assert sizes[-1] - sizes[20] < 16 << 20


@pytest.mark.long
def test_several_at_once_are_strangers() -> None:
    with nothing_left(), ExitStack() as stack:
        servers = [stack.enter_context(Server(Config(ephemeral=True))) for _ in range(5)]
        assert len({server.client_url for server in servers}) == len(servers)
        for number, server in enumerate(servers):
            put_and_get(server, f"key{number}")
        for server in servers:
            with patient(server) as client:
                assert client.count(prefix="key") == 1


@pytest.mark.long
def test_three_of_a_cluster_in_one_process() -> None:
    names = ["one", "two", "three"]
    with nothing_left(), ExitStack() as stack:
        ports = []
        for _ in names:
            # Held by a server that is never started, until all are known.
            held = Server(Config(ephemeral=True))
            stack.callback(held.close)
            ports.append(held.peer_urls[0])
        cluster = dict(zip(names, ports, strict=True))
        servers = [
            Server(
                Config(
                    name=name,
                    ephemeral=True,
                    listen_peer_urls=url,
                    initial_cluster=cluster,
                    heartbeat_interval=100,
                    election_timeout=1000,
                )
            )
            for name, url in cluster.items()
        ]
        for server in servers:
            server.start(wait=False)
            stack.callback(server.close)
        for server in servers:
            server.wait_ready(WAIT_SECONDS_MAX)
        with patient(servers[0]) as first, patient(servers[2]) as last:

            def is_put() -> bool:
                # A busy machine may let them elect another leader just now.
                with suppress(KvorumError):
                    first.put("key", "value")
                    return True
                return False

            until("the cluster takes a key", is_put)
            assert value_of(last) == b"value"
            assert len(last.members.list()) == 3


def test_a_directory_that_is_given_is_kept(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path / "data", unsafe_no_fsync=True)
    with Server(config) as server:
        put_and_get(server)
    with Server(config) as server, patient(server) as client:
        assert value_of(client) == b"value"


@pytest.mark.long
def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path, unsafe_no_fsync=True)
    with nothing_left(), Server(config):
        refused = Server(config)
        with pytest.raises(ConfigError, match="is locked: another process serves"):
            refused.start()
        assert refused.is_stopped and isinstance(refused.error, ConfigError)


@pytest.mark.long
def test_an_address_in_use_is_refused() -> None:
    with nothing_left(), Server(Config(ephemeral=True)) as server:
        refused = Server(Config(ephemeral=True, listen_client_urls=server.client_url))
        with pytest.raises(ConfigError, match="address already in use"):
            refused.start()


@pytest.mark.long
def test_a_log_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path, unsafe_no_fsync=True)
    with Server(config) as server:
        put_and_get(server)
    (segment,) = sorted((tmp_path / "member" / "wal").glob("*.wal"))
    segment.write_bytes(b"\xff" * 64)
    with nothing_left(), pytest.raises(StartError, match="the write-ahead log cannot be opened"):
        Server(config).start()


def test_a_member_that_stops_tells_why() -> None:
    server = Server(Config(ephemeral=True)).start()
    directory = Path(server.config.data_directory)
    client = patient(server)
    client.put("key", "value")

    def fail() -> None:
        raise ArithmeticError("broken on purpose")

    assert server._loop is not None
    server._loop.call_soon_threadsafe(fail)
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        server.wait_stopped(WAIT_SECONDS_MAX)
    with pytest.raises(ArithmeticError, match="broken on purpose"):
        server.close()
    assert isinstance(server.error, ArithmeticError) and not directory.exists()
    with client, pytest.raises(KvorumError, match="has ended"):
        client.put("key", "value", timeout=0.5)


@pytest.mark.long
def test_an_error_of_the_program_leaves_a_clean_directory(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path, unsafe_no_fsync=True)

    def interrupted() -> None:
        with Server(config) as server:
            put_and_get(server)
            raise KeyboardInterrupt

    with nothing_left(), pytest.raises(KeyboardInterrupt):
        interrupted()
    with Server(config) as server, patient(server) as client:
        assert value_of(client) == b"value"


@pytest.mark.long
def test_a_server_that_was_never_started_leaves_nothing() -> None:
    with nothing_left():
        server = Server(Config(ephemeral=True))
        directory = Path(server.config.data_directory)
        server.close()
        assert not directory.exists()


def test_the_process_is_left_alone() -> None:
    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        return handlers, limit, gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        before = state()
        with Server(Config(ephemeral=True)) as server:
            put_and_get(server)
            assert state() == before
        assert state() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.long
def test_a_member_without_ports_is_called_all_the_same() -> None:
    config = Config(ephemeral=True, listen_client_urls=())
    with nothing_left(), Server(config) as server, patient(server) as client:
        client.put("key", "value")
        assert value_of(client) == b"value"
        assert server.client_urls == ()


def test_lines_of_the_log_are_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvorum")
    with Server(Config(ephemeral=True, name="logs")) as server:
        address = server.client_url.removeprefix("http://")
    (ready,) = [each for each in caplog.records if each.getMessage().startswith("ready to serve")]
    assert ready.name == "kvorum" and ready.levelno == logging.INFO
    assert vars(ready)["fields"]["address"] == address and vars(ready)["member"] == "logs"


@pytest.mark.long
def test_the_same_on_asyncio() -> None:
    async def main() -> None:
        async with (
            Server(Config(ephemeral=True)) as server,
            server.async_client(timeout=WAIT_SECONDS_MAX) as client,
            client.watch("key") as watch,
        ):
            await client.put("key", "value")
            assert (await anext(watch)).value == b"value"

    with nothing_left():
        asyncio.run(main())


@pytest.mark.long
def test_a_client_that_outlives_its_member_gets_an_error() -> None:
    with nothing_left():
        with Server(Config(ephemeral=True)) as server:
            client = patient(server)
            client.put("key", "value")
        with client, pytest.raises(KvorumError, match="has ended"):
            client.get("key", timeout=0.5)


# Programs of their own.

START = """
from kvorum.embed import Config, Server
server = Server(Config(data_dir={directory!r}, unsafe_no_fsync=True)).start()
client = server.client(timeout=60)
client.put("key", "value")
"""


def program(text: str, directory: Path, *, sends: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program from its standard input: it has no file, and no `__main__` to import."""
    ran = subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.stdin is not None and ran.stdout is not None
    ran.stdin.write((START + text).format(directory=str(directory)))
    ran.stdin.close()
    ran.stdin = None
    told = ""
    if sends:
        told = ran.stdout.readline()
        ran.send_signal(sends)
    out, errors = ran.communicate(timeout=WAIT_SECONDS_MAX)
    return subprocess.CompletedProcess(ran.args, ran.returncode, told + out, errors)


def is_clean(directory: Path) -> bool:
    """Return whether a member starts again where another ended, with what it had."""
    config = Config(data_dir=directory, unsafe_no_fsync=True)
    with Server(config) as server, patient(server) as client:
        return value_of(client) == b"value"


TEMPORARY = """
other = Server(Config(ephemeral=True)).start()
print(other.config.data_directory, flush=True)
"""


def test_an_interpreter_that_ends_ends_its_members(tmp_path: Path) -> None:
    ended = program(TEMPORARY, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not Path(ended.stdout.strip()).exists()
    assert is_clean(tmp_path)


def test_an_interrupt_ends_members_cleanly(tmp_path: Path) -> None:
    text = f"{TEMPORARY}import threading\nthreading.Event().wait()\n"
    ended = program(text, tmp_path, sends=signal.SIGINT)
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert not Path(ended.stdout.strip()).exists()
    assert is_clean(tmp_path)


def test_helpers_need_no_main_module(tmp_path: Path) -> None:
    ended = program("print(client.maintenance.hash_kv().hash > 0)\n", tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of this very fork
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    for use in (server.client, server.close, server.wait_ready):
        try:
            use()
        except Exception as error:
            print(type(error).__name__, flush=True)
    os.close(writing)
    os.read(reading, 1)
    sys.exit(0)
os.close(reading)
assert client.get("key").value == b"value"
client.close()
server.close()
# The child is still there, and holds no lock.
with Server(Config(data_dir={directory!r}, unsafe_no_fsync=True)) as server:
    print(server.client(timeout=60).get("key").value.decode(), flush=True)
os.close(writing)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    ended = program(FORK, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.split()) == sorted([ForkedError.__name__] * 3 + ["value"])
    assert is_clean(tmp_path)
