"""Check and lock the data directory before the member opens it.

This module changes nothing in an existing directory before it knows that the directory belongs to
this server. Every refusal says what was found and what to do.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kvorum.process.settings.config import Config
from kvorum.process.start_errors import DirectoryRefusedError, system_text
from kvorum.server.telemetry.logs import Logger
from kvorum.storage.backend.directory import leftovers as backend_leftovers
from kvorum.storage.backend.directory import read_current
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.files import Files, Opening
from kvorum.storage.snap import leftovers as snap_leftovers
from kvorum.storage.wal import SEGMENT_BYTES
from kvorum.storage.wal import leftovers as wal_leftovers

MODE = 0o700


def prepare_directory(config: Config, files: Files, logger: Logger) -> str:
    """Make or check the data directory and lock it; return the path of its `member` directory.

    The process takes the lock before it reads or removes anything, and holds it until it ends.
    """
    data = Path(config.data_directory)
    _make(data, "data", logger)
    _refuse_foreign(data, logger)
    member = data / "member"
    _make(member, "data", logger)
    _lock(files, member / "LOCK")
    for path in (member, data):
        files.sync_directory(str(path))
    if config.wal_directory:
        # Make only the parent: the log is created beside its final path, and renamed when complete.
        parent = Path(config.wal_directory).absolute().parent
        _make(parent, "wal", logger)
    removable = _removable(files, member, config.wal_directory or str(member / "wal"))
    if config.wal_directory:
        _check_room(parent, removable)
    _check_room(data, removable)
    return str(member)


def _make(path: Path, name: str, logger: Logger) -> None:
    try:
        if not path.exists():
            path.mkdir(MODE, parents=True)
        probe = path / ".touch"
        probe.touch(0o600)
        probe.unlink()
    except OSError as error:
        raise DirectoryRefusedError(
            f"cannot access {name} directory: {system_text(error)}"
        ) from None
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != MODE and name == "data":
        logger.warning(
            "directory exists, but others may enter it; expected mode 700",
            dir=str(path),
            mode=f"{mode:o}",
        )


def _refuse_foreign(data: Path, logger: Logger) -> None:
    names = {path.name for path in data.iterdir()}
    if "proxy" in names:
        raise DirectoryRefusedError(
            f"{data} holds the directory 'proxy' of an etcd of long ago; "
            "move it away or give another --data-dir"
        )
    for name in sorted(names - {"member", "fixtures"}):
        logger.warning("found invalid file under data directory", dir=str(data), filename=name)
    database = data / "member" / "snap" / "db"
    if database.exists():
        raise DirectoryRefusedError(
            f"{data} is the data directory of an etcd: {database} is etcd's database, and this "
            "server keeps its keys in another form. Start etcd on it, or take it over with "
            f"'kvorumutl migrate --data-dir {data} --output-dir <new data directory>'"
        )


def _lock(files: Files, path: Path) -> None:
    descriptor = files.open(str(path), Opening.WRITE if path.exists() else Opening.CREATE)
    if not files.lock(descriptor):
        raise DirectoryRefusedError(
            f"{path} is locked: another process serves {path.parent.parent}. Stop that process, or "
            "give this one a --data-dir of its own"
        )


def _removable(files: Files, member: Path, wal: str) -> list[str]:
    """Return the leftovers of an earlier process that a start removes before its first write."""
    snap, backend = f"{member}/snap", f"{member}/backend"
    names = {wal: wal_leftovers(files, wal)}
    # A log whose creation was interrupted.
    if files.exists(f"{wal}.tmp"):
        names[f"{wal}.tmp"] = files.list(f"{wal}.tmp")
    if files.exists(snap):
        names[snap] = snap_leftovers(files, snap)
    # If CURRENT cannot be read, opening the database will say so.
    with suppress(BackendError):
        if files.exists(backend):
            current = read_current(files, backend)
            names[backend] = backend_leftovers(files, backend, current)
    return [f"{directory}/{name}" for directory, found in names.items() for name in found]


def _check_room(path: Path, removable: Sequence[str]) -> None:
    """Refuse a disk without room for one log segment, because the member would stop at once."""
    system, device = os.statvfs(path), path.stat().st_dev
    room = system.f_bavail * system.f_frsize
    for each in map(os.stat, removable):
        if each.st_dev == device:
            room += each.st_blocks * 512
    if room < SEGMENT_BYTES:
        raise DirectoryRefusedError(
            f"{path} has {room} bytes left, but a segment of the write-ahead log takes "
            f"{SEGMENT_BYTES}; free some space, or give a directory on another disk"
        )
