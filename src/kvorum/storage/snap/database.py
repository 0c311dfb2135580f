"""Stores databases received from a leader: writes piece by piece, and renames when durable.

The name of a file has the index of its snapshot. The file replaces the member's database before the
member applies that snapshot; files older than a new snapshot are useless.

Another database of the same index never replaces a finished file. Both have the same keys, but not
the same rows: a compaction may have progressed further at one sender than at the other. The
installation opens the file twice, and must find the same rows both times.
"""

import re
from dataclasses import dataclass

from kvorum.storage.files import Files, Opening

SYNC_BYTES = 8 << 20
"""Bytes between two calls of `start_sync`."""

_NAME = re.compile(r"([0-9a-f]{16})\.snap\.db")


def database_path(directory: str, index: int) -> str:
    """Return the path of the database that came with the snapshot at an index."""
    return f"{directory}/{index:016x}.snap.db"


def database_index(name: str) -> int | None:
    """Return the index in the name of a received database; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1], 16)


class ReceivedDatabase:
    """A database that is being received. Every method blocks: call them from jobs, in order.

    The final name exists only after `finish`, unless an earlier database of this index has it.
    `RemoveLeftovers` removes unfinished files that a power cut left.
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
        # None once closed, so that `abandon` works after a failed `finish`.
        self._descriptor: int | None = files.open(self._temporary, Opening.CREATE)

    @property
    def path(self) -> str:
        """The temporary path of the unfinished file."""
        return self._temporary

    @property
    def descriptor(self) -> int:
        """The descriptor of the unfinished file."""
        assert self._descriptor is not None, "the file was closed"
        return self._descriptor

    def write(self, data: bytes) -> None:
        """Append the next bytes."""
        assert self._descriptor is not None, "the file was closed"
        self._files.pwrite(self._descriptor, self._length, data)
        self._length += len(data)
        if self._length - self._started >= SYNC_BYTES:
            # The disk writes while more data arrives, so that `finish` waits only for the rest.
            self._started = self._length
            self._files.start_sync(self._descriptor)

    def finish(self) -> int:
        """Make the file durable under its final name; return the number of bytes received.

        If a file already has the final name, keep that one instead.
        """
        assert self._descriptor is not None, "the file was closed"
        path = database_path(self._directory, self._index)
        if self._files.exists(path):
            self.abandon()
        else:
            self._files.fdatasync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, None
            self._files.close(descriptor)
            self._files.rename(self._temporary, path)
        # The name of a file that already existed may not be durable yet.
        self._files.sync_directory(self._directory)
        return self._length

    def abandon(self) -> None:
        """Discard the received bytes; keep a file that already has its final name."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._files.close(descriptor)
        if self._files.exists(self._temporary):
            self._files.unlink(self._temporary)


@dataclass(slots=True, frozen=True)
class ReleaseDatabases:
    """A job that removes received databases older than the state that is durable without them.

    `snapshot_index` is the index of a snapshot with a durable record, or the backend's durable
    index. None removes all received databases.
    """

    directory: str
    snapshot_index: int | None

    def run(self, files: Files) -> list[str]:
        """Return the removed names."""
        removed: list[str] = []
        for name in files.list(self.directory):
            match = _NAME.fullmatch(name)
            if match and (self.snapshot_index is None or int(match[1], 16) < self.snapshot_index):
                files.unlink(f"{self.directory}/{name}")
                removed.append(name)
        return removed
