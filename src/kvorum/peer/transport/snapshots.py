"""Snapshots with their databases, both ways: a message, and then a file to the end of the body.

Files are read and written piece by piece, by jobs of the node's that follow each other, so that
neither side holds more than a few pieces: the sender reads on when the network took the last
piece, the receiver holds the request's body back while the disk is slower. A received file gets
its name when it is durable, and only then does the node learn of the snapshot.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Protocol

from kvorum.edge.interface import EventKind
from kvorum.files import Files, Opening
from kvorum.peer.interface import WRITABLE_BYTES, DialEventKind
from kvorum.peer.transport.addresses import Addresses
from kvorum.peer.transport.figures import Figures
from kvorum.peer.transport.headers import (
    BUSY,
    OCTETS,
    SNAPSHOT,
    UNACCEPTABLE,
    WRONG_TYPE,
    Refusal,
)
from kvorum.peer.transport.settings import (
    PROGRESS_SECONDS,
    SNAPSHOT_ANSWER_SECONDS_MAX,
    SNAPSHOT_STALL_SECONDS_MAX,
)
from kvorum.peer.transport.shared import Shared
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import decode_message, encode_message
from kvorum.snap import ReceivedDatabase

_WORD: Final = Struct(">Q")
_ANSWER_BYTES_MAX: Final = 1024
_NEVER: Final = float("inf")


class SnapshotTransfer(Protocol):
    """A snapshot for a peer: the message, and the file that goes with it."""

    @property
    def message(self) -> Message:
        """The message."""

    @property
    def path(self) -> str:
        """The file; nobody changes it until `Node.snapshot_sent` was told."""


# Jobs.


@dataclass(slots=True, frozen=True)
class ReadPiece:
    """A job: read a piece of a file."""

    path: str
    offset: int
    length: int

    def run(self, files: Files) -> bytes:
        """Return the piece; shorter only where the file ends."""
        descriptor = files.open(self.path, Opening.READ)
        try:
            return files.pread(descriptor, self.offset, self.length)
        finally:
            files.close(descriptor)


@dataclass(slots=True, frozen=True)
class BeginDatabase:
    """A job: make the file that a database is received into."""

    directory: str
    index: int

    def run(self, files: Files) -> ReceivedDatabase:
        """Return it, empty."""
        return ReceivedDatabase(files, self.directory, self.index)


@dataclass(slots=True, frozen=True)
class WritePiece:
    """A job: add a piece to a database."""

    database: ReceivedDatabase
    data: bytes

    def run(self, files: Files) -> None:
        """Write it."""
        del files
        self.database.write(self.data)


@dataclass(slots=True, frozen=True)
class FinishDatabase:
    """A job: make a database durable under its name."""

    database: ReceivedDatabase

    def run(self, files: Files) -> int:
        """Return its length."""
        del files
        return self.database.finish()


@dataclass(slots=True, frozen=True)
class AbandonDatabase:
    """A job: remove what came of a database."""

    database: ReceivedDatabase

    def run(self, files: Files) -> None:
        """Remove it."""
        del files
        self.database.abandon()


class SnapshotSending:
    """One snapshot on its way to a peer."""

    __slots__ = (
        "_addresses",
        "_answer",
        "_end",
        "_figures",
        "_is_reading",
        "_log_at",
        "_moved_at",
        "_number",
        "_offset",
        "_shared",
        "_started_at",
        "_status",
        "_taken_bytes",
        "_transfer",
        "_url",
        "is_over",
    )

    def __init__(
        self,
        shared: Shared,
        figures: Figures,
        addresses: Addresses,
        transfer: SnapshotTransfer,
        now: float,
    ) -> None:
        self._shared = shared
        self._figures = figures
        self._addresses = addresses
        self._transfer = transfer
        self._url = addresses.current
        self._offset = 0
        self._is_reading = False
        self._end = False  # of the file, so that the body is complete
        self._status = 0
        self._answer = b""
        # What the network took of the file when it was last looked at, and when that changed.
        self._taken_bytes = 0
        self._moved_at = self._started_at = now
        self._log_at = now + PROGRESS_SECONDS
        self.is_over = False
        message = encode_message(transfer.message)
        headers = [*shared.headers, ("Content-Type", OCTETS)]
        self._number = shared.request(self, self._url, "POST", SNAPSHOT, headers, None)
        shared.dialer.send(self._number, _WORD.pack(len(message)) + message)
        figures.sent_bytes += 8 + len(message)
        shared.logger.info(f"sends {self._describe()} to {self._url}")
        self._read()

    def _describe(self) -> str:
        message = self._transfer.message
        index = message.snapshot.index if message.snapshot is not None else 0
        return f"the snapshot at index {index} to {message.to:x}"

    def _read(self) -> None:
        """Read on, if there is room for another piece."""
        if self._is_reading or self._end or self.is_over:
            return
        if self._shared.dialer.pending_bytes(self._number) >= WRITABLE_BYTES:
            return
        self._is_reading = True
        length = self._shared.settings.snapshot_piece_bytes
        work = ReadPiece(self._transfer.path, self._offset, length)
        self._shared.node.submit(work, self._was_read, self._not_read)

    def _was_read(self, piece: bytes) -> None:
        self._is_reading = False
        if self.is_over:
            return
        dialer = self._shared.dialer
        if piece:
            dialer.send(self._number, piece)
            self._offset += len(piece)
            self._figures.sent_bytes += len(piece)
        if len(piece) < self._shared.settings.snapshot_piece_bytes:
            self._end = True
            dialer.finish(self._number)
        else:
            self._read()

    def _not_read(self, error: Exception) -> None:
        self._is_reading = False
        if not self.is_over:
            self._shared.cancel(self._number)
            self._finish(f"cannot read {self._transfer.path}: {error}")

    def happened(self, kind: int, detail: Any, _now: float) -> None:
        """Take an event of the request."""
        if kind == DialEventKind.WRITABLE:
            self._read()
        elif kind == DialEventKind.RESPONDED:
            self._status = detail[0]
        elif kind == DialEventKind.PIECE:
            self._answer += detail[: _ANSWER_BYTES_MAX - len(self._answer)]
        elif kind == DialEventKind.COMPLETED:
            del self._shared.requests[self._number]
            text = self._answer.decode(errors="replace").strip()
            self._finish("" if self._status == 204 else f"the peer answered {self._status} {text}")
        elif kind == DialEventKind.FAILED:
            del self._shared.requests[self._number]
            self._finish(str(detail))

    def _finish(self, problem: str) -> None:
        self.is_over = True
        peer = self._transfer.message.to
        logger = self._shared.logger
        if problem:
            self._figures.send_failures += 1
            self._addresses.failed(self._url)
            logger.warning(
                f"could not send {self._describe()}: {problem}; sent {self._offset} bytes"
            )
            self._shared.node.unreachable(peer)
        else:
            logger.info(f"sent {self._describe()}: {self._offset} bytes")
        self._shared.node.snapshot_sent(self._transfer, failed=bool(problem))

    def pass_time(self, now: float) -> float:
        """Tell of progress; give up what does not move; return when to be called next."""
        if self.is_over:
            return _NEVER
        pending = self._shared.dialer.pending_bytes(self._number)
        taken = self._offset - pending
        if taken != self._taken_bytes or self._is_reading:
            self._taken_bytes = taken
            self._moved_at = now
        seconds = SNAPSHOT_STALL_SECONDS_MAX
        if self._end and not pending:
            seconds = SNAPSHOT_ANSWER_SECONDS_MAX
        if now - self._moved_at >= seconds:
            self.stop(f"nothing moved for {seconds:.0f} s")
            return _NEVER
        if now >= self._log_at:
            self._log_at = now + PROGRESS_SECONDS
            self._shared.logger.info(
                f"is sending {self._describe()}: {max(taken, 0)} bytes in "
                f"{now - self._started_at:.0f} s"
            )
        return self._log_at

    def stop(self, problem: str) -> None:
        """Give the snapshot up."""
        if not self.is_over:
            self._shared.cancel(self._number)
            self._finish(problem)


class SnapshotArrival:
    """A snapshot that is being received."""

    __slots__ = (
        "_answer_headers",
        "_call",
        "_database",
        "_is_complete",
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
        self, shared: Shared, call: int, answer_headers: list[tuple[str, str]], now: float
    ) -> None:
        self._shared = shared
        self._call = call
        self._answer_headers = answer_headers
        self._message: Message | None = None
        self._message_bytes: int | None = None
        # What came and was not given to a job yet.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._received_bytes = 0
        self._database: ReceivedDatabase | None = None
        self._is_complete = False
        self._is_paused = False
        self._is_working = False
        self._started_at = now
        self._log_at = now + PROGRESS_SECONDS
        self.is_over = False
        self.wake_at = now + SNAPSHOT_STALL_SECONDS_MAX

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is left: it is over, and no job works on its file."""
        return self.is_over and not self._is_working and self._database is None

    def handle(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the call."""
        if kind == EventKind.MESSAGE:
            self.wake_at = now + SNAPSHOT_STALL_SECONDS_MAX
            self._pieces.append(detail)
            self._pieces_bytes += len(detail)
            self._received_bytes += len(detail)
            self._go_on()
        elif kind == EventKind.HALF_CLOSED:
            self._is_complete = True
            self.wake_at = now + SNAPSHOT_ANSWER_SECONDS_MAX
            self._go_on()
        elif kind == EventKind.ENDED and not self._is_complete:
            self._shared.logger.warning(f"a snapshot broke off after {self._received_bytes} bytes")
            self._give_up()

    def _go_on(self) -> None:
        if self._message is None and not self._read_message():
            return
        settings = self._shared.settings
        if not self._is_working:
            self._work()
        elif not self._is_paused and self._pieces_bytes >= 2 * settings.snapshot_piece_bytes:
            self._is_paused = True
            self._shared.output.pause(self._call)

    def _read_message(self) -> bool:
        """Read the message if it is complete; False if it is not, or is refused."""
        if self._message_bytes is None:
            if self._pieces_bytes < 8:
                return self._incomplete()
            data = b"".join(self._pieces)
            self._pieces = [data]
            (self._message_bytes,) = _WORD.unpack_from(data)
            assert self._message_bytes is not None
            limit = self._shared.settings.body_bytes_max
            if self._message_bytes > limit:
                problem = f"{self._message_bytes} bytes; at most {limit} are taken"
                return self._undecodable(problem)
        end = 8 + self._message_bytes
        if self._pieces_bytes < end:
            return self._incomplete()
        data = b"".join(self._pieces)
        try:
            message = decode_message(data[8:end])
        except ValueError as error:
            return self._undecodable(str(error))
        self._pieces = [data[end:]]
        self._pieces_bytes -= end
        return self._take_message(message)

    def _incomplete(self) -> bool:
        return self._undecodable("unexpected EOF") if self._is_complete else False

    def _undecodable(self, problem: str) -> bool:
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
        self._shared.logger.info(
            f"receives the snapshot at index {message.snapshot.index} from {message.sender:x}"
        )
        return True

    def _work(self) -> None:
        """Give the next job out, if there is one."""
        settings = self._shared.settings
        if self.is_over:
            if self._database is not None:
                database, self._database = self._database, None
                self._submit(AbandonDatabase(database), self._abandoned, self._not_abandoned)
        elif self._database is None:
            assert self._message is not None and self._message.snapshot is not None
            assert settings.snap_directory is not None, "snapshots bring no database here"
            work = BeginDatabase(settings.snap_directory, self._message.snapshot.index)
            self._submit(work, self._begun, self._not_saved)
        elif self._pieces_bytes >= settings.snapshot_piece_bytes or (
            self._is_complete and self._pieces_bytes
        ):
            data = b"".join(self._pieces)
            self._pieces, self._pieces_bytes = [], 0
            if self._is_paused:
                self._is_paused = False
                self._shared.output.resume(self._call)
            self._submit(WritePiece(self._database, data), self._written, self._not_saved)
        elif self._is_complete:
            self._submit(FinishDatabase(self._database), self._saved, self._not_saved)

    def _submit(self, work: Any, done: Any, failed: Any) -> None:
        self._is_working = True
        self._shared.node.submit(work, done, failed)

    def _begun(self, database: ReceivedDatabase) -> None:
        self._is_working = False
        self._database = database
        self._work()

    def _written(self, _result: None) -> None:
        self._is_working = False
        self._work()

    def _saved(self, length: int) -> None:
        self._is_working = False
        self._database = None
        message = self._message
        assert message is not None and message.snapshot is not None
        self._shared.logger.info(
            f"received the snapshot at index {message.snapshot.index} from {message.sender:x}: "
            f"{length} bytes"
        )
        if self.is_over:
            return  # the file is whole, but its sender was told otherwise
        self._end()
        self._shared.node.receive(message)
        self._shared.output.respond(self._call, 204, self._answer_headers, b"")

    def _not_saved(self, error: Exception) -> None:
        self._is_working = False
        self._shared.logger.error(f"cannot save a snapshot: {error}")
        if not self.is_over:
            self._refuse(Refusal(500, f"failed to save KV snapshot ({error})"))
        else:
            self._work()

    def _abandoned(self, _result: None) -> None:
        self._is_working = False

    def _not_abandoned(self, error: Exception) -> None:
        self._is_working = False
        self._shared.logger.warning(
            f"cannot remove what came of a snapshot: {error}; the next start removes it"
        )

    def _refuse(self, refusal: Refusal) -> None:
        self._shared.logger.warning(f"refused a snapshot: {refusal.text}")
        self._give_up()
        self._shared.refuse(self._call, refusal, self._answer_headers)

    def _give_up(self) -> None:
        self._end()
        if not self._is_working:
            self._work()

    def _end(self) -> None:
        self.is_over = True
        self.wake_at = _NEVER
        self._pieces, self._pieces_bytes = [], 0
        self._shared.calls.pop(self._call, None)

    def pass_time(self, now: float) -> float:
        """Tell of progress; give up what does not move; return when to be called next."""
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
        """Give the snapshot up."""
        if not self.is_over:
            self._refuse(BUSY)
