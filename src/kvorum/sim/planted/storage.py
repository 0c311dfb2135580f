"""Planted bugs of durable storage: what is written, and when."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.member.jobs import Job
from kvorum.member.logwriter import LogWriter
from kvorum.server.jobs import JobOrder
from kvorum.state.mvcc import history
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.flush import StageFlush
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files
from kvorum.storage.snap import ReceivedDatabase, WriteSnap, database_path
from kvorum.storage.wal import opening, reading
from kvorum.storage.wal.reading import LogContent, SnapshotRecord


@contextmanager
def acknowledge_before_fsync() -> Iterator[None]:
    """Release the messages that wait for a batch before the batch is synced."""
    original = LogWriter._write_batch

    def write_batch(writer: LogWriter) -> None:
        before = len(writer._writing)
        original(writer)
        if len(writer._writing) > before:
            messages = writer._writing[-1]
            writer._writing[-1] = []
            writer._deliver(messages)

    with patch.object(LogWriter, "_write_batch", write_batch):
        yield


@contextmanager
def run_log_jobs_after_a_failed_one() -> Iterator[None]:
    """Continue the log after one of its jobs has failed."""

    def end_log_job(order: JobOrder, job: Job, result: object, error: Exception | None) -> None:
        order._ended.append((job, result, error))

    with patch.object(JobOrder, "_end_log_job", end_log_job):
        yield


@contextmanager
def lose_the_tail_of_the_log() -> Iterator[None]:
    """Silently drop the last entry when the log is read."""

    def shortened(content: LogContent) -> LogContent:
        entries = content.entries[:-1]
        if not entries:
            return content
        state = content.state
        commit = min(state.commit, entries[-1].index)
        return content._replace(entries=entries, state=state._replace(commit=commit))

    def read_log(*arguments: Any) -> LogContent:
        return shortened(reading.read_log(*arguments))

    def survey_log(*arguments: Any) -> tuple[list[SnapshotRecord], LogContent | None]:
        snapshots, content = reading.survey_log(*arguments)
        return snapshots, content and shortened(content)

    with (
        patch.object(opening, "read_log", read_log),
        patch.object(opening, "survey_log", survey_log),
    ):
        yield


@contextmanager
def apply_twice_after_restart() -> Iterator[None]:
    """Treat the last applied entry as not yet applied."""
    original = View.applied

    def applied(view: View) -> tuple[int, int]:
        index, term = original(view)
        return max(0, index - 1), term

    with patch.object(View, "applied", applied):
        yield


@contextmanager
def index_ahead_of_effects() -> Iterator[None]:
    """Flush the index of the last entry, but its last row only with the next batch."""
    original = Backend.seal

    def seal(backend: Backend, *arguments: Any) -> StageFlush | None:
        job = original(backend, *arguments)
        sealed = backend._sealed
        if job is not None and sealed is not None and len(sealed.rows) > 1:
            last = next(reversed(sealed.rows))
            backend._active.rows[last] = sealed.rows.pop(last)
        return job

    with patch.object(Backend, "seal", seal):
        yield


@contextmanager
def compact_away_a_needed_revision() -> Iterator[None]:
    """Also drop the revision that a reader at the compacted revision itself needs."""
    original = history.compact_entry

    def compacted(entry: history.Entry, main: int) -> tuple[history.Entry | None, bytes]:
        left, dropped = original(entry, main)
        if left is None or isinstance(left, int):
            return left, dropped
        records = history.unpack_revisions(bytes(left[history._HEAD_BYTES :]))
        newer = [revision >> 32 for revision in records if revision >> 32 > main]
        return original(entry, newer[0]) if newer else (left, dropped)

    with patch.object(history, "compact_entry", compacted):
        yield


@contextmanager
def leave_the_directory_of_a_snapshot_unsynced() -> Iterator[None]:
    """Rename a received snapshot and its database into place without making the names durable.

    Both are in one directory, and the sync for the snapshot's own file covers the database, too. So
    the bug omits both syncs; it keeps those for snapshots that the member makes itself.
    """
    finish, run = ReceivedDatabase.finish, WriteSnap.run

    def finish_unsynced(received: ReceivedDatabase) -> int:
        with patch.object(type(received._files), "sync_directory", _not_at_all):
            return finish(received)

    def run_unsynced(work: WriteSnap, files: Files) -> None:
        if not files.exists(database_path(work.directory, work.snapshot.index)):
            run(work, files)
            return
        with patch.object(type(files), "sync_directory", _not_at_all):
            run(work, files)

    with (
        patch.object(ReceivedDatabase, "finish", finish_unsynced),
        patch.object(WriteSnap, "run", run_unsynced),
    ):
        yield


def _not_at_all(_files: Files, _path: str) -> None:
    pass
