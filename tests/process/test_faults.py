"""Disks that fail, fill up and rot: the member stops loudly, and loses nothing acknowledged."""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import grpc
import pytest

from kvorum.network.edge import edge_name
from kvorum.storage.wal import SEGMENT_BYTES
from tests.edges import EDGES
from tests.etcd import running_etcd
from tests.kvorum import Kvorum, command, running_kvorum
from tests.process.client import Client, connected
from tests.waiting import WAIT_SECONDS_MAX, until

SOURCE = Path(__file__).with_name("faults.c")
KEYS = [f"key{number}".encode() for number in range(20)]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "faults.so"
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler for the disk that fails")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"],
        check=True,
        timeout=WAIT_SECONDS_MAX,
    )
    return path


def refused(directory: Path, *flags: str) -> str:
    """Start a server that must refuse; return the reason it gives."""
    done = subprocess.run(
        command(directory, "127.0.0.1:0", *flags),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["level"] == "fatal"
    return str(last["error"])


def fatal_lines(server: Kvorum) -> list[str]:
    return [line for line in server.lines if '"level":"fatal"' in line]


def put_until_refused(client: Client, revisions: dict[bytes, int]) -> None:
    for number in range(100_000):
        key = f"later{number}".encode()
        revisions[key] = client.put(key, key)


@pytest.mark.parametrize(
    ("edge", "call", "path", "reason"),
    [
        ("", "sync", ".wal", "Input/output error"),
        ("python", "sync", ".wal", "Input/output error"),
        ("", "write", ".wal", "No space left on device"),
        ("", "sync", "/backend.", "Input/output error"),
    ],
    ids=["sync of the log", "the same, python", "full disk", "sync of the database"],
)
def test_a_disk_that_fails_stops_the_member_and_loses_nothing(
    shim: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edge: str,
    call: str,
    path: str,
    reason: str,
) -> None:
    trigger = tmp_path / "trigger"
    faults = {"LD_PRELOAD": str(shim), "FAULT_TRIGGER": str(trigger)}
    faults |= {"FAULT_PATH": path, "FAULT_CALL": call}
    with monkeypatch.context() as patch:
        for name, value in faults.items():
            patch.setenv(name, value)
        if edge:
            patch.setenv("KVORUM_EDGE", edge)
        with (
            running_kvorum(tmp_path / "data") as server,
            connected(server.address) as client,
        ):
            revisions = {key: client.put(key, key) for key in KEYS}
            trigger.touch()
            with pytest.raises(grpc.RpcError):
                put_until_refused(client, revisions)
            assert server.process.wait(WAIT_SECONDS_MAX) == 1
        assert reason in fatal_lines(server)[-1]
        trigger.unlink()
    with running_kvorum(tmp_path / "data") as server, connected(server.address) as client:
        found = {kv.key: kv.mod_revision for kv in client.everything().kvs}
        assert revisions.items() <= found.items()


@pytest.mark.parametrize("edge", EDGES)
def test_nothing_is_synced_if_that_is_asked_for(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge: str
) -> None:
    trigger = tmp_path / "trigger"
    faults = {"LD_PRELOAD": str(shim), "FAULT_TRIGGER": str(trigger)}
    # Every sync of any file fails, from the start on.
    faults |= {"FAULT_PATH": "/", "FAULT_CALL": "sync", "KVORUM_EDGE": edge}
    for name, value in faults.items():
        monkeypatch.setenv(name, value)
    flags = ("--unsafe-no-fsync", "--backend-batch-limit=5", "--snapshot-count=5")
    trigger.touch()
    with running_kvorum(tmp_path / "data", *flags) as server, connected(server.address) as client:
        for key in KEYS:
            client.put(key, key)
    assert not fatal_lines(server)
    with running_kvorum(tmp_path / "data", *flags) as server, connected(server.address) as client:
        assert {kv.key for kv in client.everything().kvs} == set(KEYS)


def test_a_slow_disk_and_slow_requests_are_warned_of(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "trigger"
    faults = {"LD_PRELOAD": str(shim), "FAULT_TRIGGER": str(trigger)}
    faults |= {"FAULT_PATH": ".wal", "FAULT_CALL": "slow"}
    for name, value in faults.items():
        monkeypatch.setenv(name, value)
    with (
        running_kvorum(tmp_path / "data") as server,
        connected(server.address) as client,
    ):
        client.put(b"key", b"value")
        trigger.touch()
        calls = [client.put_later(key, key) for key in KEYS]
        for call in calls:
            call.result()
        trigger.unlink()
        client.put(b"key", b"value")
    messages = [json.loads(line)["msg"] for line in server.lines]
    assert "slow fdatasync" in messages
    if edge_name() == "native":
        # It writes the puts that came during the first sync off the loop, which can then warn.
        assert "slow request is still in flight" in messages


def test_a_long_apply_is_warned_of(tmp_path: Path) -> None:
    flags = ("--warning-apply-duration=1ms", "--max-txn-ops=5000")
    with (
        running_kvorum(tmp_path / "data", *flags) as server,
        connected(server.address) as client,
    ):
        for number in range(4):
            client.put_many([f"{number}/{key}".encode() for key in range(5000)])
        client.delete_everything()
        assert not client.everything().kvs
        url = f"http://{server.address}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_SECONDS_MAX) as page:
            text = page.read()
    lines = [line for line in server.lines if "apply request took too long" in line]
    assert lines and b"\netcd_server_slow_apply_total %d\n" % len(lines) in text
    assert {json.loads(line)["expected-duration"] for line in lines} == {"1ms"}


def test_a_log_that_rotted_is_refused_with_the_place(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server, connected(server.address) as client:
        for key in KEYS:
            client.put(key, key)
    (segment,) = (tmp_path / "data" / "member" / "wal").glob("*.wal")
    content = bytearray(segment.read_bytes())
    place = content.index(b"key7key7") if b"key7key7" in content else content.index(b"key7")
    content[place] ^= 1
    segment.write_bytes(content)
    reason = refused(tmp_path / "data")
    assert str(segment) in reason and "offset" in reason


def test_a_database_of_a_newer_kind_is_refused(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data"):
        pass
    current = tmp_path / "data" / "member" / "backend" / "CURRENT"
    current.write_text(current.read_text().replace("format 1", "format 99"))
    assert "format 99" in (reason := refused(tmp_path / "data"))
    assert "newer" in reason


def test_the_directory_of_an_etcd_is_refused(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "data"):
        pass
    before = sorted(tmp_path.rglob("*"))
    reason = refused(tmp_path / "data")
    assert "is the data directory of an etcd" in reason and "kvorumutl migrate" in reason
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server, connected(server.address) as client:
        client.put(b"key", b"value")
        assert "another process serves" in refused(tmp_path / "data")
        assert client.get(b"key") == b"value"


def test_a_disk_without_room_for_a_segment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvorum.process.directory import prepare_directory
    from kvorum.process.settings.checks import make_config
    from kvorum.process.start_errors import DirectoryRefusedError
    from kvorum.server.telemetry.logs import Logger
    from kvorum.storage.files.real import RealFiles

    system = os.statvfs(tmp_path)
    config = make_config({"data-dir": str(tmp_path / "data")})
    prepare_directory(config, RealFiles(), Logger([]))
    little = SEGMENT_BYTES // system.f_frsize - 1

    class Small:
        f_bavail, f_frsize = little, system.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda _: Small)
    config = make_config({"data-dir": str(tmp_path / "other")})
    with pytest.raises(DirectoryRefusedError, match=f"{little * system.f_frsize} bytes left"):
        prepare_directory(config, RealFiles(), Logger([]))


LEFT = ["wal/0.tmp", "wal/tmp.x.wal.broken.tmp", "wal.tmp/x.wal", "snap/tmp.image.1"]
LEFT += ["backend/backend.8", "backend/tmp.CURRENT.tmp"]


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("is_enough", [True, False])
def test_what_a_start_removes_counts_as_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_enough: bool
) -> None:
    from kvorum.process.directory import prepare_directory
    from kvorum.process.settings.checks import make_config
    from kvorum.process.start_errors import DirectoryRefusedError
    from kvorum.server.telemetry.logs import Logger
    from kvorum.storage.files.real import RealFiles

    system = os.statvfs(tmp_path)
    little = SEGMENT_BYTES // system.f_frsize - (4 if is_enough else 1024)

    class Small:
        f_bavail, f_frsize = little, system.f_frsize

    left = tmp_path / "data" / "member" / name
    left.parent.mkdir(parents=True)
    with left.open("wb") as file:
        file.write(b"left over" * (64 * system.f_frsize // 9))
        os.fsync(file.fileno())
    current = tmp_path / "data" / "member" / "backend" / "CURRENT"
    current.parent.mkdir(exist_ok=True)
    current.write_text("kvorum backend format 1\nbackend.7\n")
    (current.parent / "backend.7").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(os, "statvfs", lambda _: Small)
    config = make_config({"data-dir": str(tmp_path / "data")})
    if is_enough:
        prepare_directory(config, RealFiles(), Logger([]))
    else:
        with pytest.raises(DirectoryRefusedError, match="bytes left"):
            prepare_directory(config, RealFiles(), Logger([]))


@pytest.mark.long
def test_a_server_that_was_killed_on_a_small_disk_starts_again(tmp_path: Path) -> None:
    """There is room for two segments, not for three; the second is the one made in advance."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        with running_kvorum(disk / "data") as server, connected(server.address) as client:
            client.put(b"key", b"value")
            spare = disk / "data" / "member" / "wal" / "0.tmp"

            def is_made() -> bool:
                client.put(b"other", b"value")
                return spare.exists() and spare.stat().st_size >= SEGMENT_BYTES

            until("a segment is made in advance", is_made)
            server.process.kill()
            server.process.wait()
        with running_kvorum(disk / "data") as server, connected(server.address) as client:
            assert client.get(b"key") == b"value"
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize(
    "flags",
    [
        ("--name=other",),
        ("--initial-advertise-peer-urls=http://127.0.0.1:3",),
        ("--initial-cluster=",),
        ("--initial-cluster=default=http://127.0.0.1:2,default=ftp://x",),
        ("--auto-compaction-retention=soon",),
        ("--data-dir=/dev/null",),
        ("--data-dir=/proc/none",),
    ],
    ids=" ".join,
)
def test_a_start_that_etcd_refuses_is_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = subprocess.run(
        command(tmp_path / "data", "127.0.0.1:0", *flags),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    with (
        pytest.raises(AssertionError, match="etcd ended with 1"),
        running_etcd(tmp_path / "etcd", *flags),
    ):
        pass


def test_signals_end_the_process_as_they_end_etcd(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with running_kvorum(tmp_path / "data") as server:
            server.process.send_signal(number)
            assert server.process.wait(WAIT_SECONDS_MAX) == -number
        assert any("closed etcd server" in line for line in server.lines)
