"""The calls on one connection, without a socket: gRPC messages and trailers on HTTP/2 streams."""

import re
from typing import Final, NamedTuple, Protocol

from kvorum.client.grpc.http2 import (
    STREAM_WINDOW_BYTES,
    Fields,
    Http2Connection,
    ProtocolError,
    Reset,
    StreamEventKind,
    field_block,
)

MESSAGE_BYTES_MAX: Final = (1 << 31) - 1
"""The longest message that the client accepts."""
_BLOCKS_KEPT: Final = 256
_FIELDS, _BYTES, _ENDED, _REFUSED = (
    StreamEventKind.FIELDS,
    StreamEventKind.BYTES,
    StreamEventKind.ENDED,
    StreamEventKind.REFUSED,
)
_STATUS_CODE: Final = re.compile("[0-9]{1,3}", re.ASCII)
_OK, _CANCELLED, _UNKNOWN, _RESOURCE_EXHAUSTED = 0, 1, 2, 8
_UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 12, 13, 14, 16
_PERMISSION_DENIED = 7

# gRPC's codes for HTTP/2 resets, and for HTTP statuses of answers that are not gRPC's.
_RESETS: Final = {
    Reset.CANCEL: _CANCELLED,
    Reset.ENHANCE_YOUR_CALM: _RESOURCE_EXHAUSTED,
    Reset.INADEQUATE_SECURITY: _PERMISSION_DENIED,
}
_STATUSES: Final = {
    "400": _INTERNAL,
    "401": _UNAUTHENTICATED,
    "403": _PERMISSION_DENIED,
    "404": _UNIMPLEMENTED,
    "429": _UNAVAILABLE,
    "502": _UNAVAILABLE,
    "503": _UNAVAILABLE,
    "504": _UNAVAILABLE,
}

Metadata = tuple[tuple[str, str], ...]


class End(NamedTuple):
    """How a call ended: gRPC's code and text."""

    code: int
    text: str
    is_unprocessed: bool = False
    """Whether the server did not process the call, so that even a write can be sent again."""


class Calls(Protocol):
    """Receives the messages and ends of calls."""

    def take_message(self, call: int, message: bytes) -> None:
        """Take a message from the server."""

    def take_end(self, call: int, end: End) -> None:
        """Take the end of a call."""


_SUCCESSES: Final[dict[Fields, End]] = {
    (("grpc-status", "0"),): End(_OK, ""),
    (("grpc-status", "0"), ("grpc-message", "")): End(_OK, ""),
}
"""The trailers with which servers end successful calls."""


class _Answer:
    """The part of a call's answer that has arrived."""

    __slots__ = ("call", "fields", "missing", "parts")

    def __init__(self, call: int) -> None:
        self.call = call
        self.parts: list[bytes] = []
        """The pieces of an incomplete message."""
        self.missing = 0
        """How many more bytes must arrive before the pieces are parsed again."""
        self.fields: Fields = ()
        """The newest header fields: the trailers, once they have arrived."""


class Wire:
    """The calls on one connection. Bytes to send collect in `connection`."""

    __slots__ = (
        "_agent",
        "_answers",
        "_authority",
        "_blocks",
        "_calls",
        "_is_secure",
        "_message_bytes_max",
        "_streams",
        "_waiting",
        "connection",
    )

    def __init__(
        self,
        calls: Calls,
        authority: str,
        *,
        is_secure: bool,
        agent: str,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        stream_window_bytes: int = STREAM_WINDOW_BYTES,
    ) -> None:
        self.connection: Http2Connection = Http2Connection(stream_window_bytes)
        self._calls = calls
        self._message_bytes_max = message_bytes_max
        self._authority = authority
        self._is_secure = is_secure
        self._agent = agent
        self._blocks: dict[tuple[str, Metadata], bytes] = {}
        self._streams: dict[int, int] = {}
        self._answers: dict[int, _Answer] = {}
        self._waiting: dict[int, tuple[bytes, bytes, bool]] = {}
        """Calls that wait until the server allows another stream."""

    @property
    def calls_open(self) -> int:
        """How many calls have not ended yet."""
        return len(self._streams) + len(self._waiting)

    def start(
        self, call: int, path: str, metadata: Metadata, message: bytes | None, *, ends: bool
    ) -> None:
        """Start a call, with its first message or without one.

        If the server is going away, the call ends at once as unprocessed.
        """
        connection = self.connection
        if connection.is_going_away:
            self._calls.take_end(call, End(_UNAVAILABLE, "the connection is closing", True))
            return
        block = self._blocks.get((path, metadata))
        if block is None:
            block = self._block(path, metadata)
        data = b"" if message is None else frame_message(message)
        if connection.has_room:
            self._open(call, block, data, ends)
        else:
            self._waiting[call] = (block, data, ends)

    def _open(self, call: int, block: bytes, data: bytes, ends: bool) -> None:
        stream = self._streams[call] = self.connection.open(block, data, ends=ends)
        self._answers[stream] = _Answer(call)

    def send(self, call: int, message: bytes) -> None:
        """Send another message on a call."""
        stream = self._streams.get(call)
        if stream is not None:
            self.connection.send(stream, frame_message(message))
        elif call in self._waiting:
            block, data, ends = self._waiting[call]
            if not ends:
                self._waiting[call] = (block, data + frame_message(message), ends)

    def half_close(self, call: int) -> None:
        """End the client's messages on a call."""
        stream = self._streams.get(call)
        if stream is not None:
            self.connection.send(stream, b"", ends=True)
        elif call in self._waiting:
            block, data, _ = self._waiting[call]
            self._waiting[call] = (block, data, True)

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes of a call's messages wait for room at the server."""
        stream = self._streams.get(call)
        if stream is not None:
            return self.connection.waiting_bytes(stream)
        return len(self._waiting[call][1]) if call in self._waiting else 0

    def hold(self, call: int, *, is_held: bool) -> None:
        """Withhold flow-control window updates for a call, or resume them."""
        stream = self._streams.get(call)
        if stream is not None:
            self.connection.hold(stream, is_held=is_held)

    def cancel(self, call: int) -> None:
        """Cancel a call; its end is then not reported."""
        self._waiting.pop(call, None)
        stream = self._streams.pop(call, None)
        if stream is not None:
            del self._answers[stream]
            self.connection.cancel(stream)
            self._open_waiting()

    def receive(self, data: bytes | memoryview) -> None:
        """Take bytes from the server. Raises ProtocolError, after which the connection must end."""
        answers = self._answers
        for kind, stream, detail in self.connection.receive(data):
            answer = answers.get(stream)
            if answer is None:
                # The call was cancelled while these bytes were under way.
                continue
            if kind is _BYTES:
                assert isinstance(detail, bytes)
                self._take_bytes(answer, stream, detail)
            elif kind is _FIELDS:
                assert isinstance(detail, tuple)
                answer.fields = detail
            elif kind is _ENDED:
                end = None if answer.parts else _SUCCESSES.get(answer.fields)
                self._end(answer, stream, end or _end_of(answer))
            elif kind is _REFUSED:
                self._end(answer, stream, End(_UNAVAILABLE, "the server refused the call", True))
            else:
                assert isinstance(detail, int)
                code = _RESETS.get(detail, _INTERNAL)  # type: ignore[call-overload]
                text = f"the server reset the call with HTTP/2's error {detail}"
                self._end(answer, stream, End(code, text))
        if self._waiting and self.connection.is_going_away:
            # These calls would wait for the end of others, which may never come.
            self._refuse_waiting("the connection is closing")

    def lose(self, reason: str, code: int = _UNAVAILABLE, *, is_unprocessed: bool = False) -> None:
        """End all calls, because the connection is lost."""
        calls = list(self._streams)
        self._streams.clear()
        self._answers.clear()
        for call in calls:
            self._calls.take_end(call, End(code, reason, is_unprocessed))
        self._refuse_waiting(reason, code)

    def _refuse_waiting(self, reason: str, code: int = _UNAVAILABLE) -> None:
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            self._calls.take_end(call, End(code, reason, True))

    def _take_bytes(self, answer: _Answer, stream: int, data: bytes) -> None:
        if answer.parts:
            answer.parts.append(data)
            answer.missing -= len(data)
            if answer.missing > 0:
                return
            data = b"".join(answer.parts)
            answer.parts.clear()
        at, missing = 0, 5
        while len(data) - at >= 5:
            size = int.from_bytes(data[at + 1 : at + 5], "big")
            if size > MESSAGE_BYTES_MAX:
                raise ProtocolError(f"a message of {size} bytes; {MESSAGE_BYTES_MAX} are allowed")
            if size > self._message_bytes_max:
                text = "grpc: received message larger than max"
                text = f"{text} ({size} vs. {self._message_bytes_max})"
                self.connection.cancel(stream)
                self._end(answer, stream, End(_RESOURCE_EXHAUSTED, text))
                return
            missing = size + 5
            if len(data) - at < missing:
                break
            message = data[at + 5 : at + 5 + size]
            if data[at]:
                message = _inflate(message)
            at += missing
            missing = 5
            self._calls.take_message(answer.call, message)
            if stream not in self._answers:
                return
        if at < len(data):
            answer.parts.append(data[at:])
            answer.missing = missing - (len(data) - at)

    def _end(self, answer: _Answer, stream: int, end: End) -> None:
        del self._answers[stream]
        del self._streams[answer.call]
        self._open_waiting()
        self._calls.take_end(answer.call, end)

    def _open_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self.connection.has_room:
            call = next(iter(waiting))
            self._open(call, *waiting.pop(call))

    def _block(self, path: str, metadata: Metadata) -> bytes:
        if len(self._blocks) >= _BLOCKS_KEPT:
            self._blocks.clear()
        block = self._blocks[path, metadata] = request_block(
            path, self._authority, metadata, is_secure=self._is_secure, agent=self._agent
        )
        return block


def request_block(
    path: str, authority: str, metadata: Metadata, *, is_secure: bool, agent: str
) -> bytes:
    """Return the header fields of a call as a block."""
    return field_block(
        (
            (":method", "POST"),
            (":path", path),
            (":scheme", "https" if is_secure else "http"),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", agent),
            *metadata,
        )
    )


def frame_message(message: bytes) -> bytes:
    """Return a message with its prefix, uncompressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def _inflate(message: bytes) -> bytes:
    import zlib

    try:
        return zlib.decompress(message, wbits=31)
    except zlib.error as error:
        raise ProtocolError(f"a message cannot be decompressed: {error}") from error


def _end_of(answer: _Answer) -> End:
    fields = dict(answer.fields)
    code = fields.get("grpc-status")
    if code is None:
        status = fields.get(":status", "")
        if status in ("", "200"):
            return End(_UNKNOWN, "the server ended the call without a status")
        text = f"the server answered with HTTP status {status}: is this a gRPC port?"
        return End(_STATUSES.get(status, _UNKNOWN), text)
    if answer.parts and code == "0":
        return End(_INTERNAL, "the server ended the call in the middle of a message")
    return status_of(fields)


def status_of(trailers: dict[str, str]) -> End:
    """Return the status that a server gave a call."""
    code, text = trailers.get("grpc-status", ""), trailers.get("grpc-message", "")
    if "%" in text:
        from urllib.parse import unquote_to_bytes

        text = unquote_to_bytes(text).decode(errors="replace")
    return End(int(code) if _STATUS_CODE.fullmatch(code) else _UNKNOWN, text)
