"""Examine a data directory in the file system: permissions, owners, locks, free space, leftovers.

The checks open nothing for writing. Kvorum's locks are queried without taking them; etcd's flock
can only be tried, so the check holds a shared lock for a moment.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from kvorum.storage.backend.directory import leftovers as backend_leftovers
from kvorum.storage.backend.directory import read_current
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.files.real import RealFiles
from kvorum.storage.platform.files import is_flocked, is_locked
from kvorum.storage.wal import SEGMENT_BYTES
from kvorum.tools.doctor.findings import Certainty, Finding, command_line
from kvorum.tools.offline.directories import DataDirectory

FILES_NAMED_MAX = 5
_CERTAIN, _LIKELY, _POSSIBLE = Certainty
_OTHERS = 0o077


def examine_filesystem(directory: DataDirectory) -> Iterator[Finding]:
    """Find problems that the file system shows in a readable data directory."""
    yield from _permissions(directory)
    yield from _owners(directory)
    yield from _room(directory)
    yield from _leftovers(directory)


def unreadable(directory: DataDirectory) -> Finding | None:
    """Return a finding if the directory cannot be listed, or None if it can."""
    try:
        for each in (directory.data, directory.member):
            list(each.iterdir())
        return None
    except OSError as error:
        return not_readable(directory, error)


def not_readable(directory: DataDirectory, error: OSError) -> Finding:
    """Return the finding for an error met while reading a data directory."""
    path = Path(str(error.filename or directory.data))
    run: tuple[str, ...] = (command_line("ls", "-lad", str(path.parent), str(path)),)
    if isinstance(error, PermissionError):
        run = (command_line("sudo", "kvorumctl", "doctor", f"--data-dir={directory.data}"), *run)
    return Finding(
        "directory-unreadable",
        _CERTAIN,
        str(directory.data),
        "it cannot be read as the data directory of a member; name the directory that holds "
        "'member', and --wal-dir if the log is elsewhere",
        {
            "path": str(path),
            "error": (error.strerror or str(error)).lower(),
            "user": os.geteuid(),
        },
        run,
    )


def in_use(directory: DataDirectory) -> Finding | None:
    """Return a finding if a process uses the directory, whose files may then change."""
    segments = sorted(directory.log.glob("*.wal"))
    ours = [directory.member / "LOCK", *segments[-1:]]
    locks = [(path, is_locked) for path in ours] + [(directory.snap / "db", is_flocked)]
    for path in (path for path, is_held in locks if _holds(path, is_held)):
        return Finding(
            "directory-in-use",
            _CERTAIN,
            str(directory.data),
            "a process uses it, so that its files may change while they are read; stop the member, "
            "or examine it while it runs",
            {"locked_file": str(path)},
            (
                command_line("fuser", "-v", str(path)),
                "kvorumctl --endpoints=<its client url> doctor",
            ),
        )
    return None


def _holds(path: Path, is_held: Callable[[int], bool]) -> bool:
    """Return whether a process holds a lock on a file, as `is_held` finds out."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return is_held(file.fileno())


def _permissions(directory: DataDirectory) -> Iterator[Finding]:
    for path in (directory.data, directory.member):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & _OTHERS:
            yield Finding(
                "directory-open-to-others",
                _CERTAIN,
                str(path),
                "others than its owner may enter it, and read what is stored there",
                {"mode": f"{mode:o}", "expected_mode": "700"},
                (command_line("chmod", "700", str(path)),),
            )


def _owners(directory: DataDirectory) -> Iterator[Finding]:
    owner = directory.data.stat()
    strange = [path for path in _files(directory) if path.lstat().st_uid != owner.st_uid]
    if strange:
        yield Finding(
            "owners-differ",
            _LIKELY,
            str(directory.data),
            "files in it belong to another user than the directory: a tool may have been run by "
            "another user than the member's, which cannot write them then",
            {
                "directory_user": owner.st_uid,
                "file_user": strange[0].lstat().st_uid,
                "files": len(strange),
                "first_file": str(strange[0]),
            },
            (
                command_line(
                    *("chown", "-R", f"{owner.st_uid}:{owner.st_gid}"),
                    *map(str, _roots(directory)),
                ),
            ),
        )


def _roots(directory: DataDirectory) -> list[Path]:
    return [directory.data] if directory.wal is None else [directory.data, directory.wal]


def _files(directory: DataDirectory) -> Iterator[Path]:
    for root in _roots(directory):
        yield from sorted(root.rglob("*"))


def _room(directory: DataDirectory) -> Iterator[Finding]:
    size = sum(
        path.stat().st_size
        for path in (directory.snap / "db", *_databases(directory))
        if path.exists()
    )
    for path in _roots(directory):
        system = os.statvfs(path)
        room = system.f_bavail * system.f_frsize
        is_full = room < SEGMENT_BYTES
        needed = 2 * SEGMENT_BYTES + (size if path == directory.data else 0)
        if not is_full and room >= needed:
            continue
        yield Finding(
            "disk-full" if is_full else "disk-nearly-full",
            _CERTAIN,
            str(path),
            "its disk has no room for a segment of the log, so that the member would not start"
            if is_full
            else "its disk has little room: less than two segments of the log and a copy of the "
            "database, which defragmenting makes",
            {
                "free_bytes": room,
                "segment_bytes": SEGMENT_BYTES,
                "database_bytes": size,
                "disk_bytes": system.f_blocks * system.f_frsize,
            },
            (command_line("df", "-h", str(path)), command_line("du", "-xh", "-d2", str(path))),
        )


def _databases(directory: DataDirectory) -> list[Path]:
    return [
        path
        for path in (directory.member / "backend").glob("backend.*")
        if path.suffix[1:].isdigit()
    ]


def _leftovers(directory: DataDirectory) -> Iterator[Finding]:
    found = [
        path
        for path in (
            directory.data.with_name(directory.data.name + ".unfinished"),
            directory.data / "unfinished",
            directory.log.with_name(directory.log.name + ".unfinished"),
            directory.log.with_name(directory.log.name + ".tmp"),
        )
        if path.exists()
    ]
    for holder in (directory.snap, directory.log):
        if holder.exists():
            found += [
                path
                for path in sorted(holder.iterdir())
                if path.name.startswith(("tmp", "db.tmp.")) or path.suffix == ".broken"
            ]
    backend = directory.member / "backend"
    files = RealFiles()
    if backend.exists():
        # If CURRENT cannot be read, opening the database reports that.
        with suppress(BackendError):
            current = read_current(files, str(backend))
            names = backend_leftovers(files, str(backend), current)
            found += [backend / name for name in names]
    if found:
        yield Finding(
            "leftovers",
            _CERTAIN,
            str(directory.data),
            "something that was interrupted or repaired left files behind, which nobody needs; "
            "most of them are removed by the next start",
            {
                "files": len(found),
                "first_files": ", ".join(map(str, found[:FILES_NAMED_MAX])),
            },
            (command_line("ls", "-la", *map(str, found[:FILES_NAMED_MAX])),),
        )
