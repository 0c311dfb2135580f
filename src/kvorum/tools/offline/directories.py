"""Create data directories beside their final path and rename them when they are complete.

Until the rename, the final path stays unchanged. A failed attempt removes its unfinished work; if
the process was killed, the next attempt removes it. An existing empty directory is kept and filled,
because it may be a mount point.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kvorum.storage.files.interface import write_file
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal.segments import SEGMENT_BYTES
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.cli.text import human_bytes

_ENDING = ".unfinished"
_MOVED = "moved"


class Stage(NamedTuple):
    """The paths at which the parts of a new data directory are created."""

    member: Path
    wal: Path


class DataDirectory(NamedTuple):
    """A data directory, and the path of its log if the log is outside."""

    data: Path
    wal: Path | None = None

    @property
    def member(self) -> Path:
        """The directory `member` of the data directory."""
        return self.data / "member"

    @property
    def snap(self) -> Path:
        """The directory of the snapshot files."""
        return self.member / "snap"

    @property
    def log(self) -> Path:
        """The directory of the write-ahead log."""
        return self.wal or self.member / "wal"


def check_vacant(data: Path, wal: Path | None) -> None:
    """Refuse non-empty paths with etcd's error texts; accept the leftovers of a killed attempt."""
    left = data / _ENDING.lstrip(".")
    if data.exists() and (not data.is_dir() or any(each != left for each in data.iterdir())):
        raise CommandError(f'data-dir "{data}" not empty or could not be read')
    if wal is not None and wal.exists() and not _is_left(wal.absolute()):
        raise CommandError(f'wal-dir "{wal}" exists')


def require_room(
    target: DataDirectory, database_bytes: int, log_bytes: int, exactly: Callable[[], int]
) -> None:
    """Refuse if the disks of a new data directory have too little free space.

    `database_bytes` is a cheap upper bound. `exactly` computes the real size of the database, and
    is called only if the upper bound does not fit.
    """
    # A new log allocates its first segment at full length.
    log_bytes += SEGMENT_BYTES
    data, log = _existing(target.data), _existing(target.log)
    is_same = data.stat().st_dev == log.stat().st_dev
    if not is_same:
        require_free(target.log, log_bytes)
    beside = log_bytes if is_same else 0
    if shutil.disk_usage(data).free < database_bytes + beside:
        require_free(target.data, exactly() + beside)


def require_free(path: Path, needed: int) -> None:
    """Refuse if a directory's disk has too little free space; the directory may not exist yet."""
    free = shutil.disk_usage(_existing(path)).free
    if free < needed:
        raise CommandError(
            f"{path} needs {human_bytes(needed)} of room ({needed} bytes), and its disk has "
            f"{human_bytes(free)}: free some, or name a directory on another disk"
        )


def _existing(path: Path) -> Path:
    """Return a directory, or its nearest ancestor that exists."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


@contextmanager
def staged(data: Path, wal: Path | None) -> Iterator[Stage]:
    """Yield a `Stage` for the block to fill, then rename it to `data`, and its log to `wal`."""
    check_vacant(data, wal)
    data = data.absolute()
    wal = wal and wal.absolute()
    files = RealFiles()
    is_there = data.exists()
    root = data / _ENDING.lstrip(".") if is_there else data.with_name(data.name + _ENDING)
    member = root / "member"
    wal_stage = member / "wal"
    wal_root = None
    if wal is not None:
        wal_root = wal.with_name(wal.name + _ENDING)
        wal_stage = wal_root / "wal"
        # `check_vacant` passed, so these can only be leftovers of a killed attempt.
        _remove(wal)
        _remove(wal_root)
    _remove(root)
    made = _make_parents(data if is_there else root.parent)
    if wal_root is not None:
        made += _make_parents(wal_root.parent)
    is_moved = is_placed = False
    try:
        member.mkdir(0o700, parents=True)
        root.chmod(0o700)
        if wal_root is not None:
            wal_root.mkdir(0o700)
        yield Stage(member, wal_stage)
        for path in (member, root):
            files.sync_directory(str(path))
        if wal is not None and wal_root is not None:
            # If the process dies between the renames, this file shows the next attempt whose log
            # it is.
            write_file(files, str(wal_root / _MOVED), _identity(wal_stage, data))
            wal_stage.rename(wal)
            is_moved = True
            files.sync_directory(str(wal.parent))
        (member if is_there else root).rename(data / "member" if is_there else data)
        is_placed = True
        files.sync_directory(str(data))
        files.sync_directory(str(data.parent))
        if wal_root is not None:
            _remove(wal_root)
        if is_there:
            root.rmdir()
    except BaseException:
        if is_placed:
            raise
        _remove(root)
        if wal is not None and wal_root is not None:
            if is_moved:
                wal.rename(wal_stage)
            _remove(wal_root)
        for path in reversed(made):
            path.rmdir()
        raise


def _identity(log: Path, data: Path) -> bytes:
    """Return the device and inode of a log, and the data directory that the log belongs to."""
    found = log.stat()
    return f"{found.st_dev} {found.st_ino} {data}\n".encode()


def _is_left(wal: Path) -> bool:
    """Return whether a killed attempt renamed this log, but not its data directory."""
    moved = wal.with_name(wal.name + _ENDING) / _MOVED
    if not moved.exists():
        return False
    data = Path(moved.read_text().rstrip("\n").split(" ", 2)[2])
    return not (data / "member").exists() and moved.read_bytes() == _identity(wal, data)


def _make_parents(path: Path) -> list[Path]:
    """Create a directory and its missing ancestors; return the created ones, outermost first."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700)
    return missing[::-1]


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
