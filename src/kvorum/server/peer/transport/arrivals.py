"""Receive a snapshot and its database, piece by piece, with jobs that the host runs.

The transport buffers pieces while a job writes; if the disk is slower than the network, it pauses
the request. A job renames the file once it is durable, and only then does the node receive the
snapshot message. After any failure, a job removes the unfinished file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from kvorum.network.edge.interface import EdgeEventKind
from kvorum.raft.messages import Message, MessageType, Snapshot
from kvorum.raft.wire import decode_message
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.databases import check_database
from kvorum.server.peer.transport.headers import BUSY, UNACCEPTABLE, WRONG_TYPE, Refusal
from kvorum.server.peer.transport.settings import (
    PROGRESS_SECONDS,
    SNAPSHOT_ANSWER_SECONDS_MAX,
    SNAPSHOT_STALL_SECONDS_MAX,
)
from kvorum.server.peer.transport.shared import TransportState
from kvorum.storage.backend.copies import check_copy
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.files import Files
from kvorum.storage.snap import ReceivedDatabase

_unpack_word: Final = Struct(">Q").unpack_from
_NEVER: Final = float("inf")


@dataclass(slots=True, frozen=True)
class BeginDatabase:
    """A job: create the file for a received database."""

    directory: str
    index: int
    is_copy: bool

    def run(self, files: Files) -> ReceivedDatabase:
        """Return the empty file."""
        return ReceivedDatabase(files, self.directory, self.index)


@dataclass(slots=True, frozen=True)
class WritePieces:
    """A job: append pieces to a database, one by one because joining them would cost more."""

    database: ReceivedDatabase
    pieces: list[bytes]

    def run(self, files: Files) -> None:
        """Write the pieces."""
        del files
        for piece in self.pieces:
            self.database.write(piece)


@dataclass(slots=True, frozen=True)
class FinishDatabase:
    """A job: make a database durable under its final name, if it fits its snapshot."""

    database: ReceivedDatabase
    snapshot: Snapshot | None
    """The snapshot to compare the database with; None to skip that check."""
    is_copy: bool
    native: NativeRows | None

    def run(self, files: Files) -> int:
        """Return the file's length; raise CopyError or OtherDatabaseError."""
        if self.snapshot is not None:
            check_database(files, self.database, self.snapshot, self.native, is_copy=self.is_copy)
        elif self.is_copy:
            check_copy(files, self.database.descriptor, self.native)
        return self.database.finish()


@dataclass(slots=True, frozen=True)
class AbandonDatabase:
    """A job: remove an unfinished database."""

    database: ReceivedDatabase

    def run(self, files: Files) -> None:
        """Remove the file."""
        del files
        self.database.abandon()


class SnapshotArrival:
    """The reception of one snapshot."""

    __slots__ = (
        "_answer_headers",
        "_began",
        "_call",
        "_counters_of",
        "_database",
        "_is_complete",
        "_is_copy",
        "_is_paused",
        "_is_working",
        "_log_at",
        "_message",
        "_message_bytes",
        "_pieces",
        "_pieces_bytes",
        "_received_bytes",
        "_shared",
        "_started_at",
        "is_over",
        "wake_at",
    )

    def __init__(
        self,
        shared: TransportState,
        call: int,
        answer_headers: list[tuple[str, str]],
        counters_of: Callable[[int], PeerCounters],
        now: float,
        *,
        is_copy: bool,
    ) -> None:
        self._shared = shared
        self._call = call
        self._counters_of = counters_of
        self._answer_headers = answer_headers
        self._message: Message | None = None
        self._message_bytes: int | None = None
        # Pieces that no job writes yet.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._received_bytes = 0
        self._database: ReceivedDatabase | None = None
        self._is_complete = False
        self._is_copy = is_copy
        self._is_paused = False
        self._is_working = False
        self._started_at = now
        self._began = shared.settings.unix_seconds()
        self._log_at = now + PROGRESS_SECONDS
        self.is_over = False
        self.wake_at = now + SNAPSHOT_STALL_SECONDS_MAX

    @property
    def is_idle(self) -> bool:
        """Whether the reception is over and no job works on its file any more."""
        return self.is_over and not self._is_working and self._database is None

    def handle(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the call."""
        if kind == EdgeEventKind.MESSAGE:
            self.wake_at = now + SNAPSHOT_STALL_SECONDS_MAX
            self._pieces.append(detail)
            self._pieces_bytes += len(detail)
            self._received_bytes += len(detail)
            self._advance()
        elif kind == EdgeEventKind.HALF_CLOSED:
            self._is_complete = True
            self.wake_at = now + SNAPSHOT_ANSWER_SECONDS_MAX
            self._advance()
        elif kind == EdgeEventKind.ENDED and not self._is_complete:
            self._shared.logger.warning(f"a snapshot broke off after {self._received_bytes} bytes")
            self._abandon()

    def _advance(self) -> None:
        if self._message is None and not self._read_message():
            return
        settings = self._shared.settings
        if not self._is_working:
            self._submit_next()
        elif not self._is_paused and self._pieces_bytes >= 2 * settings.snapshot_piece_bytes:
            self._is_paused = True
            self._shared.output.pause(self._call)

    def _read_message(self) -> bool:
        """Read the message; return False if it is incomplete or refused."""
        if self._message_bytes is None:
            if self._pieces_bytes < 8:
                return self._refuse_incomplete()
            data = b"".join(self._pieces)
            self._pieces = [data]
            (self._message_bytes,) = _unpack_word(data)
            assert self._message_bytes is not None
            limit = self._shared.settings.body_bytes_max
            if self._message_bytes > limit:
                problem = f"{self._message_bytes} bytes; at most {limit} are taken"
                return self._refuse_undecodable(problem)
        end = 8 + self._message_bytes
        if self._pieces_bytes < end:
            return self._refuse_incomplete()
        data = b"".join(self._pieces)
        try:
            message = decode_message(data[8:end])
        except ValueError as error:
            return self._refuse_undecodable(str(error))
        self._pieces = [data[end:]]
        self._pieces_bytes -= end
        return self._take_message(message)

    def _refuse_incomplete(self) -> bool:
        return self._refuse_undecodable("unexpected EOF") if self._is_complete else False

    def _refuse_undecodable(self, problem: str) -> bool:
        self._refuse(Refusal(400, f"failed to decode raft message ({problem})"))
        return False

    def _take_message(self, message: Message) -> bool:
        shared = self._shared
        if message.type != MessageType.SNAP or message.snapshot is None:
            self._refuse(WRONG_TYPE)
            return False
        if message.to != shared.identity.local_id or shared.node.is_removed(message.sender):
            self._refuse(UNACCEPTABLE)
            return False
        self._message = message
        self._counters_of(message.sender).snapshots_receiving += 1
        self._shared.logger.info(
            f"receives the snapshot at index {message.snapshot.index} from {message.sender:x}"
        )
        return True

    def _submit_next(self) -> None:
        """Submit the next job, if there is one."""
        settings = self._shared.settings
        if self.is_over:
            if self._database is not None:
                database, self._database = self._database, None
                self._submit(
                    AbandonDatabase(database), self._finish_removal, self._warn_of_leftover
                )
        elif self._database is None:
            assert self._message is not None and self._message.snapshot is not None
            assert settings.snap_directory is not None, "snapshots bring no database here"
            index = self._message.snapshot.index
            work = BeginDatabase(settings.snap_directory, index, self._is_copy)
            self._submit(work, self._take_database, self._fail_database)
        elif self._pieces_bytes >= settings.snapshot_piece_bytes or (
            self._is_complete and self._pieces_bytes
        ):
            pieces = WritePieces(self._database, self._pieces)
            self._pieces, self._pieces_bytes = [], 0
            if self._is_paused:
                self._is_paused = False
                self._shared.output.resume(self._call)
            self._submit(pieces, self._continue_work, self._fail_database)
        elif self._is_complete:
            assert self._message is not None, "the message comes before the database"
            snapshot = self._message.snapshot if settings.compares_databases else None
            finish = FinishDatabase(self._database, snapshot, self._is_copy, settings.native_rows)
            self._submit(finish, self._finish_database, self._fail_database)

    def _submit(self, work: Any, done: Any, failed: Any) -> None:
        self._is_working = True
        self._shared.node.submit(work, done, failed)

    def _take_database(self, database: ReceivedDatabase) -> None:
        self._is_working = False
        self._database = database
        self._submit_next()

    def _continue_work(self, _result: None) -> None:
        self._is_working = False
        self._submit_next()

    def _finish_database(self, length: int) -> None:
        self._is_working = False
        self._database = None
        message = self._message
        assert message is not None and message.snapshot is not None
        self._shared.logger.info(
            f"received the snapshot at index {message.snapshot.index} from {message.sender:x}: "
            f"{length} bytes"
        )
        if self.is_over:
            return  # the file is complete, but the sender already got an error
        counters = self._counters_of(message.sender)
        counters.snapshots_received += 1
        counters.snapshots_receiving -= 1
        seconds = self._shared.settings.unix_seconds() - self._began
        counters.snapshot_receive_seconds.observe(seconds)
        counters.received_bytes += self._received_bytes
        self._end()
        self._shared.node.receive(message)
        self._shared.output.respond(self._call, 204, self._answer_headers, b"")

    def _fail_database(self, error: Exception) -> None:
        self._is_working = False
        self._shared.logger.error(f"cannot save a snapshot: {error}")
        if not self.is_over:
            self._refuse(Refusal(500, f"failed to save KV snapshot ({error})"))
        else:
            self._submit_next()

    def _finish_removal(self, _result: None) -> None:
        self._is_working = False

    def _warn_of_leftover(self, error: Exception) -> None:
        self._is_working = False
        self._shared.logger.warning(
            f"cannot remove what came of a snapshot: {error}; the next start removes it"
        )

    def _refuse(self, refusal: Refusal) -> None:
        self._shared.warn_once(f"refused a snapshot: {refusal.text}")
        self._abandon()
        self._shared.refuse(self._call, refusal, self._answer_headers)

    def _abandon(self) -> None:
        if self._message is not None:
            counters = self._counters_of(self._message.sender)
            counters.snapshots_not_received += 1
            counters.snapshots_receiving -= 1
        self._end()
        if not self._is_working:
            self._submit_next()

    def _end(self) -> None:
        self.is_over = True
        self.wake_at = _NEVER
        self._pieces, self._pieces_bytes = [], 0
        self._shared.calls.pop(self._call, None)

    def pass_time(self, now: float) -> float:
        """Log the progress; abandon a stalled snapshot; return when to call this next."""
        if self.is_over:
            return _NEVER
        if self._is_working:
            self.wake_at = max(self.wake_at, now + SNAPSHOT_STALL_SECONDS_MAX)
        if now >= self.wake_at:
            self._refuse(Refusal(408, "nothing of the snapshot came for too long"))
            return _NEVER
        if now >= self._log_at:
            self._log_at = now + PROGRESS_SECONDS
            self._shared.logger.info(
                f"is receiving a snapshot: {self._received_bytes} bytes in "
                f"{now - self._started_at:.0f} s"
            )
        return min(self._log_at, self.wake_at)

    def stop(self) -> None:
        """Refuse the rest of the snapshot."""
        if not self.is_over:
            self._refuse(BUSY)
