"""The streams between two nodes: `StreamWriter` sends to a peer, `StreamReader` reads from it.

There are two streams in each direction, for appends and for all other messages. The receiver
requests a stream: a writer waits for its peer's request, and the newest request replaces the older
one. A reader retries, at most every `DIAL_SECONDS_MIN`, until it has a stream. Link heartbeats show
that a stream is alive.
"""

from typing import Any, Final

from kvorum.api.errors import Code, Status
from kvorum.network.dialer.interface import FAILURES, DialEventKind
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.raft.messages import Message
from kvorum.server.peer.transport.addresses import Addresses, problem_at
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.frames import (
    APPEND_HEARTBEAT,
    MESSAGE_HEARTBEAT,
    AppendReader,
    AppendWriter,
    EntriesEncoder,
    MessageReader,
    encode_message_frame,
)
from kvorum.server.peer.transport.headers import (
    APPEND_STREAM,
    MESSAGE_STREAM,
    header,
    is_compatible,
    mismatch_hint,
    parse_id,
    parse_level,
)
from kvorum.server.peer.transport.settings import (
    DIAL_SECONDS_MIN,
    DOUBLE_SECONDS,
    DOUBLE_TIMES,
    LINK_HEARTBEAT_SECONDS,
)
from kvorum.server.peer.transport.shared import PROBLEMS_MAX, TransportState

_OK: Final = Status(Code.OK, "")
_REFUSAL_BYTES_MAX: Final = 1024
_NEVER: Final = float("inf")

# Kinds of events as plain numbers, for speed: every piece of a stream is compared with them.
_ENDED: Final = int(EdgeEventKind.ENDED)
_RESPONDED: Final = int(DialEventKind.RESPONDED)
_PIECE: Final = int(DialEventKind.PIECE)


class StreamWriter:
    """Writes the append or the message stream that a peer reads, while that is open."""

    __slots__ = (
        "_append_writer",
        "_counters",
        "_entries",
        "_frames",
        "_is_append",
        "_moved_at",
        "_name",
        "_peer",
        "_pending_bytes",
        "_sent_bytes",
        "_shared",
        "_source",
        "_taken_bytes",
        "_takeovers",
        "call",
        "heartbeat_at",
    )

    def __init__(
        self,
        shared: TransportState,
        peer: int,
        counters: PeerCounters,
        entries: EntriesEncoder,
        *,
        is_append: bool,
    ) -> None:
        self._shared = shared
        self._peer = peer
        self._counters = counters
        self._entries = entries
        self._is_append = is_append
        self._name = "append stream" if is_append else "message stream"
        self._append_writer = AppendWriter(entries)
        self._frames: list[bytes] = []
        # The bytes that the edge had yet to send when the batch began, plus those of the batch.
        self._pending_bytes = 0
        # The bytes given to the edge in total, how many of them had left the edge at the last
        # check, and the time of the last progress.
        self._sent_bytes = 0
        self._taken_bytes = 0
        self._moved_at = 0.0
        # The address of the reader, and the recent times at which a new reader replaced a live one.
        self._source = ""
        self._takeovers: list[float] = []
        self.call: int | None = None
        self.heartbeat_at = _NEVER

    def attach(self, call: int, source: str, now: float) -> None:
        """Write to this call from now on, and end the older one."""
        if self.call is not None:
            self._takeovers = [each for each in self._takeovers if now - each < DOUBLE_SECONDS]
            self._takeovers.append(now)
            if len(self._takeovers) >= DOUBLE_TIMES:
                # A member that lost its connection reconnects after a timeout, so not this often.
                self._shared.warn_once(
                    f"two processes speak as member {self._peer:x}: they take its {self._name} "
                    f"from each other, lately {source} from {self._source}. Stop the one that does "
                    "not belong there; it may run on a copy of the other's data directory",
                    f"two processes speak as {self._peer:x}",
                )
            else:
                self._shared.logger.info(f"{self._peer:x} reopened its {self._name}")
            self.close()
        else:
            self._shared.logger.info(f"{self._peer:x} reads the {self._name}")
        self.call = call
        self._source = source
        self._shared.calls[call] = self
        self._append_writer = AppendWriter(self._entries)
        self._sent_bytes = self._taken_bytes = 0
        self._moved_at = now
        self.heartbeat_at = now + LINK_HEARTBEAT_SECONDS

    def handle(self, kind: int, _detail: Any, _now: float) -> None:
        """Take an event of the call."""
        if kind == _ENDED:
            self._report_loss("it was closed")

    def _report_loss(self, reason: str) -> None:
        self._shared.logger.warning(f"lost the {self._name} to {self._peer:x}: {reason}")
        self._forget()
        self._counters.send_failures += 1
        self._shared.node.report_unreachable(self._peer)

    def _forget(self) -> None:
        assert self.call is not None, "no stream is attached"
        self._shared.calls.pop(self.call, None)
        self.call = None
        self._frames = []
        self.heartbeat_at = _NEVER

    def close(self) -> None:
        """End the stream, if there is one."""
        if self.call is not None:
            call = self.call
            self._forget()
            self._shared.output.finish(call, _OK)

    def write(self, message: Message) -> bool:
        """Queue a message for `flush`; return False if the peer leaves too many bytes unread."""
        frames, call, shared = self._frames, self.call, self._shared
        assert call is not None, "no stream is attached"
        if not frames:
            self._pending_bytes = shared.output.pending_bytes(call)
        if self._pending_bytes >= shared.settings.stream_pending_bytes_max:
            return False
        if self._is_append:
            frame = self._append_writer.encode(message)
        else:
            frame = encode_message_frame(message)
        frames.append(frame)
        self._pending_bytes += len(frame)
        return True

    def flush(self, batch: list[tuple[int, bytes]]) -> None:
        """Add the queued messages to a batch for the edge."""
        call = self.call
        if call is None or not self._frames:
            return
        data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self._frames = []
        self._sent_bytes += len(data)
        self._counters.sent_bytes += len(data)
        batch.append((call, data))

    def pass_time(self, now: float, batch: list[tuple[int, bytes]]) -> float:
        """Send a due heartbeat, or end a stalled stream; return when to call this next."""
        call = self.call
        if call is None or now < self.heartbeat_at:
            return self.heartbeat_at
        pending = self._shared.output.pending_bytes(call)
        taken = self._sent_bytes - pending
        if not pending or taken > self._taken_bytes:
            self._moved_at = now
        self._taken_bytes = taken
        seconds = self._shared.settings.write_seconds_max
        if now - self._moved_at > seconds:
            self._report_loss(f"{pending} bytes were not read for {seconds:.0f} s")
            self._shared.output.finish(call, Status(Code.UNAVAILABLE, "the reader is too slow"))
            return _NEVER
        self._frames.append(APPEND_HEARTBEAT if self._is_append else MESSAGE_HEARTBEAT)
        self.flush(batch)
        self.heartbeat_at = now + LINK_HEARTBEAT_SECONDS
        return self.heartbeat_at


class HostProbe:
    """A probe of a peer's host. Any outcome, even a refusal, shows that the host is up."""

    __slots__ = ("_number", "_peer", "_shared")

    def __init__(self, shared: TransportState, peer: int, request: int) -> None:
        self._shared = shared
        self._peer = peer
        self._number = shared.dialer.probe_host(request)
        shared.requests[self._number] = self

    def handle_answer(self, _kind: int, _detail: Any, _now: float) -> None:
        """Report the outcome to the host."""
        del self._shared.requests[self._number]
        self._shared.node.note_present(self._peer)


class StreamReader:
    """Reads the append or the message stream of a peer, and reopens it whenever it ends."""

    __slots__ = (
        "_addresses",
        "_answer",
        "_counters",
        "_decoder",
        "_dialed_at",
        "_is_append",
        "_name",
        "_number",
        "_peer",
        "_problems",
        "_refusals_left",
        "_settled_at",
        "_shared",
        "_status",
        "_target",
        "_url",
        "foreign_cluster",
        "is_open",
        "wake_at",
    )

    def __init__(
        self,
        shared: TransportState,
        peer: int,
        counters: PeerCounters,
        addresses: Addresses,
        *,
        is_append: bool,
    ) -> None:
        self._shared = shared
        self._peer = peer
        self._counters = counters
        self._addresses = addresses
        self._is_append = is_append
        self._name = "append stream" if is_append else "message stream"
        path = APPEND_STREAM if is_append else MESSAGE_STREAM
        self._target = f"{path}/{shared.identity.local_id:x}"
        self._number: int | None = None
        self._url = ""
        self._dialed_at = 0.0
        self._decoder: MessageReader | AppendReader = MessageReader()
        # The problems since the last stable stream; each is logged once.
        self._problems: set[str] = set()
        self._settled_at = _NEVER
        # How many more connections the peer's addresses must refuse until the peer counts as
        # absent: one for each address since its last answer; 0 once it was reported.
        self._refusals_left = 0
        self._status = 0
        self._answer = b""
        self.is_open = False
        self.foreign_cluster = 0
        """The peer's cluster id in its last answer, if it differs from ours; else 0."""
        # When to dial, or to cancel a silent stream.
        self.wake_at = 0.0

    def pass_time(self, now: float) -> float:
        """Dial if that is due, or cancel a silent stream; return when to call this next."""
        if now >= self.wake_at:
            if self._number is None:
                self._dial(now)
            else:
                self._shared.cancel(self._number)
                self._failed("it was silent for too long", now)
        return self.wake_at

    def probe_host(self) -> bool:
        """Probe the host of the open stream; return False if no stream is open."""
        if not self.is_open or self._number is None:
            return False
        HostProbe(self._shared, self._peer, self._number)
        return True

    def _dial(self, now: float) -> None:
        shared = self._shared
        frame_bytes_max = shared.settings.frame_bytes_max
        local_id = shared.identity.local_id
        self._decoder = (
            AppendReader(self._peer, local_id, frame_bytes_max)
            if self._is_append
            else MessageReader(frame_bytes_max)
        )
        self._status, self._answer = 0, b""
        self._dialed_at = now
        self.wake_at = now + shared.settings.answer_seconds_max
        self._url = self._addresses.current
        headers = [*shared.headers, ("X-Raft-To", f"{self._peer:x}")]
        self._number = shared.request(self, self._url, "GET", self._target, headers, b"")

    def handle_answer(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the request."""
        if kind == _PIECE and self.is_open:
            self.wake_at = now + self._shared.settings.read_seconds_max
            if now >= self._settled_at:
                self._settle()
            self._counters.received_bytes += len(detail)
            try:
                messages = self._decoder.feed(detail)
            except ValueError as error:
                self._give_up(f"it cannot be read: {error}", now)
                return
            receive = self._shared.receive
            for message in messages:
                receive(message)
        elif kind == _RESPONDED:
            self._responded(detail, now)
        elif kind == _PIECE:
            self._answer += detail[: _REFUSAL_BYTES_MAX - len(self._answer)]
        elif kind == DialEventKind.COMPLETED:
            self._completed(now)
        elif kind in FAILURES:
            self.foreign_cluster = 0
            self._forget()
            self._failed(str(detail), now)
            if kind == DialEventKind.REFUSED and self._refusals_left:
                self._refusals_left -= 1
                if not self._refusals_left:
                    self._shared.node.note_absent(self._peer)

    def _responded(self, detail: Any, now: float) -> None:
        self._status, headers = detail
        identity = self._shared.identity
        cluster = parse_id(header(headers, "x-etcd-cluster-id")) or identity.cluster_id
        self.foreign_cluster = 0 if cluster == identity.cluster_id else cluster
        if self._status == 410:
            self._give_up("the peer reports that this node was removed", now)
            self._shared.report_removal()
        elif self._status == 200:
            level = parse_level(header(headers, "x-server-version"))
            if not is_compatible(self._shared.identity, level, (0, 0)):
                self._give_up("the peer's version has no such stream", now)
                return
            self.is_open = True
            self._refusals_left = len(self._addresses.all)
            self.wake_at = self._settled_at = now + self._shared.settings.read_seconds_max
            if not self._problems:
                self._shared.logger.info(f"reads the {self._name} of {self._peer:x} at {self._url}")

    def _settle(self) -> None:
        """Mark the stream as stable, and log the recovery if there were problems."""
        self._settled_at = _NEVER
        if self._problems:
            self._problems = set()
            self._shared.logger.info(
                f"reads the {self._name} of {self._peer:x} at {self._url} again"
            )

    def _completed(self, now: float) -> None:
        self._forget()
        if self.is_open:
            self._failed("the peer ended it", now)
        else:
            text = self._answer.decode(errors="replace").strip()
            if self.foreign_cluster:
                own = self._shared.identity.cluster_id
                text += f" ({mismatch_hint(own, f'{self.foreign_cluster:x}')})"
            self._failed(f"the peer answered {self._status} {text}", now)

    def _give_up(self, problem: str, now: float) -> None:
        assert self._number is not None, "there is nothing to give up"
        self._shared.cancel(self._number)
        self._failed(problem, now)

    def _forget(self) -> None:
        assert self._number is not None, "an event of no request"
        del self._shared.requests[self._number]

    def _failed(self, problem: str, now: float) -> None:
        self._number = None
        if self.is_open:
            self._counters.receive_failures += 1
        self.is_open = False
        self._addresses.note_failure(self._url)
        self.wake_at = max(now, self._dialed_at + DIAL_SECONDS_MIN)
        self._settled_at = _NEVER
        failed = problem_at(self._url, problem)
        line = f"does not read the {self._name} of {self._peer:x}: {failed}; trying on"
        if line not in self._problems and len(self._problems) < PROBLEMS_MAX:
            self._problems.add(line)
            self._shared.logger.warning(line)

    def stop(self) -> None:
        """Cancel the stream, and open no other."""
        if self._number is not None:
            self._shared.cancel(self._number)
            self._number = None
        self.is_open = False
        self.wake_at = _NEVER
