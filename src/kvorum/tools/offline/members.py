"""Find out whether a stopped member is etcd's or Kvorum's, lock it, and open its database.

The lock keeps the member from starting while a tool works on it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvorum.storage.backend import Environments, View, open_view
from kvorum.storage.backend.bbolt import Image, ImageError, open_image
from kvorum.storage.files import Files
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.locks import etcd_lock, kvorum_lock


def backend_of(directory: DataDirectory) -> Path:
    """Return the directory of a Kvorum member's database."""
    return directory.member / "backend"


def database_of(directory: DataDirectory) -> Path:
    """Return the file of an etcd member's database."""
    return directory.snap / "db"


def is_ours(directory: DataDirectory) -> bool:
    """Return whether the data directory is Kvorum's, not etcd's."""
    return (backend_of(directory) / "CURRENT").exists()


def require(directory: DataDirectory) -> None:
    """Refuse a directory without a database of either kind, with etcd's error text."""
    if not is_ours(directory) and not database_of(directory).exists():
        raise CommandError(f"stat {database_of(directory)}: no such file or directory")


@contextmanager
def require_stopped(
    files: Files, directory: DataDirectory, seconds: float, *, is_read_only: bool = False
) -> Iterator[None]:
    """Keep the member from starting while the block runs.

    Wait `seconds` for a running member to end, or forever if that is 0.
    """
    require(directory)
    if is_ours(directory):
        lock = kvorum_lock(files, directory.member, seconds)
    else:
        lock = etcd_lock(database_of(directory), seconds, is_shared=is_read_only)
    with lock:
        yield


@contextmanager
def open_database(
    files: Files, environments: Environments, directory: DataDirectory
) -> Iterator[Image | View]:
    """Open the database for reading; turn ImageErrors, also the block's, into CommandErrors."""
    with ExitStack() as stack:
        if is_ours(directory):
            view = open_view(files, environments, str(backend_of(directory)))
            yield stack.enter_context(view)
            return
        try:
            image = open_image(files, str(database_of(directory)))
            stack.callback(image.close)
            yield image
        except ImageError as error:
            raise CommandError(str(error)) from error
