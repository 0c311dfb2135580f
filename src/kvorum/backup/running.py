"""A backup that goes on: every change is recorded, and every now and then a snapshot is taken.

What fails begins anew from what the archive holds, so that a killed run and a failed one are
continued alike. A history is continued as long as nothing is missing from it; otherwise another one
begins with a snapshot of its own.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from threading import Event
from typing import TYPE_CHECKING

from kvorum.backup.archive import Archive, History, read_manifest
from kvorum.backup.errors import ArchiveError, HistoryEndedError
from kvorum.backup.moments import stamp_of
from kvorum.backup.recording import Place, Recorder
from kvorum.backup.segments import digest_of, read_segment
from kvorum.backup.session import RETRY_SECONDS, TURN_SECONDS, Options, Report, Session
from kvorum.backup.stores import Store, read_whole
from kvorum.backup.taking import header_of
from kvorum.client.errors import KvorumError, RevisionWentBackError, WatchCompactedError
from kvorum.client.sync.client import Client

if TYPE_CHECKING:
    from kvorum.api.pb.etcdserverpb import ResponseHeader

ATTEMPTS_MAX = 3
"""How many histories `run_once` begins at most, if they end while it records them."""
EMPTY_REVISION = 1
"""Of a store in which nothing was written yet."""


class Backup:
    """Makes backups of a cluster."""

    def __init__(
        self,
        client: Client,
        store: Store,
        options: Options,
        report: Report,
        is_my_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make one; `is_my_turn` says whether this program is the one that makes the backup now."""
        self._client = client
        self._store = store
        self._options = options
        self._report = report
        self._is_my_turn = is_my_turn
        self._run_name = token_hex(4)
        self._stopped = Event()
        self._session: Session | None = None
        self._ended = ""
        """The history that cannot be continued."""
        self._reason = "the archive has none that could be continued"

    def stop(self) -> None:
        """Let `run` return, with everything that is known in the archive; by another thread."""
        self._stopped.set()
        if self._session is not None:
            self._session.stop()

    def run(self) -> None:
        """Make backups until `stop` is called; whatever fails is reported and tried again."""
        while not self._stopped.is_set():
            try:
                if self._is_my_turn():
                    self._store.clean()
                    self._record(is_once=False)
                else:
                    self._stopped.wait(TURN_SECONDS)
            except (KvorumError, ArchiveError, OSError) as error:
                self._report.failed("backup", error)
                self._stopped.wait(RETRY_SECONDS)

    def run_once(self) -> None:
        """Take one snapshot, and record everything since the one before; raises what fails."""
        self._store.clean()
        for _ in range(ATTEMPTS_MAX):
            if self._stopped.is_set() or self._record(is_once=True):
                return
        raise ArchiveError(f"the store's history ended {ATTEMPTS_MAX} times: {self._reason}")

    def _record(self, *, is_once: bool) -> bool:
        """Record a history, until it ends or the session does; return whether that was it."""
        header = header_of(self._client)
        history, place, due = self._begin(header)
        recorder = Recorder(history.name, header.cluster_id, place)
        session = self._session = Session(
            self._client, self._store, self._options, self._report, recorder, self._run_name
        )
        if self._stopped.is_set():
            return False
        least = history.snapshots[0].revision if history.snapshots else place.revision
        try:
            session.run(
                (least, header.revision), 0.0 if is_once else due, self._is_my_turn, is_once=is_once
            )
        except (HistoryEndedError, WatchCompactedError, RevisionWentBackError) as error:
            self._ended, self._reason = history.name, str(error)
            return False
        return True

    def _begin(self, header: "ResponseHeader") -> tuple[History, Place, float]:
        """Return the history to record, where to go on, and when it needs a snapshot."""
        recorded = [each for each in Archive(self._store).histories if each.snapshots]
        if recorded and recorded[-1].name != self._ended:
            history = recorded[-1]
            with suppress(ArchiveError):
                manifest = read_manifest(self._store, history.snapshots[-1])
                place = self._place(history)
                is_same = manifest.cluster_id == header.cluster_id
                # An empty store has no rows that could be other ones.
                is_known = place.digest or place.revision == EMPTY_REVISION
                if is_same and is_known and place.revision <= header.revision:
                    return history, place, manifest.taken + self._options.every_seconds
        history = History(f"{stamp_of(time.time())}-{token_hex(4)}")
        self._report.began(history.name, self._reason)
        return history, Place(header.revision, ""), 0.0

    def _place(self, history: History) -> Place:
        """Return how far a history is recorded."""
        newest = history.snapshots[-1]
        chain = history.chain(history.snapshots[0].revision)
        if chain and chain[-1].last >= newest.revision:
            name = str(chain[-1])
            last = read_segment(name, read_whole(self._store, name)).revisions[-1]
            return Place(last.number, digest_of(last.rows))
        facts = read_manifest(self._store, newest).facts
        return Place(facts.revision, facts.rows_digest)
