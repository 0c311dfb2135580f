"""The directory of a member's database: the current file, and the lock on it.

The directory has `backend.<n>`, a database; `CURRENT`, which names the current database and the
version of Kvorum's format; and `LOCK`, which a process holds while it has the database open for
writing. Replacing `CURRENT`, atomically and durably, makes another database the current one. Other
databases and temporary files are leftovers of a crash, and opening removes them.
"""

import re
from dataclasses import dataclass

from kvorum.storage.backend.environment import LOCK_ENDING
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.interface import read_file, write_file

FORMAT_VERSION = 1

_CURRENT = re.compile(rb"kvorum backend format ([0-9]+)\nbackend\.([0-9]+)\n")
_REMOVABLE = re.compile(r"backend\.[0-9]+(-lock)?|tmp\..*")


@dataclass(slots=True, frozen=True)
class Current:
    """The content of `CURRENT`."""

    number: int
    version: int = FORMAT_VERSION


def database_path(directory: str, number: int) -> str:
    """Return the path of a database."""
    return f"{directory}/backend.{number}"


def read_current(files: Files, directory: str) -> Current | None:
    """Read `CURRENT`; return None if there is none yet."""
    path = f"{directory}/CURRENT"
    if not files.exists(path):
        return None
    content = read_file(files, path)
    match = _CURRENT.fullmatch(content)
    if match is None:
        raise BackendError(
            f"{path}: {content[:100]!r} is not what Kvorum writes there, which is 'kvorum backend "
            f"format <version>' and 'backend.<number>', a line each. What to do: if exactly one "
            f"backend.<number> is in the directory, write the two lines; otherwise remove the "
            f"member from the cluster and add it again with an empty directory"
        )
    current = Current(number=int(match[2]), version=int(match[1]))
    if current.version > FORMAT_VERSION:
        raise BackendError(
            f"{path}: format {current.version}, but this version of Kvorum knows formats up to "
            f"{FORMAT_VERSION}. What to do: start the version that wrote it, or a newer one"
        )
    return current


def write_current(files: Files, directory: str, current: Current) -> None:
    """Make a database with durable content the current one."""
    # The database's name must be durable before `CURRENT` refers to it.
    files.sync_directory(directory)
    content = f"kvorum backend format {current.version}\nbackend.{current.number}\n"
    write_file(files, f"{directory}/CURRENT", content.encode())


def take_lock(files: Files, directory: str) -> int:
    """Lock a directory; return the descriptor that holds the lock, or raise BackendError."""
    path = f"{directory}/LOCK"
    descriptor = files.open(path, Opening.WRITE if files.exists(path) else Opening.CREATE)
    if not files.lock(descriptor):
        files.close(descriptor)
        raise BackendError(
            f"{path} is locked: another process has the database of this member open. What to do: "
            f"stop that process, or give this member a directory of its own"
        )
    return descriptor


def require_spare(files: Files, path: str) -> None:
    """Raise BackendError if a database is the current one, which must not be removed."""
    directory, _, name = path.rpartition("/")
    current = read_current(files, directory)
    if current is not None and database_path(directory, current.number) == path:
        raise BackendError(f"{path} is the database that counts: {name} is what CURRENT names")


def remove_database(files: Files, path: str) -> None:
    """Remove a database and LMDB's lock file; raise BackendError if it is the current one."""
    require_spare(files, path)
    for name in (path, path + LOCK_ENDING):
        if files.exists(name):
            files.unlink(name)


def leftovers(files: Files, directory: str, current: Current | None) -> list[str]:
    """Return the names of files that a crash left."""
    keep = None if current is None else f"backend.{current.number}"
    return [
        name
        for name in files.list(directory)
        if _REMOVABLE.fullmatch(name) and name.removesuffix(LOCK_ENDING) != keep
    ]


def remove_leftovers(files: Files, directory: str, current: Current | None) -> list[str]:
    """Remove the files that a crash left, and return their names."""
    removed = leftovers(files, directory, current)
    if removed:
        # A killed process may have replaced CURRENT without a sync: a power cut could then restore
        # the old CURRENT and still lose the file that the old CURRENT names.
        files.sync_directory(directory)
    for name in removed:
        files.unlink(f"{directory}/{name}")
    return removed
