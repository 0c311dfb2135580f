"""What is done to the log's files, as data: made on the loop, run where blocking is allowed.

Jobs of one log run one after the other in the order they were made, and none runs after a failure:
what the failed one left on the disk is unknown, and only recovery may judge it. A batch is synced
before the next one is written; recovery relies on it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kvorum.files import Files, Opening
from kvorum.wal.errors import LogLockedError
from kvorum.wal.segments import SPARE_NAME


class AppendLog(NamedTuple):
    """Write a batch, with one write and one sync; it is durable when this is done.

    The native log writer takes the same values.
    """

    descriptor: int
    offset: int
    data: bytes

    def run(self, files: Files) -> None:
        """Write and sync."""
        files.pwrite(self.descriptor, self.offset, self.data)
        files.fdatasync(self.descriptor)


@dataclass(slots=True, frozen=True)
class PrepareSegment:
    """Make the next segment under a temporary name: locked, all zeros, space reserved."""

    directory: str
    segment_bytes: int

    def run(self, files: Files) -> int:
        """Return the descriptor. A failure leaves no file, and may be tried again."""
        path = f"{self.directory}/{SPARE_NAME}"
        if files.exists(path):
            files.unlink(path)
        return create_segment(files, path, self.segment_bytes)


def create_segment(files: Files, path: str, segment_bytes: int) -> int:
    """Make, lock and preallocate a file; a failure removes it."""
    descriptor = files.open(path, Opening.CREATE)
    try:
        if not files.lock(descriptor):
            raise LogLockedError(path)
        files.allocate(descriptor, segment_bytes)
    except BaseException:
        files.close(descriptor)
        files.unlink(path)
        raise
    return descriptor


@dataclass(slots=True, frozen=True)
class CutSegment:
    """End a segment and let the prepared one take over.

    The old one, all of it durable, loses its zeros; then the new one gets its head, and only when
    that is durable its name. Whenever the power fails, the last segment has a head.
    """

    directory: str
    old_descriptor: int
    old_length: int
    new_descriptor: int
    new_name: str
    head: bytes

    def run(self, files: Files) -> None:
        """Do it; batches that go into the new segment come after this."""
        files.truncate(self.old_descriptor, self.old_length)
        files.pwrite(self.new_descriptor, 0, self.head)
        files.fdatasync(self.new_descriptor)
        files.rename(f"{self.directory}/{SPARE_NAME}", f"{self.directory}/{self.new_name}")
        files.sync_directory(self.directory)


@dataclass(slots=True, frozen=True)
class ReleaseSegments:
    """Close segments that recovery no longer needs; without their locks they may be purged."""

    descriptors: tuple[int, ...]

    def run(self, files: Files) -> None:
        """Close them."""
        for descriptor in self.descriptors:
            files.close(descriptor)


@dataclass(slots=True, frozen=True)
class CloseLog:
    """Close the whole log at a clean end, and remove the segment that was prepared."""

    directory: str
    descriptors: tuple[int, ...]
    spare: int | None

    def run(self, files: Files) -> None:
        """Close all files."""
        for descriptor in self.descriptors:
            files.close(descriptor)
        if self.spare is not None:
            files.close(self.spare)
            files.unlink(f"{self.directory}/{SPARE_NAME}")
