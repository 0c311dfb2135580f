"""A continuous backup: it records every change, and regularly takes a snapshot.

After a failure the backup restarts from the content of the archive, so that a failed run continues
in the same way as a killed one. A history continues at the end of its log, as long as the store
still has the next revisions; otherwise a new history starts with a snapshot of its own. A history
with an older snapshot never continues from a newer one, because the revisions between them would be
lost.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from threading import Event
from typing import TYPE_CHECKING

from kvorum.client.errors import KvorumError, RevisionWentBackError, WatchCompactedError
from kvorum.client.sync.client import Client
from kvorum.tools.backup.archive import Archive, ArchiveHistory, read_manifest
from kvorum.tools.backup.errors import ArchiveError, HistoryEndedError, StoreError
from kvorum.tools.backup.moments import AHEAD_SECONDS_MAX, parse_stamp, text_of
from kvorum.tools.backup.names import SegmentName, history_name
from kvorum.tools.backup.points import read_segment_of
from kvorum.tools.backup.recording import HistoryPosition, Recorder, Tail, size_of
from kvorum.tools.backup.segments import (
    COMPARED_BYTES_MAX,
    COMPARED_REVISIONS_MAX,
    Known,
    digest_of,
)
from kvorum.tools.backup.session import (
    RETRY_SECONDS,
    TURN_SECONDS,
    BackupOptions,
    BackupReport,
    BackupSession,
)
from kvorum.tools.backup.stores import ArchiveStore
from kvorum.tools.backup.taking import header_of

if TYPE_CHECKING:
    from kvorum.api.pb.etcdserverpb import ResponseHeader

ATTEMPTS_MAX = 3
"""The number of histories that `run_once` starts at most, if each ends during recording."""
EMPTY_REVISION = 1
"""The revision of a store that has no writes yet."""


class Backup:
    """Makes backups of a cluster."""

    def __init__(
        self,
        client: Client,
        store: ArchiveStore,
        options: BackupOptions,
        report: BackupReport,
        is_my_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_my_turn` returns whether this program is the one to make the backup now."""
        self._client = client
        self._store = store
        self._options = options
        self._report = report
        self._is_my_turn = is_my_turn
        self._run_name = token_hex(4)
        self._stopped = Event()
        self._session: BackupSession | None = None
        self._ended = ""
        """The name of the history that cannot be continued."""
        self._reason = "the archive has none that could be continued"

    def stop(self) -> None:
        """Make `run` return after it has archived everything received; called by another thread."""
        self._stopped.set()
        if self._session is not None:
            self._session.stop()

    def run(self) -> None:
        """Make backups until `stop` is called; report failures, and retry."""
        while not self._stopped.is_set():
            try:
                if self._is_my_turn():
                    self._store.clean()
                    self._record(is_once=False)
                else:
                    self._stopped.wait(TURN_SECONDS)
            except (KvorumError, ArchiveError, OSError) as error:
                self._report.note_failure("backup", error)
                self._stopped.wait(RETRY_SECONDS)

    def run_once(self) -> None:
        """Take one snapshot, and record all changes since the previous one; raise any failure."""
        self._store.clean()
        for _ in range(ATTEMPTS_MAX):
            if self._stopped.is_set() or self._record(is_once=True):
                return
        raise ArchiveError(f"the store's history ended {ATTEMPTS_MAX} times: {self._reason}")

    def _record(self, *, is_once: bool) -> bool:
        """Record a history; return False if the history ended, or the backup was stopped before."""
        header, history, position, due = self._choose_history()
        expected = self._digests_beyond(history, position.revision)
        recorder = Recorder(history.name, header.cluster_id, position, expected)
        session = self._session = BackupSession(
            self._client, self._store, self._options, self._report, recorder, self._run_name
        )
        if self._stopped.is_set():
            return False
        least = position.revision
        if history.snapshots:
            # Without a log, only the newest snapshot can show that a store went back.
            least = history.snapshots[0 if self._options.log_seconds else -1].revision
        try:
            session.run((least, header.revision), due, self._is_my_turn, is_once=is_once)
        except (HistoryEndedError, WatchCompactedError, RevisionWentBackError) as error:
            self._ended, self._reason = history.name, str(error)
            return False
        return True

    def _choose_history(self) -> tuple["ResponseHeader", ArchiveHistory, HistoryPosition, float]:
        """Return the store's header, the history, its position, and when a snapshot is due."""
        archive = Archive(self._store)
        header: ResponseHeader | None = None
        recorded = [each for each in archive.histories if each.snapshots]
        if recorded and recorded[-1].name != self._ended:
            history = recorded[-1]
            due = self._next_snapshot_at(history)
            try:
                manifest = read_manifest(self._store, history.snapshots[-1])
                position = self._find_position(history)
            except StoreError:
                raise
            except ArchiveError as error:
                self._reason = str(error)
            else:
                # Read the header after the archive, because another program may be recording.
                header = header_of(self._client)
                if self._is_continued(history, position, header, manifest.cluster_id):
                    return header, history, position, due
        header = header or header_of(self._client)
        newest = archive.histories[-1].name if archive.histories else ""
        history = ArchiveHistory(history_name(time.time(), newest, token_hex(4)))
        self._report.note_history_started(history.name, self._reason)
        return header, history, HistoryPosition(header.revision, ""), 0.0

    def _next_snapshot_at(self, history: ArchiveHistory) -> float:
        """Return when a history needs a snapshot; snapshots dated in the future do not count."""
        now = time.time()
        taken = [parse_stamp(each.stamp) for each in history.snapshots]
        if max(taken) > now + AHEAD_SECONDS_MAX:
            self._report.note_warning(
                f"a snapshot of history {history.name} is dated {text_of(max(taken))}, and it is "
                f"{text_of(now)}: a clock was or is wrong"
            )
        past = [each for each in taken if each <= now + AHEAD_SECONDS_MAX]
        return max(past) + self._options.every_seconds if past else 0.0

    def _is_continued(
        self,
        history: ArchiveHistory,
        position: HistoryPosition,
        header: "ResponseHeader",
        cluster_id: int,
    ) -> bool:
        """Return whether a history can go on, as far as is known before the watch."""
        # A run without a log continues only histories without one: its snapshots would be holes in
        # a log.
        is_kind = bool(self._options.log_seconds) or not history.segments
        # An empty store has no rows that could differ.
        is_known = position.digest or position.revision == EMPTY_REVISION
        is_same = cluster_id == header.cluster_id and position.revision <= header.revision
        return bool(is_kind and is_known and is_same)

    def _find_position(self, history: ArchiveHistory) -> HistoryPosition:
        """Return the end of a history's log, with the revisions to compare when it continues.

        A damaged segment ends the log; the revisions from there on are recorded again.
        """
        damaged: list[SegmentName] = []
        while chain := history.chain(history.snapshots[0].revision, damaged):
            if tail := self._read_tail(chain, damaged):
                *before, last = tail
                return HistoryPosition(last.revision, last.digest, before)
        facts = read_manifest(self._store, history.snapshots[0]).facts
        return HistoryPosition(facts.revision, facts.rows_digest)

    def _read_tail(self, chain: list[SegmentName], damaged: list[SegmentName]) -> list[Known]:
        """Return the newest revisions of a chain; on damage return none, and note the segment."""
        found: dict[Known, int] = {}
        for name in reversed(chain):
            try:
                revisions = read_segment_of(self._store, name).revisions
            except StoreError:
                raise
            except ArchiveError:
                damaged.append(name)
                return []
            # Segments of two programs may overlap.
            found |= {
                Known(each.number, digest_of(each.rows)): size_of(each.rows) for each in revisions
            }
            if len(found) >= COMPARED_REVISIONS_MAX or sum(found.values()) >= COMPARED_BYTES_MAX:
                break
        tail = Tail()
        for known in sorted(found):
            tail.add(known, found[known])
        return list(tail)

    def _digests_beyond(self, history: ArchiveHistory, revision: int) -> dict[int, str]:
        """Return the digests of the snapshots that are newer than the log."""
        found = {}
        for each in history.snapshots:
            if each.revision > revision:
                with suppress(ArchiveError):
                    digest = read_manifest(self._store, each).facts.rows_digest
                    if digest:
                        found[each.revision] = digest
        return found
