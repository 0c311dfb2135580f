"""Opens a member's database, for serving or for reading only."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.storage.backend import directory as directories
from kvorum.storage.backend.backend import Backend, BufferLimits
from kvorum.storage.backend.defragment import CopyDatabase
from kvorum.storage.backend.directory import Current, database_path, read_current, write_current
from kvorum.storage.backend.environment import DatabaseWrite, Environment, Environments, writing
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.backend.quota import reserved_bytes
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files

# By version: the function that converts a copy to the next version, given a view of the original.
CONVERSIONS: dict[int, Callable[[View, DatabaseWrite], None]] = {}


def open_backend(
    files: Files,
    environments: Environments,
    directory: str,
    *,
    quota_bytes: int = 0,
    buffers: BufferLimits | None = None,
    limits: WorkLimits = PRODUCTION,
    checks: bool = True,
) -> Backend:
    """Open the database in an existing directory; create it if there is none.

    A lock admits one process at a time. Opening removes leftovers of a crash and converts a
    database of an older format. It reserves space for `quota_bytes`; a negative quota means none.
    Raises CorruptionError for a damaged file. Pass `checks=False` only if this process had the file
    made a moment ago.
    """
    map_bytes = reserved_bytes(quota_bytes)
    with ExitStack() as undo:
        lock = directories.take_lock(files, directory)
        undo.callback(files.close, lock)
        current = read_current(files, directory)
        directories.remove_leftovers(files, directory, current)
        if current is not None:
            # A killed process may have renamed CURRENT without syncing the directory.
            files.sync_directory(directory)
            _require(files, database_path(directory, current.number))
            while current.version < directories.FORMAT_VERSION:
                current = _convert(files, environments, directory, current, map_bytes)
        number = current.number if current is not None else 1
        environment = environments.open(database_path(directory, number), map_bytes, checks=checks)
        undo.callback(environment.close)
        if current is None:
            write_current(files, directory, Current(number))
        backend = Backend(
            files,
            environment,
            directory,
            number,
            lock,
            map_bytes,
            buffers or BufferLimits(),
            limits,
        )
        undo.pop_all()
    return backend


def rewrite(backend: Backend, files: Files, environments: Environments) -> None:
    """Replace the database by one without free pages; nothing else may use it meanwhile."""
    backend.defragment().run(files, environments)
    assert backend.take_copied() is None, "nobody wrote meanwhile"
    stage = backend.seal()
    assert stage is not None, "the switch is a flush"
    commit = backend.take_staged(stage.run(files, environments))
    removal = backend.take_committed(commit.run(files, environments))
    assert removal is not None, "the old file is to be removed"
    removal.run(files, environments)


@contextmanager
def open_view(
    files: Files,
    environments: Environments,
    directory: str,
    *,
    scan_entries: int = PRODUCTION.view_scan_entries,
    checks: bool = True,
) -> Iterator[View]:
    """Open a view of the newest commit in a directory, from any process.

    Pass `checks=False` only in processes of a member, which has checked the file at its start.
    """
    environment, view = begin_view(files, environments, directory, scan_entries, checks=checks)
    try:
        try:
            yield view
        finally:
            view.end()
    finally:
        environment.close()


def begin_view(
    files: Files,
    environments: Environments,
    directory: str,
    scan_entries: int,
    *,
    checks: bool = True,
) -> tuple[Environment, View]:
    """Open a view as `open_view` does; the caller ends it, and then closes the environment."""
    current = read_current(files, directory)
    while True:
        path = database_path(directory, current.number if current else 1)
        try:
            environment = environments.open_reader(path, checks=checks)
            break
        except BackendError:
            # A defragmentation may have just replaced this file.
            before, current = current, read_current(files, directory)
            if before == current:
                raise
    try:
        return environment, View(environment, scan_entries)
    except BaseException:
        environment.close()
        raise


def _require(files: Files, path: str) -> None:
    if not files.exists(path):
        raise BackendError(
            f"{path} is missing, but CURRENT names it. What to do: put the file back, or remove "
            f"the member from the cluster and add it again with an empty directory"
        )


def _convert(
    files: Files, environments: Environments, directory: str, current: Current, map_bytes: int
) -> Current:
    """Convert a database to the next version, in a copy that replaces it."""
    source = database_path(directory, current.number)
    target = database_path(directory, current.number + 1)
    CopyDatabase(source, target).run(files, environments)
    environment = environments.open(target, map_bytes)
    try:
        with (
            open_view(files, environments, directory) as view,
            writing(environment) as transaction,
        ):
            CONVERSIONS[current.version](view, transaction)
    finally:
        environment.close()
    converted = Current(current.number + 1, current.version + 1)
    write_current(files, directory, converted)
    directories.remove_database(files, source)
    return converted
