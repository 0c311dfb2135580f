"""Locks that keep a member and the tools from using one database at the same time.

etcd locks the database file itself; Kvorum locks the file `LOCK` beside its database.
"""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvorum.storage.files import Files, Opening
from kvorum.tools.cli.errors import CommandError

RETRY_SECONDS: Final = 0.05
IN_USE: Final = 2
"""The exit code of etcd's tools if a database stays locked."""


@contextmanager
def etcd_lock(database: Path, seconds: float, *, is_shared: bool = False) -> Iterator[None]:
    """Hold the lock of an etcd database; wait `seconds` for it, or forever if that is 0.

    A shared lock is for readers: it excludes members, but no other reader.
    """
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with database.open("rb") as file:

        def take() -> bool:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        _wait(take, seconds, database)
        yield


@contextmanager
def kvorum_lock(files: Files, member: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of a Kvorum member; wait `seconds` for it, or forever if that is 0."""
    path = member / "LOCK"
    if not path.exists():
        yield  # the member has never run
        return
    descriptor = files.open(str(path), Opening.WRITE)
    try:
        _wait(lambda: files.lock(descriptor), seconds, path)
        yield
    finally:
        files.close(descriptor)


def _wait(take: Callable[[], bool], seconds: float, path: Path) -> None:
    give_up_at = time.monotonic() + seconds
    while not take():
        if seconds > 0 and time.monotonic() >= give_up_at:
            raise CommandError(
                "failed to open database: timeout",
                IN_USE,
                f"{path} is locked by another process for longer than --timeout: "
                "stop the member that uses it",
            )
        time.sleep(RETRY_SECONDS)
