"""Databases received from a leader: written piece by piece, and named when they are durable.

The file is named by the index of the snapshot it came with. It takes the place of the member's
database before that snapshot is applied; those older than a new snapshot are useless.

A file that has its name is never replaced by another of that index. Both hold the same keys, but
not the same rows: a compaction may have got further at one sender than at the other. Whoever
installs the file opens it twice, and must find the same rows both times.
"""

import re
from dataclasses import dataclass

from kvorum.files import Files, Opening

SYNC_BYTES = 8 << 20
"""How much of a file is written before the disk is asked to start writing it."""

_NAME = re.compile(r"([0-9a-f]{16})\.snap\.db")


def database_path(directory: str, index: int) -> str:
    """Return the path of the database that came with the snapshot at an index."""
    return f"{directory}/{index:016x}.snap.db"


def database_index(name: str) -> int | None:
    """Return the index in the name of such a database; None if it is another file's."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1], 16)


class ReceivedDatabase:
    """One database on its way in. Every method blocks: call them from jobs, in order.

    Until `finish` has returned there is no file of the final name, unless one came before; what a
    power cut leaves, `RemoveLeftovers` removes.
    """

    __slots__ = (
        "_descriptor",
        "_directory",
        "_files",
        "_index",
        "_length",
        "_started",
        "_temporary",
    )

    def __init__(self, files: Files, directory: str, index: int) -> None:
        self._files = files
        self._directory = directory
        self._index = index
        self._length = self._started = 0
        self._temporary = "/".join((directory, f"tmp.{index:016x}.snap.db"))
        if files.exists(self._temporary):
            files.unlink(self._temporary)
        # None when it is closed, so that a failed `finish` can be followed by `abandon`.
        self._descriptor: int | None = files.open(self._temporary, Opening.CREATE)

    @property
    def path(self) -> str:
        """Where the file is until it is finished."""
        return self._temporary

    @property
    def descriptor(self) -> int:
        """The file that is being written."""
        assert self._descriptor is not None, "the file was closed"
        return self._descriptor

    def write(self, data: bytes) -> None:
        """Add the next bytes."""
        assert self._descriptor is not None, "the file was closed"
        self._files.pwrite(self._descriptor, self._length, data)
        self._length += len(data)
        if self._length - self._started >= SYNC_BYTES:
            # The disk writes while more arrives, and `finish` waits for the rest alone.
            self._started = self._length
            self._files.start_sync(self._descriptor)

    def finish(self) -> int:
        """Make the file durable under its name, or keep the one that has it; return its length."""
        assert self._descriptor is not None, "the file was closed"
        path = database_path(self._directory, self._index)
        if self._files.exists(path):
            self.abandon()
        else:
            self._files.fdatasync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, None
            self._files.close(descriptor)
            self._files.rename(self._temporary, path)
        # The one that was there may not be durable under its name yet.
        self._files.sync_directory(self._directory)
        return self._length

    def abandon(self) -> None:
        """Discard what arrived so far; a file that has its final name is complete, and stays."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._files.close(descriptor)
        if self._files.exists(self._temporary):
            self._files.unlink(self._temporary)


@dataclass(slots=True, frozen=True)
class ReleaseDatabases:
    """A job: remove received databases that are older than what is durable without them.

    That is a snapshot whose record is durable, or the backend's own index. Without an index all
    are removed.
    """

    directory: str
    snapshot_index: int | None

    def run(self, files: Files) -> list[str]:
        """Return the names that were removed."""
        removed: list[str] = []
        for name in files.list(self.directory):
            match = _NAME.fullmatch(name)
            if match and (self.snapshot_index is None or int(match[1], 16) < self.snapshot_index):
                files.unlink(f"{self.directory}/{name}")
                removed.append(name)
        return removed
