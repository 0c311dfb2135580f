"""One history, recorded for as long as it lasts: a watch of all keys, and snapshots beside it.

The watch is begun before the first snapshot is taken, so that the log goes on from any snapshot.
While nothing changes, the server is asked how far it is: an archive that tells of no change for an
hour has to know that there was none.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from threading import Event, Thread
from typing import Protocol

from kvorum.backup.archive import Watched
from kvorum.backup.errors import ArchiveError
from kvorum.backup.moments import rounded, stamp_of
from kvorum.backup.names import SegmentName, WatchedName
from kvorum.backup.recording import Recorder
from kvorum.backup.stores import Store, write_verified
from kvorum.backup.taking import ANSWER_SECONDS_MAX, StoppedError, Taken, take_snapshot
from kvorum.client.errors import KvorumError
from kvorum.client.operations import time_to_live_operation
from kvorum.client.sync.client import Client, Watch

SEGMENT_BYTES_MAX = 8 << 20
TURN_SECONDS = 1.0
"""How often is looked whether this program is still the one that makes the backup."""
RETRY_SECONDS = 5.0
UNANSWERED_SECONDS_MAX = 60.0


@dataclass(slots=True, frozen=True, kw_only=True)
class Options:
    """What a backup is to be like."""

    every_seconds: float
    keep: int
    log_seconds: float
    """Changes are in the archive after so long at the latest; 0: they are not recorded."""


class Report(Protocol):
    """Is told what a backup does; by several threads."""

    def began(self, history: str, reason: str) -> None:
        """Take that a history was begun, and why."""

    def progress(self, received: int, remaining: int) -> None:
        """Take how far a snapshot has come."""

    def took(self, taken: Taken) -> None:
        """Take a snapshot that counts."""

    def recorded(self, name: SegmentName, size: int) -> None:
        """Take that changes are in the archive."""

    def failed(self, what: str, error: Exception) -> None:
        """Take what failed, and will be tried again."""


class _Taking:
    """A snapshot that is taken in a thread of its own."""

    def __init__(
        self,
        take: Callable[[Callable[[int, int], None]], Taken],
        progress: Callable[[int, int], None],
        done: Callable[[], None],
    ) -> None:
        self._take = take
        self._progress = progress
        self._done = done
        self._stopped = Event()
        self._ended = Event()
        self._taken: Taken | None = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="snapshot", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def result(self) -> Taken:
        """Return the snapshot once it has ended; raises what failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._taken is not None
        return self._taken

    def stop(self) -> None:
        """Give it up, and wait until nothing of it is left."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._taken = self._take(self._count)
        except Exception as error:
            self._error = error
        self._ended.set()
        self._done()

    def _count(self, received: int, remaining: int) -> None:
        if self._stopped.is_set():
            raise StoppedError
        self._progress(received, remaining)


class Session:
    """Records one history; `stop` and `wake` are for other threads."""

    def __init__(
        self,
        client: Client,
        store: Store,
        options: Options,
        report: Report,
        recorder: Recorder,
        run: str,
    ) -> None:
        self._client = client
        self._store = store
        self._options = options
        self._report = report
        self._recorder = recorder
        self._run_name = run
        self._bell = Event()
        self._is_stopped = False
        self._watch: Watch | None = None
        self._taking: _Taking | None = None
        self._taken: Taken | None = None
        self._due = 0.0
        """When the next snapshot is to be taken, by the wall clock."""
        self._flush_at = 0.0
        self._since: float | None = None
        """From when on every change was heard of at once."""
        self._until = 0.0
        """When something was heard last."""
        self._asked = 0.0
        """When the server was asked how far it is; 0 if it has answered, or was not asked."""
        self._watched = 0.0
        """Until when there was nothing but what was heard, for sure."""
        self._told = 0.0
        """What of that is in the archive."""

    def stop(self) -> None:
        """Let `run` return soon, with everything that is known in the archive."""
        self._is_stopped = True
        self.wake()

    def wake(self) -> None:
        """Let `run` look around."""
        self._bell.set()
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
        """Record until it is stopped, or has to give its turn up; raises what fails.

        The revisions are the least that snapshots may have, and that of the store now. The first
        snapshot is due at a moment. Once: until one was taken, and what is before it is recorded.
        """
        self._due = due
        log_seconds = self._options.log_seconds
        if log_seconds:
            self._watch = self._begin_watch(revisions[1])
            if self._recorder.is_settled:
                self._since = rounded(time.time())
            self._flush_at = time.monotonic() + log_seconds
        turn_at = time.monotonic() + TURN_SECONDS
        try:
            while not self._is_stopped:
                if self._taking is None and self._taken is None and time.time() >= self._due:
                    self._taking = self._take(revisions[0])
                self._listen(turn_at, revisions[1])
                self._end_taking(is_once=is_once)
                if self._taken is not None:
                    if not is_once:
                        self._taken = None
                    elif not log_seconds or self._recorder.last >= self._taken.name.revision:
                        break
                if log_seconds and time.monotonic() >= self._flush_at:
                    self._flush()
                if time.monotonic() >= turn_at:
                    if not is_my_turn():
                        break
                    turn_at = time.monotonic() + TURN_SECONDS
            if log_seconds:
                self._flush()
        finally:
            if self._taking is not None:
                self._taking.stop()
            if self._watch is not None:
                self._watch.close()

    # Snapshots.

    def _take(self, revision_min: int) -> _Taking:
        client, store, keep = self._client, self._store, self._options.keep
        history = self._recorder.history

        def take(progress: Callable[[int, int], None]) -> Taken:
            return take_snapshot(client, store, history, revision_min, keep, progress)

        return _Taking(take, self._report.progress, self.wake)

    def _end_taking(self, *, is_once: bool) -> None:
        taking = self._taking
        if taking is None or not taking.is_done:
            return
        self._taking = None
        try:
            self._taken = taking.result()
        except (KvorumError, ArchiveError, OSError) as error:
            if is_once:
                raise
            self._report.failed("snapshot", error)
            self._due = time.time() + RETRY_SECONDS
        else:
            self._due = self._taken.manifest.taken + self._options.every_seconds
            self._report.took(self._taken)

    # Changes.

    def _begin_watch(self, revision_now: int) -> Watch:
        watch = self._client.watch(from_key=b"\0", revision=self._recorder.resume())
        watch.knows(revision_now)
        return watch

    def _listen(self, moment: float, revision_now: int) -> None:
        """Take the changes that come next; wait for them until a moment."""
        if self._watch is None:
            self._bell.wait(max(0.0, moment - time.monotonic()))
            self._bell.clear()
            return
        changes = self._watch.changes_until(min(moment, self._flush_at))
        if changes is None:
            return
        now = rounded(time.time())
        recorder = self._recorder
        recorder.add(changes, now)
        if self._since is None and recorder.last >= revision_now:
            # What was missed has come; from now on changes are heard of as they happen.
            self._since = now
        if changes.events:
            self._until = now
        elif self._asked:
            self._watched, self._asked = self._asked, 0.0
        if recorder.size >= SEGMENT_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        """Bring into the archive what was heard."""
        recorder, store = self._recorder, self._store
        self._flush_at = time.monotonic() + self._options.log_seconds
        if recorder.last > recorder.written:
            first, last, data = recorder.take(self._since, self._until, self._leases())
            name = SegmentName(recorder.history, first, last, stamp_of(self._until))
            write_verified(store, str(name), data)
            self._report.recorded(name, len(data))
        if self._since is not None and self._watched > max(self._since, self._told):
            watched = Watched(self._since, self._watched, recorder.last)
            store.write(str(WatchedName(recorder.history, self._run_name)), watched.encoded())
            self._told = self._watched
        self._ask_progress()

    def _ask_progress(self) -> None:
        """Ask how far the server is; one that has not answered for long may never do.

        A watch that was resumed after the last change is told nothing before the next one.
        """
        assert self._watch is not None
        if not self._recorder.is_settled:
            return
        now = rounded(time.time())
        if self._asked and now - self._asked < UNANSWERED_SECONDS_MAX:
            return
        if self._asked:
            self._watch.close()
            self._watch = self._begin_watch(self._recorder.last)
        self._asked = now
        with self._client.shell.turn():
            self._client.shell.watching.request_progress()

    def _leases(self) -> dict[int, int]:
        """Return the leases of the segment's keys, and for how long they are granted.

        One that is gone by now lived shorter than it takes to write a segment.
        """
        found = {}
        for lease in self._recorder.leases:
            operation = time_to_live_operation(lease, keys=False)
            granted = self._client.run(operation, ANSWER_SECONDS_MAX).ttl
            found[lease] = granted or ceil(self._options.log_seconds)
        return found
