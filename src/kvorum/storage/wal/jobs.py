"""Jobs on the log's files: the loop creates them, and an executor runs them where it may block.

The jobs of one log run one at a time in the order of their creation, and none runs after a failure:
the failed job leaves an unknown state on the disk, which only recovery may judge. Each batch is
synced before the next one is written; recovery relies on this.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kvorum.storage.files import Files, Opening
from kvorum.storage.wal.errors import LogLockedError
from kvorum.storage.wal.segments import SPARE_NAME


class AppendLog(NamedTuple):
    """Make a batch durable with one write and one sync.

    The native log writer takes the same fields.
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
    """Create the next segment under a temporary name: locked, preallocated, all zeros."""

    directory: str
    segment_bytes: int

    def run(self, files: Files) -> int:
        """Return the descriptor. A failed run leaves no file and may be retried."""
        path = f"{self.directory}/{SPARE_NAME}"
        if files.exists(path):
            files.unlink(path)
        return create_segment(files, path, self.segment_bytes)


def create_segment(files: Files, path: str, segment_bytes: int) -> int:
    """Create, lock and preallocate a file; remove it after a failure."""
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
    """End a segment and switch to the prepared one.

    The job first cuts off the zeros of the old segment, whose data is already durable. It then
    writes the new segment's head, and renames the segment only when the head is durable, so that
    the last segment has a head after any power cut.
    """

    directory: str
    old_descriptor: int
    old_length: int
    new_descriptor: int
    new_name: str
    head: bytes

    def run(self, files: Files) -> None:
        """Switch segments; batches for the new segment must run after this."""
        files.truncate(self.old_descriptor, self.old_length)
        files.pwrite(self.new_descriptor, 0, self.head)
        files.fdatasync(self.new_descriptor)
        files.rename(f"{self.directory}/{SPARE_NAME}", f"{self.directory}/{self.new_name}")
        files.sync_directory(self.directory)


@dataclass(slots=True, frozen=True)
class ReleaseSegments:
    """Close and unlock segments that recovery no longer needs, so that a purge can remove them."""

    descriptors: tuple[int, ...]

    def run(self, files: Files) -> None:
        """Close the segments."""
        for descriptor in self.descriptors:
            files.close(descriptor)


@dataclass(slots=True, frozen=True)
class CloseLog:
    """Close the whole log at a clean end, and remove the prepared segment."""

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
