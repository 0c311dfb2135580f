"""Both sorts of files keep the same contract; the one in memory also loses what was not synced."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum.storage.files import Files, Opening, Purge
from kvorum.storage.files.interface import parent, read_file, write_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.files.real import RealFiles


@pytest.fixture(params=["real", "memory"])
def files(request: pytest.FixtureRequest) -> Files:
    return RealFiles() if request.param == "real" else MemoryFiles()


@pytest.fixture
def base(files: Files, tmp_path: Path) -> str:
    if isinstance(files, RealFiles):
        return str(tmp_path)
    files.make_directory("/base")
    return "/base"


def fails(number: int) -> Callable[[OSError], bool]:
    return lambda error: error.errno == number


def test_write_read_and_length(files: Files, base: str) -> None:
    descriptor = files.open(f"{base}/a", Opening.CREATE)
    files.pwrite(descriptor, 5, b"later")
    files.pwrite(descriptor, 0, b"soon")
    assert files.pread(descriptor, 0, 100) == b"soon\0later"
    assert files.pread(descriptor, 5, 3) == b"lat"
    files.allocate(descriptor, 100)
    assert files.size(descriptor) == 100
    files.allocate(descriptor, 50)
    assert files.size(descriptor) == 100
    files.truncate(descriptor, 4)
    files.fdatasync(descriptor)
    files.close(descriptor)
    assert read_file(files, f"{base}/a") == b"soon"


def test_names(files: Files, base: str) -> None:
    for name in ("b", "a", "c"):
        files.close(files.open(f"{base}/{name}", Opening.CREATE))
    files.make_directory(f"{base}/d")
    assert files.list(base) == ["a", "b", "c", "d"]
    files.rename(f"{base}/c", f"{base}/a")
    files.unlink(f"{base}/b")
    files.remove_directory(f"{base}/d")
    files.sync_directory(base)
    assert files.list(base) == ["a"]
    assert files.exists(f"{base}/a") and not files.exists(f"{base}/b")
    assert parent(f"{base}/a") == base


def test_failures_are_numbered_and_name_the_path(files: Files, base: str) -> None:
    path = f"{base}/a"
    with pytest.raises(OSError, check=fails(errno.ENOENT)) as missing:
        files.open(path, Opening.WRITE)
    assert path in str(missing.value)
    files.close(files.open(path, Opening.CREATE))
    with pytest.raises(OSError, check=fails(errno.EEXIST)):
        files.open(path, Opening.CREATE)
    with pytest.raises(OSError, check=fails(errno.EEXIST)):
        files.make_directory(path)
    with pytest.raises(OSError, check=fails(errno.ENOENT)):
        files.unlink(f"{base}/b")
    with pytest.raises(OSError, check=fails(errno.ENOENT)):
        files.list(f"{base}/b")
    descriptor = files.open(path, Opening.READ)
    with pytest.raises(OSError, check=fails(errno.EBADF)) as unwritable:
        files.pwrite(descriptor, 0, b"x")
    assert path in str(unwritable.value)
    files.close(descriptor)


def test_a_lock_excludes_every_other_descriptor(files: Files, base: str) -> None:
    first = files.open(f"{base}/a", Opening.CREATE)
    second = files.open(f"{base}/a", Opening.WRITE)
    assert files.lock(first) and files.lock(first)
    assert not files.lock(second)
    # Reading beside the holder takes no lock and ends none.
    read_file(files, f"{base}/a")
    assert not files.lock(second)
    files.close(first)
    assert files.lock(second)
    files.close(second)


def test_a_file_is_written_whole_or_not_at_all(files: Files, base: str) -> None:
    write_file(files, f"{base}/a", b"one")
    files.close(files.open(f"{base}/tmp.a.tmp", Opening.CREATE))
    write_file(files, f"{base}/a", b"two")
    assert files.list(base) == ["a"]
    assert read_file(files, f"{base}/a") == b"two"


def test_purge_keeps_the_newest_and_what_is_locked(files: Files, base: str) -> None:
    for name in ("1.wal", "2.wal", "3.wal", "4.wal", "5.wal", "1.snap"):
        files.close(files.open(f"{base}/{name}", Opening.CREATE))
    assert Purge(base, ".wal", 0).run(files) == []
    assert Purge(base, ".wal", 5).run(files) == []
    assert Purge(base, ".wal", 4).run(files) == ["1.wal"]
    held = files.open(f"{base}/3.wal", Opening.WRITE)
    assert files.lock(held)
    # The first that is held ends it, though the one behind it is free.
    assert Purge(base, ".wal", 1).run(files) == ["2.wal"]
    files.close(held)
    assert Purge(base, ".wal", 1).run(files) == ["3.wal", "4.wal"]
    assert files.list(base) == ["1.snap", "5.wal"]


def test_power_cut_keeps_what_was_synced_and_asks_about_the_rest() -> None:
    files = MemoryFiles()
    files.make_directory("/d")
    files.sync_directory("/")
    descriptor = files.open("/d/a", Opening.CREATE)
    files.pwrite(descriptor, 0, b"a" * 1024)
    assert files.after_power_cut(lambda: False).list("/d") == []
    files.sync_directory("/d")
    assert read_file(files.after_power_cut(lambda: False), "/d/a") == b""
    files.fdatasync(descriptor)
    files.pwrite(descriptor, 256, b"b" * 1024)
    assert read_file(files.after_power_cut(lambda: False), "/d/a") == b"a" * 1024
    assert read_file(files.after_power_cut(lambda: True), "/d/a") == b"a" * 256 + b"b" * 1024
    # Three sectors are written: the first and the last survive.
    answers = iter([True, False, True])
    torn = read_file(files.after_power_cut(lambda: next(answers)), "/d/a")
    assert torn == b"a" * 256 + b"b" * 256 + b"a" * 512 + b"b" * 256


def test_unsynced_names_are_lost_each_for_itself() -> None:
    files = MemoryFiles()
    files.close(files.open("/a", Opening.CREATE))
    files.sync_directory("/")
    files.rename("/a", "/b")
    files.close(files.open("/c", Opening.CREATE))
    assert files.after_power_cut(lambda: False).list("/") == ["a"]
    assert files.after_power_cut(lambda: True).list("/") == ["b", "c"]
    answers = iter([False, True])
    assert files.after_power_cut(lambda: next(answers)).list("/") == ["a", "c"]


def test_a_sync_that_failed_is_not_made_up_for() -> None:
    def before(call: DiskCall) -> None:
        calls.append(call.name)
        if call.name == "fdatasync" and calls.count("fdatasync") == 1:
            raise OSError(errno.EIO, "injected", call.path)

    calls: list[str] = []
    files = MemoryFiles(before)
    descriptor = files.open("/a", Opening.CREATE)
    files.sync_directory("/")
    files.pwrite(descriptor, 0, b"data")
    with pytest.raises(OSError, match="injected"):
        files.fdatasync(descriptor)
    files.fdatasync(descriptor)
    assert read_file(files.after_power_cut(lambda: False), "/a") == b""


def test_a_full_disk() -> None:
    files = MemoryFiles()
    files.bytes_max = 1000
    descriptor = files.open("/a", Opening.CREATE)
    files.allocate(descriptor, 600)
    with pytest.raises(OSError, check=fails(errno.ENOSPC)):
        files.allocate(descriptor, 1001)
    with pytest.raises(OSError, check=fails(errno.ENOSPC)):
        write_file(files, "/b", bytes(500))
    assert files.list("/") == ["a"]
    files.pwrite(descriptor, 0, bytes(600))
