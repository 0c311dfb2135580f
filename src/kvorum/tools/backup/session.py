"""Record one history for as long as it lasts: watch all keys, and take snapshots beside it.

The watch starts before the first snapshot is taken, so that the log continues from any snapshot; a
snapshot counts once the log has reached it. When a watch loses its stream, the session opens a new
one itself, because the recorder has to compare the changes of the next server with those of the
last one. While nothing changes, the session requests progress from the server, so that the archive
shows that an hour without a change had none.

The wall clock dates the records. It may jump, so no wait depends on it alone.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from threading import Event, Thread
from typing import Generic, Protocol, TypeVar

from kvorum.client.errors import KvorumError, WatchCompactedError, WatchLostError
from kvorum.client.operations import time_to_live_operation
from kvorum.client.sync.client import Client, Watch
from kvorum.tools.backup.archive import RecordedPeriod
from kvorum.tools.backup.errors import ArchiveError, HistoryEndedError
from kvorum.tools.backup.moments import AHEAD_SECONDS_MAX, round_moment, stamp_of, text_of
from kvorum.tools.backup.names import MANIFEST_ENDING, SegmentName, WatchedName
from kvorum.tools.backup.recording import Recorder
from kvorum.tools.backup.stores import ArchiveStore, write_verified
from kvorum.tools.backup.taking import (
    ANSWER_SECONDS_MAX,
    BackupStoppedError,
    Received,
    Taken,
    count_snapshot,
    receive_snapshot,
)

SEGMENT_BYTES_MAX = 8 << 20
TURN_SECONDS = 1.0
"""How often the session checks that this program still has the turn to make the backup."""
RETRY_SECONDS = 5.0
UNANSWERED_SECONDS_MAX = 60.0
LEASE_SECONDS = 3600
"""The TTL of a lease that the server could not be asked about. Holders have time to come back, and
the keys of lost holders do not stay for ever."""
LAST_LEASES_SECONDS_MAX = 2.0
"""How long an ending session queries leases; the server may have ended before."""
T = TypeVar("T")


@dataclass(slots=True, frozen=True, kw_only=True)
class BackupOptions:
    """The options of a backup."""

    every_seconds: float
    keep: int
    log_seconds: float
    """The maximum delay until a change is in the archive; 0: changes are not recorded."""


class BackupReport(Protocol):
    """Receives the reports of a backup, from several threads."""

    def note_history_started(self, history: str, reason: str) -> None:
        """Report that a new history starts, with the reason."""

    def note_progress(self, received: int, remaining: int) -> None:
        """Report the received and the remaining bytes of a snapshot."""

    def note_snapshot(self, taken: Taken) -> None:
        """Report a snapshot that counts."""

    def note_segment(self, name: SegmentName, size: int) -> None:
        """Report that a segment of changes is in the archive."""

    def note_failure(self, what: str, error: Exception) -> None:
        """Report a failure after which the backup will retry."""

    def note_warning(self, text: str) -> None:
        """Report a warning for the operator; the backup goes on."""


class _SnapshotStep(Generic[T]):
    """A step of taking a snapshot, in a thread of its own."""

    def __init__(
        self,
        work: Callable[[Callable[[int, int], None]], T],
        progress: Callable[[int, int], None],
        done: Callable[[], None],
    ) -> None:
        self._work = work
        self._progress = progress
        self._on_done = done
        self._stopped = Event()
        self._ended = Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="snapshot", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the step has ended."""
        return self._ended.is_set()

    def result(self) -> T:
        """Wait for the end of the step and return its result, or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Cancel the step, and wait for its thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._result = self._work(self._count)
        except BaseException as error:
            # Catch everything, or the session would wait for ever.
            self._error = error
        self._ended.set()
        self._on_done()

    def _count(self, received: int, remaining: int) -> None:
        if self._stopped.is_set():
            raise BackupStoppedError
        self._progress(received, remaining)


class BackupSession:
    """Records one history. Other threads may call `stop` and `wake`."""

    def __init__(
        self,
        client: Client,
        store: ArchiveStore,
        options: BackupOptions,
        report: BackupReport,
        recorder: Recorder,
        run: str,
    ) -> None:
        self._client = client
        self._store = store
        self._options = options
        self._report = report
        self._recorder = recorder
        self._run_name = run
        self._wake_event = Event()
        self._is_stopped = False
        self._watch: Watch | None = None
        self._receiving: _SnapshotStep[Received] | None = None
        self._received: Received | None = None
        """A snapshot that the log has not reached yet."""
        self._counting: _SnapshotStep[Taken] | None = None
        self._taken: Taken | None = None
        self._least = 0
        """The lowest revision that a snapshot may have."""
        self._due = 0.0
        """When the next snapshot is due, by the wall clock."""
        self._retry_at = 0.0
        """When a failed snapshot may be retried, by the monotonic clock."""
        self._flush_at = 0.0
        self._since: float | None = None
        """Since when the watch has been up to date; None while it catches up."""
        self._until = 0.0
        """When the newest change was received."""
        self._progress_requested_at = 0.0
        """When the outstanding progress request was sent; 0 if none is outstanding."""
        self._answer_at = 0.0
        """The deadline of the progress response, by the monotonic clock."""
        self._watched = 0.0
        """The time up to which the received changes are known to be complete."""
        self._recorded_until = 0.0
        """The value of `_watched` that the archive has."""
        self._granted: dict[int, int] = {}
        """The TTLs in seconds of the leases of the last segment."""

    def stop(self) -> None:
        """Make `run` return soon, after it has archived everything received."""
        self._is_stopped = True
        self.wake()

    def wake(self) -> None:
        """Wake `run` from its wait."""
        self._wake_event.set()
        if self._watch is not None:
            self._watch.wake()

    def run(
        self,
        revisions: tuple[int, int],
        due: float,
        is_my_turn: Callable[[], bool],
        *,
        is_once: bool,
    ) -> None:
        """Record until `stop`, or until `is_my_turn` is false; raise any failure.

        `revisions` are the lowest that a snapshot may have, and the store's revision now. `due` is
        the time of the first snapshot. With `is_once`, return once a snapshot and all changes
        before it are archived.
        """
        self._least, self._due = revisions[0], due
        log_seconds = self._options.log_seconds
        if log_seconds:
            self._watch = self._open_watch(self._recorder.resume(), revisions[1])
            if self._recorder.is_settled:
                self._since = round_moment(time.time())
            self._flush_at = time.monotonic() + log_seconds
        turn_at = time.monotonic() + TURN_SECONDS
        try:
            while not self._is_stopped:
                if self._is_due(is_once=is_once):
                    self._receive()
                self._take_changes(turn_at, revisions[1])
                self._advance_snapshot(is_once=is_once)
                if self._taken is not None:
                    if is_once:
                        break
                    self._taken = None
                if log_seconds and time.monotonic() >= self._flush_at:
                    self._flush()
                if time.monotonic() >= turn_at:
                    if not is_my_turn():
                        break
                    turn_at = time.monotonic() + TURN_SECONDS
        except (KvorumError, HistoryEndedError):
            # The changes that were recorded before the failure are valid.
            with suppress(ArchiveError):
                self._write(LAST_LEASES_SECONDS_MAX)
            raise
        else:
            self._write(LAST_LEASES_SECONDS_MAX if self._is_stopped else ANSWER_SECONDS_MAX)
        finally:
            self._cancel_snapshot()

    # Snapshots.

    def _is_due(self, *, is_once: bool) -> bool:
        """Return whether to start a snapshot now; with `is_once`, whenever none is under way."""
        is_busy = self._receiving or self._received or self._counting or self._taken
        if is_busy or time.monotonic() < self._retry_at:
            return False
        now = time.time()
        taken = self._due - self._options.every_seconds
        if taken > now + AHEAD_SECONDS_MAX:
            self._report.note_warning(
                f"a snapshot was taken at {text_of(taken)}, and now it is {text_of(now)}: "
                "the clock went back"
            )
            self._due = 0.0
        return is_once or now >= self._due

    def _receive(self) -> None:
        client, store, history = self._client, self._store, self._recorder.history
        revision_min = self._least

        def receive(progress: Callable[[int, int], None]) -> Received:
            return receive_snapshot(client, store, history, revision_min, progress)

        self._receiving = _SnapshotStep(receive, self._report.note_progress, self.wake)

    def _advance_snapshot(self, *, is_once: bool) -> None:
        """Advance the snapshot that is under way as far as possible."""
        try:
            if self._receiving is not None and self._receiving.is_done:
                receiving, self._receiving = self._receiving, None
                self._received = receiving.result()
            if self._counting is not None and self._counting.is_done:
                counting, self._counting = self._counting, None
                self._taken = counting.result()
                self._received = None
                self._due = self._taken.manifest.taken + self._options.every_seconds
                if not self._options.log_seconds:
                    # Without a log, only this can show that the store went back.
                    self._least = self._taken.name.revision
                self._report.note_snapshot(self._taken)
                if self._taken.problem is not None:
                    if is_once:
                        raise self._taken.problem
                    self._report.note_failure("the removal of older snapshots", self._taken.problem)
        except (KvorumError, ArchiveError, OSError) as error:
            self._remove_received()
            if is_once:
                raise
            self._report.note_failure("snapshot", error)
            self._retry_at = time.monotonic() + RETRY_SECONDS
        if self._received is not None and self._counting is None:
            self._count(self._received)

    def _count(self, received: Received) -> None:
        """Make a snapshot count if the log has reached it."""
        store, keep, has_log = self._store, self._options.keep, bool(self._options.log_seconds)
        if has_log:
            recorder, facts = self._recorder, received.manifest.facts
            if not recorder.is_settled or recorder.last < facts.revision:
                return
            if recorder.contradicts(received.known):
                raise HistoryEndedError(
                    f"the snapshot of revision {facts.revision} is another store's"
                )
            self._write(ANSWER_SECONDS_MAX)

        def count(_: Callable[[int, int], None]) -> Taken:
            return count_snapshot(store, received, keep, has_log=has_log)

        self._counting = _SnapshotStep(count, self._report.note_progress, self.wake)

    def _cancel_snapshot(self) -> None:
        """Cancel running steps, and remove their snapshot."""
        if self._receiving is not None:
            self._receiving.stop()
            with suppress(KvorumError, ArchiveError, OSError, BackupStoppedError):
                self._received = self._receiving.result()
        if self._counting is not None:
            self._counting.stop()
            with suppress(KvorumError, ArchiveError, OSError, HistoryEndedError):
                self._report.note_snapshot(self._counting.result())
                self._received = None
        self._remove_received()
        if self._watch is not None:
            self._watch.close()

    def _remove_received(self) -> None:
        """Remove a snapshot that will not count."""
        received, self._received = self._received, None
        if received is not None:
            with suppress(ArchiveError):
                # A manifest may exist although its writing failed. Delete it first: if that fails,
                # too, the snapshot stays and counts.
                self._store.delete(f"{received.name}{MANIFEST_ENDING}")
                self._store.delete(str(received.name))

    # Changes.

    def _open_watch(self, revision: int, revision_now: int) -> Watch:
        watch = self._client.watch(from_key=b"\0", revision=revision, resume=False)
        watch.knows(revision_now)
        self._progress_requested_at = 0.0
        return watch

    def _open_watch_again(self, revision_min: int) -> None:
        """Open a new watch, which first repeats recorded changes for comparison."""
        assert self._watch is not None
        self._watch.close()
        recorder = self._recorder
        self._watch = self._open_watch(recorder.resume(revision_min), recorder.last)

    def _take_changes(self, moment: float, revision_now: int) -> None:
        """Add the next changes; wait for them until a time of the monotonic clock."""
        if self._watch is None:
            self._wake_event.wait(max(0.0, moment - time.monotonic()))
            self._wake_event.clear()
            return
        recorder = self._recorder
        try:
            changes = self._watch.changes_until(min(moment, self._flush_at))
        except WatchLostError:
            self._open_watch_again(0)
            return
        except WatchCompactedError as error:
            oldest = min(error.compacted + 1, recorder.last)
            if error.compacted > recorder.last or error.revision >= oldest:
                raise
            self._open_watch_again(oldest)
            return
        if changes is None:
            return
        now = round_moment(time.time())
        recorder.add(changes, now)
        if recorder.last >= revision_now and (self._since is None or now < self._since):
            # The watch has caught up, so changes now arrive as they happen. This restarts, too, if
            # the clock has gone back.
            self._since, self._watched, self._recorded_until = now, 0.0, 0.0
        if changes.events:
            self._until = now
        elif self._progress_requested_at:
            self._watched, self._progress_requested_at = min(self._progress_requested_at, now), 0.0
        if recorder.size >= SEGMENT_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        """Archive the received changes, and request progress."""
        self._flush_at = time.monotonic() + self._options.log_seconds
        self._write(ANSWER_SECONDS_MAX)
        self._request_progress()

    def _write(self, leases_seconds_max: float) -> None:
        """Archive the received changes."""
        recorder, store = self._recorder, self._store
        if recorder.last > recorder.written:
            leases = self._query_leases(leases_seconds_max)
            first, last, data = recorder.take(self._since, self._until, leases)
            name = SegmentName(recorder.history, first, last, stamp_of(self._until))
            write_verified(store, str(name), data)
            self._report.note_segment(name, len(data))
        if self._since is not None and self._watched > max(self._since, self._recorded_until):
            watched = RecordedPeriod(self._since, self._watched, recorder.last)
            store.write(str(WatchedName(recorder.history, self._run_name)), watched.encode())
            self._recorded_until = self._watched

    def _request_progress(self) -> None:
        """Request progress; open a new watch if the last request exceeded its deadline.

        A watch that was resumed after the last change gets no response before the next change.
        """
        if not self._recorder.is_settled:
            return
        if self._progress_requested_at and time.monotonic() < self._answer_at:
            return
        if self._progress_requested_at:
            self._open_watch_again(0)
            return
        self._progress_requested_at = round_moment(time.time())
        self._answer_at = time.monotonic() + UNANSWERED_SECONDS_MAX
        with self._client.shell.turn():
            self._client.shell.watching.request_progress()

    def _query_leases(self, seconds_max: float) -> dict[int, int]:
        """Return the leases of the segment's keys, with their granted TTLs.

        A lease that is gone by now lived shorter than it takes to write a segment. The segment does
        not wait for an unresponsive server, because without the segment revisions would be lost.
        """
        until = time.monotonic() + seconds_max
        granted = {each: self._granted.get(each, LEASE_SECONDS) for each in self._recorder.leases}
        for lease in granted:
            operation = time_to_live_operation(lease, keys=False)
            try:
                found = self._client.run(operation, max(until - time.monotonic(), 0.01))
            except KvorumError as error:
                self._report.note_warning(
                    f"the server does not tell for how long leases are granted: those it was not "
                    f"asked about before get {LEASE_SECONDS} seconds ({error})"
                )
                break
            granted[lease] = found.ttl or ceil(self._options.log_seconds)
        self._granted = granted
        return granted
