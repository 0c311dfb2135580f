"""What flags change about a start: socket options, locked memory, defragmenting, one election."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.process.locking import FileLock
from kvorum.storage.backend.real import LmdbEnvironments
from tests.clients.etcdctl import run as etcdctl
from tests.etcd import is_target, running_etcd
from tests.kvorum import command
from tests.ports import held_port, held_ports
from tests.process.client import connected
from tests.process.fork_server import Child, ForkServer, fork_server, running
from tests.waiting import WAIT_SECONDS_MAX, until

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("servers")) as made:
        yield made


def messages(server: Child) -> list[str]:
    return [json.loads(line)["msg"] for line in list(server.lines)]


def fields(server: Child, message: str) -> dict[str, object]:
    """Return the fields of the one line with this message."""
    (found,) = [one for one in map(json.loads, list(server.lines)) if one["msg"] == message]
    return {name: value for name, value in found.items() if name not in ("level", "ts", "caller")}


def test_ports_are_shared_by_those_who_ask_for_it(servers: ForkServer, tmp_path: Path) -> None:
    with held_ports(3) as ports:
        flags = [
            f"--listen-{kind}-urls=http://127.0.0.1:{port}"
            for kind, port in zip(("client", "peer", "metrics"), ports, strict=True)
        ]
        # A socket in the file system is never shared; the flag does not concern it.
        mixed = f"{flags[0]},unix://{tmp_path}/socket"
        shared = "--socket-reuse-port"
        with (
            running(servers, tmp_path / "one", mixed, *flags[1:], shared) as one,
            running(servers, tmp_path / "two", *flags, shared),
        ):
            assert fields(one, "configuring socket options") == {
                "msg": "configuring socket options",
                "reuse-address": False,
                "reuse-port": True,
            }
            for flag in flags:
                refused = servers.start(tmp_path / "three", flag)
                assert refused.wait() == 1
                assert "address already in use" in refused.lines[-1]


def test_a_port_that_was_just_used_is_free(servers: ForkServer, tmp_path: Path) -> None:
    """Go sets SO_REUSEADDR on every listening socket; so do we, and the flag is only told."""
    server = servers.start(tmp_path / "data", "--socket-reuse-address")
    server.wait_ready()
    assert fields(server, "configuring socket options") == {
        "msg": "configuring socket options",
        "reuse-address": True,
        "reuse-port": False,
    }
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))):
        # The server closes first, so that its side of the connection lingers in TIME_WAIT.
        server.kill()
    again = f"--listen-metrics-urls=http://{server.address}"
    with running(servers, tmp_path / "data", again) as server:
        assert "configuring socket options" not in messages(server)


def locked_bytes(server: Child) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(r"VmLck:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def may_lock(size: int) -> bool:
    """Return whether this user may lock so much memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return os.geteuid() == 0 or soft == resource.RLIM_INFINITY or soft >= size


@pytest.mark.skipif(not may_lock(8 * MEBIBYTE), reason="RLIMIT_MEMLOCK is too low")
def test_the_database_is_locked_as_it_grows(servers: ForkServer, tmp_path: Path) -> None:
    with running(servers, tmp_path / "data") as server:
        assert not locked_bytes(server)
    file = tmp_path / "data" / "member" / "backend" / "backend.1"
    with running(servers, tmp_path / "data", "--memory-mlock") as server:
        first = locked_bytes(server)
        assert first > 0
        with connected(server.address) as client:
            for _ in range(3):
                client.put(b"key", b"x" * MEBIBYTE)
    with running(servers, tmp_path / "data", "--memory-mlock") as server:
        assert locked_bytes(server) >= 3 * MEBIBYTE > first
        # The file may just have grown.
        until(
            "all of the file is locked",
            lambda: file.stat().st_size // 4096 * 4096 <= locked_bytes(server),
        )


NO_LOCKING = """
import ctypes, os, resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
CAPBSET_DROP, IPC_LOCK = 24, 14
ctypes.CDLL(None).prctl(CAPBSET_DROP, IPC_LOCK, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_memory_that_cannot_be_locked_refuses_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            NO_LOCKING,
            *command(tmp_path / "data", "127.0.0.1:0", "--memory-mlock"),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["msg"] == "failed to start etcd: the database cannot be opened"
    assert "RLIMIT_MEMLOCK" in last["error"] and "this process may lock 0 bytes" in last["error"]


@pytest.mark.skipif(not may_lock(MEBIBYTE), reason="RLIMIT_MEMLOCK is too low")
def test_only_the_file_is_locked(tmp_path: Path) -> None:
    """The map of a database is 64 GiB large; its file is not."""
    environments = LmdbEnvironments(None, FileLock)
    path = str(tmp_path / "database")
    environment = environments.open(path, 1 << 36)
    lock = getattr(environment, "lock", None)
    assert isinstance(lock, FileLock)
    assert 0 < lock.locked_bytes <= Path(path).stat().st_size
    # The one that replaces it is locked instead.
    other = environments.open(f"{path}.2", 1 << 36)
    assert getattr(environment, "lock", None) is None
    assert isinstance(getattr(other, "lock", None), FileLock)
    other.close()
    environment.close()


def test_the_database_is_defragmented_at_the_start(servers: ForkServer, tmp_path: Path) -> None:
    flag = "--bootstrap-defrag-threshold-megabytes=2"
    skipping, finished = "Skipping defragmentation", "finished defragmenting directory"
    file = tmp_path / "data" / "member" / "backend"
    with running(servers, tmp_path / "data", flag) as server:
        assert skipping in messages(server)
        with connected(server.address) as client:
            for _ in range(4):
                client.put(b"key", b"x" * MEBIBYTE)
            revision = client.put(b"key", b"value")
        assert etcdctl(server.address, "compact", "--physical", str(revision)).code == 0
    with running(servers, tmp_path / "data") as server:
        # Without the flag nothing is said, and nothing done.
        assert not {skipping, finished} & set(messages(server))
    before = sum(each.stat().st_size for each in file.iterdir())
    assert before > 4 * MEBIBYTE
    with running(servers, tmp_path / "data", flag) as server, connected(server.address) as client:
        assert finished in messages(server) and skipping not in messages(server)
        assert sum(each.stat().st_size for each in file.iterdir()) < MEBIBYTE
        assert client.get(b"key") == b"value"
    with running(servers, tmp_path / "data", flag) as server:
        assert skipping in messages(server)


def test_etcd_says_that_it_skips_defragmenting(servers: ForkServer, tmp_path: Path) -> None:
    if not is_target():
        pytest.skip("3.5 has the flag under another name")
    log = tmp_path / "log"
    flags = ("--bootstrap-defrag-threshold-megabytes=2", f"--log-outputs={log},stderr")
    with running_etcd(tmp_path / "data", *flags):
        pass
    theirs = [json.loads(line) for line in log.read_text().splitlines()]
    (told,) = [line for line in theirs if line["msg"] == "Skipping defragmentation"]
    with running(servers, tmp_path / "ours", flags[0]) as server:
        ours = fields(server, "Skipping defragmentation")
    assert ours.keys() <= told.keys()
    name = "bootstrap-defrag-threshold-bytes"
    assert ours[name] == told[name] == 2 * MEBIBYTE


def test_a_lone_member_holds_one_election(servers: ForkServer, tmp_path: Path) -> None:
    # So long an election timeout that a slow disk does not exceed it.
    flags = ("--heartbeat-interval=1000", "--election-timeout=50000")
    for term in (1, 2):
        with running(servers, tmp_path / "data", *flags) as server:
            told = messages(server)
            elections = [line for line in told if "is starting a new election" in line]
            assert len(elections) == 1 and elections[0].endswith(f"at term {term}")
            assert not [line for line in told if "cannot campaign" in line]


def test_it_is_ready_when_every_listener_is_bound(servers: ForkServer, tmp_path: Path) -> None:
    with held_port() as second, held_port() as metrics, held_port() as http:
        addresses = [f"127.0.0.1:{port}" for port in (second, metrics, http)]
        flags = (
            f"--listen-client-urls=http://{addresses[0]},unix://{tmp_path}/socket",
            f"--listen-metrics-urls=http://{addresses[1]}",
            f"--listen-client-http-urls=http://{addresses[2]}",
        )
        with running(servers, tmp_path / "data", *flags) as server:
            told = messages(server)
            first = told.index("ready to serve client requests")
            for place, message in enumerate(told):
                if message.startswith("serving "):
                    assert place < first
            assert sum(message.startswith("serving client traffic") for message in told) == 3
            for address in addresses:
                host, port = address.split(":")
                socket.create_connection((host, int(port)), timeout=WAIT_SECONDS_MAX).close()
