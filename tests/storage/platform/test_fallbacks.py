"""What comes in the place of calls that a system lacks."""

import errno
import fcntl
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvorum.storage.backend import real
from kvorum.storage.files.real import RealFiles
from kvorum.storage.platform import files, processes, sockets


def test_a_sync_that_fails_is_not_tried_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def refuse(_descriptor: int, _command: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    number = errno.EIO
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        files._empty_drive_cache(3)
    assert synced == []
    number = errno.ENOTSUP
    files._empty_drive_cache(3)
    assert synced == [3]


def test_zeros_extend_a_file_and_keep_its_content(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"content")
    with path.open("r+b") as file:
        files._write_zeros(file.fileno(), 0, (1 << 20) + 5)
        files._write_zeros(file.fileno(), 0, 3)
    assert path.read_bytes() == b"content".ljust((1 << 20) + 5, b"\0")


def test_a_commit_empties_the_cache_of_the_drive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(real, "HAS_DRIVE_CACHE", True)
    monkeypatch.setattr(RealFiles, "fdatasync", lambda _, number: synced.append(number))
    for is_synced in (True, False):
        environment = real.LmdbEnvironments(syncs=is_synced).open(
            str(tmp_path / str(is_synced)), 1 << 20
        )
        environment.begin_write().commit()
        environment.close()
        assert len(synced) == 1


def test_a_port_that_cannot_be_bound_twice_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    number, holder = sockets.hold_port("127.0.0.1")
    assert holder.fileno() >= 0
    holder.close()
    options = socket.socket.setsockopt

    def without_reuse(bound: socket.socket, level: int, name: int, value: Any) -> None:
        if name != socket.SO_REUSEADDR:
            options(bound, level, name, value)

    monkeypatch.setattr(socket.socket, "setsockopt", without_reuse)
    number, holder = sockets.hold_port("127.0.0.1")
    assert number and holder.fileno() < 0


def test_the_limit_of_descriptors_where_the_hard_limit_is_not_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = []

    def set_limit(_: int, limit: tuple[int, int]) -> None:
        if limit[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(limit)

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 2**63 - 1))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert processes.raise_descriptor_limit() == 10_240
    assert limits == [(10_240, 2**63 - 1)]


def test_a_child_without_prctl_dies_with_its_parent() -> None:
    script = """if True:
        import ctypes, os, time
        from kvorum.storage.platform.processes import die_with_parent
        ctypes.CDLL = lambda name: object()
        child = os.fork()
        if not child:
            die_with_parent()
        print(os.getpid(), flush=True)
        time.sleep(1000)
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        for _ in range(2):
            parent.stdout.readline()
        parent.kill()
        # The output ends when both have ended.
        assert parent.stdout.read() == b""


@pytest.mark.parametrize("has_description_locks", [True, False])
def test_a_lock_excludes_every_other_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_description_locks: bool
) -> None:
    monkeypatch.setattr(files, "_HAS_DESCRIPTION_LOCKS", has_description_locks)
    path = tmp_path / "LOCK"
    path.touch()
    with path.open("r+b") as one, path.open("r+b") as other:
        assert not files.is_locked(other.fileno())
        assert files.lock_file(one.fileno())
        assert files.is_locked(other.fileno())
        assert not files.lock_file(other.fileno())
        one.close()
        assert files.lock_file(other.fileno())


def test_the_numbers_of_description_locks_are_linuxs() -> None:
    assert (files._GET_LOCK, files._SET_LOCK) == (fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK)
