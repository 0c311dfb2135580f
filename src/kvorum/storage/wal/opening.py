"""Creates and reopens a log, before the member serves.

`create_log` builds a new log in a temporary directory and renames the directory when the log is
durable, so that a directory of the final name always has a whole log.

Reopening locks the segments, copies and cuts off a tear, and zeroes everything after the end, all
durably before the first append: recovery detects a later torn batch by zeros where it was not
written. Reopening also rewrites, as read, the part of the last segment that no later record proves
durable, because the outcome of its last sync is unknown; and the whole segment before it, unless
the last segment's head proves that one durable.
"""

from collections.abc import Callable

from kvorum.raft.messages import NO_HARD_STATE
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.interface import parent, write_file
from kvorum.storage.wal.errors import LogExistsError, LogLockedError
from kvorum.storage.wal.framing import Framer
from kvorum.storage.wal.jobs import create_segment
from kvorum.storage.wal.log import HeldSegment, Log
from kvorum.storage.wal.reading import LogContent, SnapshotRecord, read_log, survey_log
from kvorum.storage.wal.segments import (
    SEGMENT_BYTES,
    Segment,
    exists,
    leftovers,
    list_segments,
    segments_from,
)
from kvorum.storage.wal.skimming import Skim

Choose = Callable[[list[SnapshotRecord]], tuple[SnapshotRecord, SnapshotRecord | None]]
"""Given the valid snapshots, returns the one to start from, and one to withdraw or None."""


def create_log(
    files: Files, directory: str, metadata: bytes, segment_bytes: int = SEGMENT_BYTES
) -> Log:
    """Create a log as a new directory; replace an incomplete one that a power cut left."""
    if exists(files, directory):
        raise LogExistsError(directory)
    temporary = f"{directory}.tmp"
    for leftover in (temporary, directory):
        if files.exists(leftover):
            for name in files.list(leftover):
                files.unlink(f"{leftover}/{name}")
            files.remove_directory(leftover)
    files.make_directory(temporary)
    segment = Segment(0, 0)
    descriptor = create_segment(files, f"{temporary}/{segment.name}", segment_bytes)
    framer = Framer(0)
    head = framer.checkpoint() + framer.metadata(metadata) + framer.snapshot(0, 0, None)
    try:
        files.pwrite(descriptor, 0, head)
        files.fdatasync(descriptor)
        files.sync_directory(temporary)
        files.rename(temporary, directory)
        files.sync_directory(parent(directory))
    except OSError:
        files.close(descriptor)
        raise
    return Log(
        directory,
        [HeldSegment(segment, descriptor)],
        metadata=metadata,
        state=NO_HARD_STATE,
        last_index=0,
        offset=len(head),
        crc=framer.crc,
        segment_bytes=segment_bytes,
    )


def open_log(
    files: Files,
    directory: str,
    snapshot: SnapshotRecord,
    segment_bytes: int = SEGMENT_BYTES,
    withdrawn: SnapshotRecord | None = None,
) -> tuple[Log, LogContent]:
    """Open a log from a snapshot on; return it and its content.

    A tear's data moves to a file beside the segment named `.broken`. For `withdrawn` see
    `read_log`.
    """
    held = _lock(files, directory, segments_from(files, directory, snapshot.index))
    try:
        content = read_log(files, directory, snapshot, withdrawn)
        return _made_durable(files, directory, held, snapshot, content, segment_bytes), content
    except BaseException:
        _close(files, held)
        raise


def open_newest(
    files: Files,
    directory: str,
    expected: SnapshotRecord,
    choose: Choose,
    segment_bytes: int = SEGMENT_BYTES,
    skim: Skim | None = None,
) -> tuple[Log, LogContent]:
    """Open a log from the snapshot that `choose` returns; read it once if that is `expected`."""
    held = _lock(files, directory, list_segments(files, directory))
    try:
        valid, content = survey_log(files, directory, expected, skim)
        snapshot, withdrawn = choose(valid)
        if content is None or snapshot != expected or withdrawn is not None:
            content = read_log(files, directory, snapshot, withdrawn)
        while held[0].segment != content.segments[0]:
            files.close(held.pop(0).descriptor)
        return _made_durable(files, directory, held, snapshot, content, segment_bytes), content
    except BaseException:
        _close(files, held)
        raise


def _made_durable(
    files: Files,
    directory: str,
    held: list[HeldSegment],
    snapshot: SnapshotRecord,
    content: LogContent,
    segment_bytes: int,
) -> Log:
    """Prepare the files of a log for the first append after reading it."""
    # Start with the step that needs no disk space and may free some.
    _remove_leftovers(files, directory)
    if content.tear is not None:
        _keep(files, content.tear.path, content.tear.offset)
    if content.void is not None:
        _remove_void(files, directory, held.pop())
    if content.doubtful_end is not None:
        _make_durable(files, held[-2].descriptor, 0, content.doubtful_end)
    _write_again(files, held[-1].descriptor, content.durable_end, content.end, segment_bytes)
    # A killed process may also have left names that are not durable.
    files.sync_directory(directory)
    files.sync_directory(parent(directory))
    entries = content.entries
    return Log(
        directory,
        held,
        metadata=content.metadata,
        state=content.state,
        last_index=entries[-1].index if entries else snapshot.index,
        offset=content.end,
        crc=content.crc,
        segment_bytes=segment_bytes,
    )


def _lock(files: Files, directory: str, segments: list[Segment]) -> list[HeldSegment]:
    held: list[HeldSegment] = []
    for segment in segments:
        path = f"{directory}/{segment.name}"
        held.append(HeldSegment(segment, files.open(path, Opening.WRITE)))
        if not files.lock(held[-1].descriptor):
            _close(files, held)
            raise LogLockedError(path)
    return held


def _close(files: Files, held: list[HeldSegment]) -> None:
    for _, descriptor in held:
        files.close(descriptor)


def _remove_leftovers(files: Files, directory: str) -> None:
    for name in leftovers(files, directory):
        files.unlink(f"{directory}/{name}")


def _keep(files: Files, path: str, offset: int) -> None:
    """Copy data that will be cut off to a separate file, at the same offset, for inspection.

    The file has a hole before the offset: a full disk has no space for a second copy.
    """
    descriptor = files.open(path, Opening.READ)
    try:
        data = files.pread(descriptor, offset, files.size(descriptor) - offset).rstrip(b"\0")
    finally:
        files.close(descriptor)
    if data:
        write_file(files, f"{path}.broken", data, offset)


def _remove_void(files: Files, directory: str, void: HeldSegment) -> None:
    """Remove a void segment durably, because the log will append to the one before it."""
    path = f"{directory}/{void.segment.name}"
    _keep(files, path, 0)
    files.close(void.descriptor)
    files.unlink(path)
    files.sync_directory(directory)


def _make_durable(files: Files, descriptor: int, start: int, end: int) -> None:
    """Rewrite data as read, and sync it.

    A killed process may have left the data unsynced. After a failed sync the system still returns
    the data to readers, but no longer writes it, and reports success for the next sync.
    """
    files.pwrite(descriptor, start, files.pread(descriptor, start, end - start))
    files.fdatasync(descriptor)


def _write_again(files: Files, descriptor: int, start: int, end: int, segment_bytes: int) -> None:
    """Rewrite and sync the part that may not be durable, with zeros after it."""
    files.truncate(descriptor, end)
    files.allocate(descriptor, max(end, segment_bytes))
    _make_durable(files, descriptor, start, end)
