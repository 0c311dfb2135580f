"""Starting: the ready line, systemd, versions, help, limits, restarts."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.etcdctl import run as etcdctl
from tests.etcd import binary
from tests.kvorum import command, running_kvorum
from tests.process.client import connected
from tests.waiting import WAIT_SECONDS_MAX

PROGRAM = str(Path(sys.executable).parent / "kvorum")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )


def test_what_is_put_is_there_after_a_restart(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server:
        assert etcdctl(server.address, "put", "hello", "world").output == "OK\n"
        assert etcdctl(server.address, "get", "hello").output == "hello\nworld\n"
    assert list((tmp_path / "data" / "member" / "wal").glob("*.wal"))
    with running_kvorum(tmp_path / "data") as server:
        assert etcdctl(server.address, "get", "hello").output == "hello\nworld\n"
        status = etcdctl(server.address, "endpoint", "status", "--write-out=json")
        assert json.loads(status.output)[0]["Status"]["version"].startswith("3.7.")


def test_a_log_elsewhere(tmp_path: Path) -> None:
    flags = (f"--wal-dir={tmp_path / 'fast' / 'wal'}",)
    with running_kvorum(tmp_path / "data", *flags) as server, connected(server.address) as client:
        client.put(b"key", b"value")
    assert list((tmp_path / "fast" / "wal").glob("*.wal"))
    assert not (tmp_path / "data" / "member" / "wal").exists()
    with running_kvorum(tmp_path / "data", *flags) as server, connected(server.address) as client:
        assert client.get(b"key") == b"value"


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(WAIT_SECONDS_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        with running_kvorum(tmp_path / "data") as server:
            assert manager.recv(100) == b"READY=1"
            with connected(server.address) as client:
                client.put(b"key", b"value")


def test_the_log_of_a_start_says_what_etcds_says(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server:
        entries = [json.loads(line) for line in server.lines]
    messages = [entry["msg"] for entry in entries]
    for wanted in (
        "starting an etcd server",
        "now serving peer/client/metrics",
        "serving client traffic insecurely; this is strongly discouraged!",
        "ready to serve client requests",
    ):
        assert wanted in messages
    start = entries[messages.index("starting an etcd server")]
    assert start["data-dir"] == str(tmp_path / "data")
    assert start["election-timeout"] == "50ms"
    assert entries[messages.index("ready to serve client requests")]["address"] == server.address


def test_descriptors_are_raised(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running_kvorum(tmp_path / "data") as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert re.search(rf"Max open files\s+{hard}\s+{hard}", limits)


def test_too_few_descriptors_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 100 && exec "$@"', "sh", *command(tmp_path, "127.0.0.1:0")],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    assert "file descriptor limit [100] of the process is too low" in done.stderr


def test_version_and_help() -> None:
    version = run("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("kvorum Version: ")
    shown = run("--help")
    theirs = subprocess.run(
        [str(binary("etcd")), "--help"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == theirs.returncode == 0
    # Usage on stderr, flags on stdout, as etcd prints them.
    assert shown.stderr.startswith("Usage:") and theirs.stderr.startswith("Usage:")
    assert "--data-dir" in shown.stdout and "--data-dir" in theirs.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "code"),
    [
        (["--no-such-flag"], {}, 2),
        (["--heartbeat-interval=x"], {}, 2),
        (["--log-level=loud"], {}, 2),
        (["--initial-cluster-state=odd"], {}, 2),
        (["positional"], {}, 1),
        (["--heartbeat-interval=0"], {}, 1),
        (["--logger=other"], {}, 1),
        ([], {"ETCD_HEARTBEAT_INTERVAL": "0"}, 1),
        ([], {"ETCD_HEARTBEAT_INTERVAL": "x"}, 1),
        (["--heartbeat-interval=100"], {"ETCD_HEARTBEAT_INTERVAL": "100"}, 1),
    ],
    ids=str,
)
def test_exit_codes_are_etcds(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int
) -> None:
    done = run(*arguments, **environment)
    theirs = subprocess.run(
        [str(binary("etcd")), *arguments],
        capture_output=True,
        env=os.environ | environment,
        cwd=tmp_path,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, theirs.returncode) == (code, code), done.stderr
    assert done.stderr


def test_flags_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVORUM_MAX_TXN_OPS", "1")
    with running_kvorum(tmp_path / "data") as server:
        two = 'value("a") = "1"\n\nput a 5\nput d 6\n\nput a 1\nput b 2\n\n'
        outcome = etcdctl(server.address, "txn", text=two)
        assert "too many operations in txn request" in outcome.error


def test_a_request_limit_and_a_quota_by_flags(tmp_path: Path) -> None:
    flags = ("--max-request-bytes=1000", "--quota-backend-bytes=100000")
    with running_kvorum(tmp_path / "data", *flags) as server:
        large = etcdctl(server.address, "put", "key", "x" * 2000)
        assert "request is too large" in large.error
        for number in range(1000):
            outcome = etcdctl(server.address, "put", f"key{number}", "x" * 900)
            if outcome.code:
                break
        assert "database space exceeded" in outcome.error
        assert "NOSPACE" in etcdctl(server.address, "alarm", "list").output
