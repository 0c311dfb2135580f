"""`snapshot save` beside etcdctl's, and what it leaves when it fails."""

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import grpc
import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client.sync.client import Client
from tests.children import limited
from tests.ports import held_port
from tests.tools.ctl.duel import Duel, run_here
from tests.tools.ctl.processes import until_it_waits
from tests.tools.ctl.terminal import kvorumctl
from tests.waiting import WAIT_SECONDS_MAX

OURS = (sys.executable, "-m", "kvorum.tools.ctl.main")


@pytest.mark.parametrize("form", ["simple", "json", "nonsense"])
def test_a_snapshot_is_saved(duel: Duel, tmp_path: Path, form: str) -> None:
    path = tmp_path / "saved.db"
    outcome = duel.compare("snapshot", "save", str(path), "-w", form)
    assert outcome.code == (4 if form == "nonsense" else 0)
    if outcome.code:
        assert not list(tmp_path.iterdir())
        return
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = path.read_bytes()
    assert data[-32:] == sha256(data[:-32]).digest()


def test_progress_is_shown_at_a_terminal(duel: Duel, tmp_path: Path) -> None:
    path = tmp_path / "saved.db"
    with kvorumctl(duel.ours, "snapshot", "save", str(path)) as terminal:
        terminal.wait_for("saving .*100%.*Snapshot saved at ")
        assert terminal.end() == 0


def test_a_snapshot_replaces_another(duel: Duel, tmp_path: Path) -> None:
    path = tmp_path / "saved.db"
    path.write_bytes(b"before")
    assert duel.compare("snapshot", "save", str(path), "--command-timeout=9s").code == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("words", [(), ("a", "b"), ("none/such/file",), ("",), ("/proc/nothing",)])
def test_files_that_cannot_be(duel: Duel, words: tuple[str, ...]) -> None:
    assert duel.compare("snapshot", "save", *words).code in (5, 128)


def test_a_directory_is_no_file(duel: Duel, tmp_path: Path) -> None:
    assert duel.compare("snapshot", "save", str(tmp_path)).code == 5
    assert not list(tmp_path.parent.glob("*.part"))


def test_what_is_no_file_is_not_replaced(duel: Duel, tmp_path: Path) -> None:
    # etcdctl puts a file in its place.
    special = tmp_path / "special"
    os.mkfifo(special)
    outcome = run_here([f"--endpoints={duel.ours}", "snapshot", "save", str(special)])
    assert (outcome.code, outcome.out) == (5, b"")
    assert b"not a regular file" in outcome.err
    assert list(tmp_path.iterdir()) == [special] and special.is_fifo()


def test_one_member_is_asked(duel: Duel, tmp_path: Path) -> None:
    path = str(tmp_path / "saved.db")
    duel.compare("snapshot", "save", path, "--endpoints=a:1,b:2", endpoints=False)
    duel.compare("snapshot", "save", path, "--endpoints=", endpoints=False)
    assert not list(tmp_path.iterdir())


def test_a_member_without_a_server(duel: Duel, tmp_path: Path) -> None:
    path = str(tmp_path / "saved.db")
    with held_port() as port:
        words = ("snapshot", "save", path, f"--endpoints=127.0.0.1:{port}")
        outcome = duel.compare(*words, "--command-timeout=50ms", endpoints=False)
        assert outcome.code == 5
        login = ("--user=a:b", "--dial-timeout=50ms")
        assert duel.compare(*words, *login, endpoints=False).code == 5
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full(duel: Duel, tmp_path: Path) -> None:
    with Client(duel.ours) as client:
        client.put("large", bytes(100_000))
    before = tmp_path / "saved.db"
    before.write_bytes(b"the snapshot of yesterday")
    done = subprocess.run(
        # A file may have a hundred blocks of 512 bytes.
        limited([*OURS, f"--endpoints={duel.ours}", "snapshot", "save", str(before)], "-f 100"),
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"could not write snapshot: write " in done.stderr
    assert b"Hint: nothing was saved" in done.stderr
    assert list(tmp_path.iterdir()) == [before]
    assert before.read_bytes() == b"the snapshot of yesterday"


class Pretender:
    """A server that sends a snapshot which is none, or never ends."""

    def __init__(self, blobs: list[bytes], *, is_endless: bool = False) -> None:
        self._blobs = blobs
        self.is_asked = threading.Event()
        self._may_end = threading.Event()
        if not is_endless:
            self._may_end.set()

    def _snapshot(self, _request: bytes, _context: object) -> Iterator[bytes]:
        for blob in self._blobs:
            yield pb.SnapshotResponse(blob=blob, remaining_bytes=1).SerializeToString()
        self.is_asked.set()
        self._may_end.wait()

    @contextmanager
    def running(self) -> Iterator[str]:
        with ThreadPoolExecutor(4) as executor:
            server = grpc.server(executor)
            handlers = {
                "Snapshot": grpc.unary_stream_rpc_method_handler(self._snapshot),
                "Status": grpc.unary_unary_rpc_method_handler(lambda *_: b""),
            }
            service = grpc.method_handlers_generic_handler("etcdserverpb.Maintenance", handlers)
            server.add_generic_rpc_handlers((service,))
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                self._may_end.set()
                server.stop(None).wait()


@pytest.mark.parametrize(
    ("blobs", "problem"),
    [
        ([], b"sha256 checksum not found [bytes: 0]"),
        ([b"x" * 100], b"sha256 checksum not found [bytes: 100]"),
        ([b"x" * 512, b"y" * 32], b"does not end with its SHA-256"),
    ],
)
def test_a_snapshot_that_is_none(tmp_path: Path, blobs: list[bytes], problem: bytes) -> None:
    with Pretender(blobs).running() as address:
        outcome = run_here([f"--endpoints={address}", "snapshot", "save", str(tmp_path / "f")])
    assert (outcome.code, outcome.out) == (5, b"")
    assert problem in outcome.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(tmp_path: Path, number: int) -> None:
    pretender = Pretender([bytes(1 << 20)], is_endless=True)
    with pretender.running() as address:
        process = subprocess.Popen(
            [*OURS, f"--endpoints={address}", "snapshot", "save", str(tmp_path / "f")],
            stderr=subprocess.DEVNULL,
        )
        assert pretender.is_asked.wait(WAIT_SECONDS_MAX)
        assert (tmp_path / "f.part").exists()
        until_it_waits(process)
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS_MAX) in (-number, 128 + number)
    assert not list(tmp_path.iterdir())
