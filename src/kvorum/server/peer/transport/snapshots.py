"""Send a snapshot and its database in one request body: first the message, then the file.

Jobs that the host runs read the file piece by piece. A job reads one piece ahead while the dialer
sends the piece before, so that at most two or three are in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Protocol

from kvorum.member.log_lines import size_text
from kvorum.network.dialer.interface import FAILURES, WRITABLE_BYTES, DialEventKind
from kvorum.raft.logger import log_fields
from kvorum.raft.messages import Message
from kvorum.raft.wire import encode_message
from kvorum.server.peer.transport.addresses import Addresses
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.headers import COPY, NOT_FOUND, OCTETS, SNAPSHOT
from kvorum.server.peer.transport.settings import (
    PROGRESS_SECONDS,
    SNAPSHOT_ANSWER_SECONDS_MAX,
    SNAPSHOT_STALL_SECONDS_MAX,
)
from kvorum.server.peer.transport.shared import TransportState
from kvorum.storage.files import Files, Opening

_pack_word: Final = Struct(">Q").pack
_ANSWER_BYTES_MAX: Final = 1024
_NEVER: Final = float("inf")


class SnapshotTransfer(Protocol):
    """A snapshot for a peer: the message, and the file that goes with it."""

    @property
    def message(self) -> Message:
        """The raft message."""

    @property
    def path(self) -> str:
        """The path of the file, which must not change before `Host.report_snapshot`."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""

    @property
    def is_copy(self) -> bool:
        """Whether the file is a copy of the sender's database, and not in etcd's format."""


@dataclass(slots=True, frozen=True)
class ReadPiece:
    """A job: read a piece of a file."""

    path: str
    offset: int
    length: int

    def run(self, files: Files) -> bytes:
        """Return the piece, which is shorter only at the end of the file."""
        descriptor = files.open(self.path, Opening.READ)
        try:
            return files.pread(descriptor, self.offset, self.length)
        finally:
            files.close(descriptor)


class SnapshotSending:
    """The transfer of one snapshot to a peer."""

    __slots__ = (
        "_addresses",
        "_ahead",
        "_answer",
        "_began",
        "_bytes",
        "_copy_refused",
        "_counters",
        "_end",
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
        shared: TransportState,
        counters: PeerCounters,
        addresses: Addresses,
        transfer: SnapshotTransfer,
        now: float,
        copy_refused: Callable[[], None],
    ) -> None:
        """Start the transfer; call `copy_refused` if the peer does not support copies."""
        self._shared = shared
        self._counters = counters
        self._addresses = addresses
        self._transfer = transfer
        self._copy_refused = copy_refused
        self._url = addresses.current
        self._offset = 0
        # The next piece, read ahead.
        self._ahead: bytes | None = None
        self._is_reading = False
        self._end = False  # of the file: the body is complete
        self._status = 0
        self._answer = b""
        # How many bytes of the file had left the dialer at the last check, and the time of the
        # last progress.
        self._taken_bytes = 0
        self._moved_at = self._started_at = now
        self._log_at = now + PROGRESS_SECONDS
        self.is_over = False
        message = encode_message(transfer.message)
        headers = [*shared.headers, ("Content-Type", OCTETS)]
        target = COPY if transfer.is_copy else SNAPSHOT
        self._number = shared.request(self, self._url, "POST", target, headers, None)
        shared.dialer.send(self._number, _pack_word(len(message)) + message)
        counters.sent_bytes += 8 + len(message)
        counters.snapshots_sending += 1
        self._began = shared.settings.unix_seconds()
        self._bytes = 8 + len(message) + transfer.size
        self._log_line("sending database snapshot")
        self._send_next()

    def _describe(self) -> str:
        message = self._transfer.message
        index = message.snapshot.index if message.snapshot is not None else 0
        return f"the snapshot at index {index} to {message.to:x}"

    def _log_line(self, message: str) -> None:
        sent = self._transfer.message
        log_fields(
            self._shared.logger,
            "info",
            message,
            snapshot_index=sent.snapshot.index if sent.snapshot is not None else 0,
            remote_peer_id=f"{sent.to:x}",
            bytes=self._bytes,
            size=size_text(self._bytes),
        )

    def _send_next(self) -> None:
        """Send the next piece if the dialer has room, and read the one after it."""
        if self._end or self.is_over:
            return
        dialer, length = self._shared.dialer, self._shared.settings.snapshot_piece_bytes
        piece = self._ahead
        if piece is not None and dialer.pending_bytes(self._number) < WRITABLE_BYTES:
            self._ahead = None
            self._offset += len(piece)
            self._counters.sent_bytes += len(piece)
            dialer.send(self._number, piece)
            if len(piece) < length:
                self._end = True
                dialer.finish(self._number)
                return
        if self._ahead is None and not self._is_reading:
            self._is_reading = True
            work = ReadPiece(self._transfer.path, self._offset, length)
            self._shared.node.submit(work, self._was_read, self._not_read)

    def _was_read(self, piece: bytes) -> None:
        self._is_reading = False
        self._ahead = piece
        self._send_next()

    def _not_read(self, error: Exception) -> None:
        self._is_reading = False
        if not self.is_over:
            self._shared.cancel(self._number)
            self._finish(f"cannot read {self._transfer.path}: {error}")

    def handle_answer(self, kind: int, detail: Any, _now: float) -> None:
        """Take an event of the request."""
        if kind == DialEventKind.WRITABLE:
            self._send_next()
        elif kind == DialEventKind.RESPONDED:
            self._status = detail[0]
        elif kind == DialEventKind.PIECE:
            self._answer += detail[: _ANSWER_BYTES_MAX - len(self._answer)]
        elif kind == DialEventKind.COMPLETED:
            del self._shared.requests[self._number]
            text = self._answer.decode(errors="replace").strip()
            if self._transfer.is_copy and self._status == NOT_FOUND.status:
                self._copy_refused()
            self._finish("" if self._status == 204 else f"the peer answered {self._status} {text}")
        elif kind in FAILURES:
            del self._shared.requests[self._number]
            self._finish(str(detail))

    def _finish(self, problem: str) -> None:
        self.is_over = True
        self._counters.snapshots_sending -= 1
        peer = self._transfer.message.to
        logger = self._shared.logger
        if problem:
            self._counters.send_failures += 1
            self._counters.snapshots_not_sent += 1
            self._addresses.note_failure(self._url)
            logger.warning(
                f"could not send {self._describe()}: {problem}; sent {self._offset} bytes"
            )
            self._shared.node.report_unreachable(peer)
        else:
            self._counters.snapshots_sent += 1
            seconds = self._shared.settings.unix_seconds() - self._began
            self._counters.snapshot_send_seconds.observe(seconds)
            self._log_line("sent database snapshot")
        self._shared.node.report_snapshot(self._transfer, failed=bool(problem))

    def pass_time(self, now: float) -> float:
        """Log the progress; cancel a stalled transfer; return when to call this next."""
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
        """Cancel the transfer."""
        if not self.is_over:
            self._shared.cancel(self._number)
            self._finish(problem)
