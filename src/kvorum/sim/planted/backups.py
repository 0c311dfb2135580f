"""Planted bugs of backups: in rotation, in comparisons, and in where a log continues."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from kvorum.tools.backup import running, session, taking
from kvorum.tools.backup.archive import Archive, ArchiveHistory, read_manifest
from kvorum.tools.backup.moments import stamp_of
from kvorum.tools.backup.names import SnapshotName
from kvorum.tools.backup.recording import HistoryPosition, Recorder
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.stores import ArchiveStore


@contextmanager
def order_histories_by_the_wall_clock() -> Iterator[None]:
    """Name a history by the clock alone, and keep those whose names sort last."""

    def history_name(now: float, newest: str, token: str) -> str:
        del newest
        return f"{stamp_of(now)}-{token}"

    def rotate(
        store: ArchiveStore, keep: int, current: str = "", taken: SnapshotName | None = None
    ) -> list[str]:
        del current, taken
        removed = list(Archive(store).find_superfluous(keep))
        for name in removed:
            store.delete(name)
        return removed

    with (
        patch.object(running, "history_name", history_name),
        patch.object(taking, "rotate", rotate),
    ):
        yield


@contextmanager
def go_on_at_the_newest_snapshot() -> Iterator[None]:
    """Continue a log at the newest snapshot, without checking for a gap before it."""
    original = Backup._find_position

    def place(backup: Backup, history: ArchiveHistory) -> HistoryPosition:
        found = original(backup, history)
        newest = history.snapshots[-1]
        if found.revision >= newest.revision:
            return found
        facts = read_manifest(backup._store, newest).facts
        return HistoryPosition(facts.revision, facts.rows_digest)

    with (
        patch.object(Backup, "_find_position", place),
        patch.object(session.BackupSession, "_count", _count_at_once),
    ):
        yield


def _count_at_once(recording: session.BackupSession, received: taking.Received) -> None:
    """Publish a snapshot before the log has reached it."""
    store, keep = recording._store, recording._options.keep

    def count(_: object) -> taking.Taken:
        return taking.count_snapshot(store, received, keep, has_log=True)

    recording._counting = session._SnapshotStep(
        count, recording._report.note_progress, recording.wake
    )


@contextmanager
def take_any_store_for_the_recorded_one() -> Iterator[None]:
    """Continue a history without comparing repeated changes with the recorded ones."""
    original = Recorder.resume

    def resume(recorder: Recorder, revision_min: int = 0) -> int:
        original(recorder, revision_min)
        recorder._awaited.clear()
        return recorder.last

    with (
        patch.object(Recorder, "resume", resume),
        patch.object(Recorder, "contradicts", lambda *_: False),
        patch.object(taking, "_check_same", lambda *_: None),
    ):
        yield
