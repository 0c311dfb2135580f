"""The directory of a database: which file counts, who may open it, what is left of a crash."""

import contextlib
import errno
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvorum.storage.backend import Backend, BackendError, View, open_backend, open_view, opening
from kvorum.storage.backend import directory as directories
from kvorum.storage.backend.batch import write_entries
from kvorum.storage.backend.buckets import CLUSTER
from kvorum.storage.backend.defragment import (
    CopyChanges,
    CopyDatabase,
    FlushedChanges,
    RemoveDatabase,
)
from kvorum.storage.backend.environment import DatabaseWrite
from kvorum.storage.backend.quota import effective_quota, reserved_bytes
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.files.real import RealFiles
from tests.storage.backend.disks import Crash, MemoryDisk, flush


def open_on(disk: MemoryDisk) -> Backend:
    return open_backend(disk.files, disk.environments, disk.directory)


def test_a_new_database_is_named_and_locked() -> None:
    disk = MemoryDisk.new()
    backend = open_on(disk)
    assert disk.files.list("backend") == ["CURRENT", "LOCK", "backend.1"]
    assert read_file(disk.files, "backend/CURRENT") == b"kvorum backend format 1\nbackend.1\n"
    with pytest.raises(BackendError, match=r"backend/LOCK is locked: another process.*What to do"):
        open_on(disk)
    backend.close()
    assert disk.files.open_descriptors() == 0
    open_on(disk).close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    backend = open_backend(RealFiles(), LmdbEnvironments(), str(tmp_path))
    command = [sys.executable, "-m", "tests.storage.backend.writer", str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert f"{tmp_path}/LOCK is locked" in other.stderr
    backend.close()


def test_a_newer_format_is_refused() -> None:
    disk = MemoryDisk.new()
    open_on(disk).close()
    write_file(disk.files, "backend/CURRENT", b"kvorum backend format 2\nbackend.1\n")
    with pytest.raises(
        BackendError, match=r"format 2, but .* up to 1\. What to do: start the version"
    ):
        open_on(disk)
    assert disk.files.open_descriptors() == 0
    assert disk.files.exists("backend/backend.1")


@pytest.mark.parametrize("content", [b"", b"backend.1\n", b"kvorum backend format 1\nbackend.x\n"])
def test_a_damaged_current_is_refused(content: bytes) -> None:
    disk = MemoryDisk.new()
    open_on(disk).close()
    write_file(disk.files, "backend/CURRENT", content)
    with pytest.raises(BackendError, match=r"backend/CURRENT: .*What to do"):
        open_on(disk)


def test_a_database_that_is_gone_is_not_made_anew() -> None:
    disk = MemoryDisk.new()
    open_on(disk).close()
    disk.files.unlink("backend/backend.1")
    with pytest.raises(BackendError, match=r"backend\.1 is missing.*What to do"):
        open_on(disk)


@pytest.mark.parametrize("calls", range(12))
def test_what_a_killed_start_has_named_is_durable_once_the_next_one_writes(calls: int) -> None:
    disk = MemoryDisk.new()
    disk.crash_after(calls)
    with contextlib.suppress(Crash):
        open_on(disk)
    disk = disk.crash(lambda: False)  # killed: the system still knows what was not synced
    backend = open_on(disk)
    backend.put_row(2 << 32, b"row")
    backend.set_applied(1, 1)
    flush(disk, backend)
    coins = iter([True])
    again = open_on(disk.crash(lambda: next(coins, False)))  # the power fails
    assert again.applied_index == 1


def test_the_database_that_counts_is_neither_removed_nor_copied_to() -> None:
    disk = MemoryDisk.new()
    open_on(disk).close()
    before = disk.files.list("backend")
    path = "backend/backend.1"
    for job in (
        CopyDatabase("backend/backend.2", path),
        CopyChanges("backend/backend.2", path, 1 << 20, FlushedChanges(), 1000, 1000),
        RemoveDatabase(path, None),
    ):
        with pytest.raises(BackendError, match="is the database that counts"):
            job.run(disk.files, disk.environments)
    assert disk.files.list("backend") == before
    open_on(disk).close()


def test_leftovers_are_removed_and_nothing_else() -> None:
    disk = MemoryDisk.new()
    open_on(disk).close()
    for name in ("backend.2", "backend.2-lock", "backend.12", "tmp.CURRENT.tmp", "notes"):
        write_file(disk.files, f"backend/{name}", b"")
    open_on(disk).close()
    assert disk.files.list("backend") == ["CURRENT", "LOCK", "backend.1", "notes"]


def convert(view: View, transaction: DatabaseWrite) -> None:
    value = view.get(CLUSTER, b"x")
    assert value is not None
    write_entries(transaction, CLUSTER, {b"x": None, b"y": value})


def test_an_older_format_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk.new()
    backend = open_on(disk)
    backend.put(CLUSTER, b"x", b"old")
    backend.put_row(2 << 32, b"row")
    backend.set_applied(5, 2)
    flush(disk, backend)
    backend.close()
    monkeypatch.setattr(directories, "FORMAT_VERSION", 2)
    monkeypatch.setattr(opening, "CONVERSIONS", {1: convert})
    # A crash at any call on the way leaves the old database or the new one.
    for calls in range(25):
        copy = disk.copy()
        copy.crash_after(calls)
        with contextlib.suppress(Crash):
            open_on(copy)
        after = copy.crash(partial(random.Random(calls).choice, [False, True]))
        backend = open_on(after)
        assert backend.items(CLUSTER) == [(b"y", b"old")]
        assert (backend.row(2 << 32), backend.applied_index) == (b"row", 5)
        assert read_file(after.files, "backend/CURRENT").startswith(b"kvorum backend format 2\n")


def test_a_full_disk_when_the_database_is_made() -> None:
    calls: list[DiskCall] = []
    disk = MemoryDisk.new()
    disk.files.before = calls.append
    open_on(disk).close()
    assert [call.name for call in calls].count("pwrite") == 1
    for number in range(len(calls)):
        disk = MemoryDisk.new()
        countdown = iter(range(number))

        def before(call: DiskCall, countdown: Iterator[int] = countdown) -> None:
            if next(countdown, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device", call.path)

        disk.files.before = before
        with pytest.raises(OSError, match="No space left on device: 'backend"):
            open_on(disk)
        assert disk.files.open_descriptors() == 0
        disk.files.before = None
        open_on(disk).close()


def test_a_full_disk_when_databases_are_exchanged() -> None:
    disk = MemoryDisk.new()
    backend = open_on(disk)
    backend.put_row(2 << 32, b"row")
    backend.set_applied(1, 1)
    flush(disk, backend)
    backend.defragment().run(disk.files, disk.environments)
    assert backend.take_copied() is None
    backend.put_row(3 << 32, b"more")
    backend.set_applied(2, 1)
    stage = backend.seal()
    assert stage is not None
    commit = backend.take_staged(stage.run(disk.files, disk.environments))

    def before(call: DiskCall) -> None:
        if call.name == "pwrite":
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    disk.files.before = before
    with pytest.raises(OSError, match="CURRENT"):
        commit.run(disk.files, disk.environments)
    # Reads go on until the member has stopped; the next start finds the old database.
    assert backend.rows([2 << 32, 3 << 32]) == [b"row", b"more"]
    after = disk.crash(lambda: False)
    again = open_on(after)
    assert (again.applied_index, again.path) == (1, "backend/backend.1")
    assert again.scan_rows(0, 1 << 96, 5) == [(2 << 32, b"row")]


def test_a_view_follows_current() -> None:
    disk = MemoryDisk.new()
    backend = open_on(disk)
    with pytest.raises(BackendError), open_view(disk.files, disk.environments, "nowhere"):
        pass
    backend.put_row(2 << 32, b"row")
    backend.set_applied(1, 4)
    flush(disk, backend)
    with open_view(disk.files, disk.environments, "backend") as view:
        backend.put_row(3 << 32, b"later")
        backend.set_applied(2, 4)
        flush(disk, backend)
        assert view.applied() == (1, 4)
        assert view.scan_rows(0, 1 << 96, 9) == [(2 << 32, b"row")]
    backend.defragment().run(disk.files, disk.environments)
    assert backend.take_copied() is None
    flush(disk, backend)
    assert backend.path == "backend/backend.2"
    assert disk.files.list("backend") == ["CURRENT", "LOCK", "backend.2"]
    with open_view(disk.files, disk.environments, "backend") as view:
        assert (view.path, view.applied()) == ("backend/backend.2", (2, 4))
        assert view.rows([3 << 32]) == [b"later"]
    backend.close()


def test_quota() -> None:
    assert effective_quota(1000) == 1000
    assert effective_quota(-1) is None
    for configured in (0, 1, 1 << 33, 1 << 37):
        assert reserved_bytes(configured) >= 16 * (effective_quota(configured) or 0)
