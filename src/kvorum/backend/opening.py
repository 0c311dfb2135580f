"""Opening the database of a member, to serve from it or to read it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kvorum.backend import directory as directories
from kvorum.backend.backend import Backend, Limits
from kvorum.backend.defragment import CopyDatabase
from kvorum.backend.directory import Current, database_path, read_current, write_current
from kvorum.backend.environment import Environment, Environments, WriteTransaction, writing
from kvorum.backend.errors import BackendError
from kvorum.backend.quota import reserved_bytes
from kvorum.backend.view import View
from kvorum.files import Files

# By version: the function that converts to the next version, given the old content and a copy.
CONVERSIONS: dict[int, Callable[[View, WriteTransaction], None]] = {}


def open_backend(
    files: Files,
    environments: Environments,
    directory: str,
    *,
    quota_bytes: int = 0,
    limits: Limits | None = None,
    checks: bool = True,
) -> Backend:
    """Open the database in a directory, which exists; make it if there is none.

    One process at a time can. What a crash left over is removed, and a database of an older
    format is converted. Room is reserved for `quota_bytes`, which is negative for none. A damaged
    file is a CorruptionError; without `checks`, this process has had it made a moment ago.
    """
    map_bytes = reserved_bytes(quota_bytes)
    with ExitStack() as undo:
        lock = directories.take_lock(files, directory)
        undo.callback(files.close, lock)
        current = read_current(files, directory)
        directories.remove_leftovers(files, directory, current)
        if current is not None:
            # A process that was killed may have named it without making that durable.
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
            files, environment, directory, number, lock, map_bytes, limits or Limits()
        )
        undo.pop_all()
    return backend


def rewrite(backend: Backend, files: Files, environments: Environments) -> None:
    """Replace the database by one without free pages, while nobody else uses it."""
    backend.defragment().run(files, environments)
    assert backend.copied() is None, "nobody wrote meanwhile"
    stage = backend.seal()
    assert stage is not None, "the switch is a flush"
    commit = backend.staged(stage.run(files, environments))
    removal = backend.committed(commit.run(files, environments))
    assert removal is not None, "the old file is to be removed"
    removal.run(files, environments)


@contextmanager
def open_view(
    files: Files, environments: Environments, directory: str, *, checks: bool = True
) -> Iterator[View]:
    """Read what the newest commit left in a directory, from any process.

    Without `checks`, the process belongs to a member, which has checked the file at its start.
    """
    environment, view = begin_view(files, environments, directory, checks=checks)
    try:
        try:
            yield view
        finally:
            view.end()
    finally:
        environment.close()


def begin_view(
    files: Files, environments: Environments, directory: str, *, checks: bool = True
) -> tuple[Environment, View]:
    """Do what `open_view` does; the caller ends the view, and then closes the environment."""
    current = read_current(files, directory)
    while True:
        path = database_path(directory, current.number if current else 1)
        try:
            environment = environments.open_reader(path, checks=checks)
            break
        except BackendError:
            # Another database may have replaced it a moment ago.
            before, current = current, read_current(files, directory)
            if before == current:
                raise
    try:
        return environment, View(environment)
    except BaseException:
        environment.close()
        raise


def _require(files: Files, path: str) -> None:
    if not files.exists(path):
        raise BackendError(
            f"{path} is missing, but CURRENT names it. What to do: put the file back, or remove "
            f"the member from the cluster and add it anew with an empty directory"
        )


def _convert(
    files: Files, environments: Environments, directory: str, current: Current, map_bytes: int
) -> Current:
    """Bring a database to the next version, in a copy of it."""
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
