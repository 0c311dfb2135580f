"""Clients that send bytes as they are: HTTP/2 frame by frame, HTTP/1.1 line by line.

`Wire` only answers SETTINGS and PING and gives credit for what it read, so that a test can break
every other rule of HTTP/2.
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar
from urllib.parse import unquote

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.waiting import WAIT_SECONDS_MAX, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SECONDS = WAIT_SECONDS_MAX
ENHANCE_YOUR_CALM = 11
INITIAL_WINDOW_SIZE = 4
HeaderList = list[tuple[str, str]]
T = TypeVar("T")


def connect(address: str, seconds: float = SECONDS) -> socket.socket:
    """Connect to an address as `Edge.listen` returns it."""
    if address.startswith("unix:"):
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(seconds)
        unix.connect(address.removeprefix("unix:"))
        return unix
    host, _, port = address.rpartition(":")
    tcp = socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tcp


def message(payload: bytes, flag: int = 0) -> bytes:
    """Frame a gRPC message."""
    return struct.pack(">BI", flag, len(payload)) + payload


def messages(data: bytes) -> list[bytes]:
    """Split gRPC messages."""
    found = []
    while data:
        flag, size = struct.unpack_from(">BI", data)
        assert flag == 0 and len(data) >= 5 + size
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found


def grpc_headers(path: str, *more: tuple[str, str]) -> HeaderList:
    """Return what a gRPC client sends; `more` overrides or adds."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    replaced = {name for name, _ in more}
    merged = [pair for pair in headers if pair[0] not in replaced] + list(more)
    return sorted(merged, key=lambda pair: not pair[0].startswith(":"))


@dataclass
class Answer:
    """The answer on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> tuple[int, str]:
        """The gRPC status and its text, from the trailers or from trailers alone."""
        fields = {**self.headers, **self.trailers}
        return int(fields["grpc-status"]), unquote(fields.get("grpc-message", ""))

    @property
    def gist(self) -> tuple[object, ...]:
        """What a client of any kind sees; equal for servers that behave equally."""
        if "grpc-status" not in {**self.headers, **self.trailers}:
            return (self.headers.get(":status"), self.data, self.ended, self.reset)
        return (self.headers.get(":status"), self.data, self.ended, *self.status)


class Wire:
    """One HTTP/2 connection."""

    def __init__(
        self,
        address: str,
        settings: dict[int, int] | None = None,
        *,
        greet: bool = True,
        credit: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = connect(address)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.encoder = Encoder()
        self._decoder = Decoder()
        self.credit = credit
        self._block = b""
        self.last_stream = -1
        self.answers: dict[int, Answer] = {}
        self.settings: dict[int, int] = {}
        self.acknowledged = 0
        self.pongs: list[bytes] = []
        self.pinged = 0
        self.windows: dict[int, int] = {}
        self.goaway: GoAwayFrame | None = None
        self.closed = False
        if greet:
            self.send_bytes(PREFACE + SettingsFrame(0, settings or {}).serialize())

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, *frames: Frame) -> None:
        self.send_bytes(b"".join(frame.serialize() for frame in frames))

    def open(self, headers: HeaderList, *, end: bool = False) -> int:
        """Send headers on the next stream."""
        self.last_stream += 2
        self.answers[self.last_stream] = Answer()
        self.send(self.headers_frame(self.last_stream, headers, end=end))
        return self.last_stream

    def headers_frame(self, stream: int, headers: HeaderList, *, end: bool = False) -> HeadersFrame:
        frame = HeadersFrame(stream, self.encoder.encode(headers))
        frame.flags.add("END_HEADERS")
        if end:
            frame.flags.add("END_STREAM")
        return frame

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send data in frames of the usual size, whatever the window."""
        self.send(*self.data_frames(stream, data, end=end))

    def data_frames(self, stream: int, data: bytes, *, end: bool = False) -> list[DataFrame]:
        pieces = [data[at : at + 16384] for at in range(0, len(data), 16384)] or [b""]
        frames = [DataFrame(stream, piece) for piece in pieces]
        if end:
            frames[-1].flags.add("END_STREAM")
        return frames

    def call(self, path: str, body: bytes, *more: tuple[str, str], end: bool = True) -> int:
        """Open a gRPC call with this body, in one piece; return its stream."""
        self.last_stream += 2
        self.answers[self.last_stream] = Answer()
        frames = self.data_frames(self.last_stream, body, end=end)
        self.send(self.headers_frame(self.last_stream, grpc_headers(path, *more)), *frames)
        return self.last_stream

    def reset(self, stream: int, code: int = 8) -> None:
        self.send(RstStreamFrame(stream, code))

    def give_credit(self, stream: int, size: int) -> None:
        """Let the server send so many bytes more, on a stream or, for 0, on all of them."""
        self.send(WindowUpdateFrame(stream, size))

    def ping(self, data: bytes = b"pingpong") -> None:
        """Send a ping and wait for its answer; everything sent before has been read then."""
        self.send(PingFrame(0, data))
        while data not in self.pongs:
            self.pump()
        self.pongs.remove(data)

    def read_frame(self) -> Frame | None:
        """Read one frame; None when the server closed the connection."""
        try:
            head = self._exactly(9)
            frame, length = Frame.parse_frame_header(memoryview(head))
            frame.parse_body(memoryview(self._exactly(length)))
        except (EOFError, ConnectionError):
            self.closed = True
            return None
        return frame

    def pump(self) -> None:
        """Read one frame and process it. Raises EOFError at the end of the connection."""
        frame = self.read_frame()
        if frame is None:
            raise EOFError("the server closed the connection")
        answer = self.answers.setdefault(frame.stream_id, Answer())
        if isinstance(frame, SettingsFrame):
            if "ACK" in frame.flags:
                self.acknowledged += 1
            else:
                self.settings.update(frame.settings)
                self._decoder.max_allowed_table_size = 4096
                self._respond(SettingsFrame(0, flags=["ACK"]))
        elif isinstance(frame, PingFrame):
            if "ACK" in frame.flags:
                self.pongs.append(frame.opaque_data)
            else:
                self.pinged += 1
                self._respond(PingFrame(0, frame.opaque_data, flags=["ACK"]))
        elif isinstance(frame, WindowUpdateFrame):
            window = self.windows.get(frame.stream_id, 0)
            self.windows[frame.stream_id] = window + frame.window_increment
        elif isinstance(frame, GoAwayFrame):
            self.goaway = frame
        elif isinstance(frame, RstStreamFrame):
            answer.reset = frame.error_code
        elif isinstance(frame, DataFrame):
            answer.data += frame.data
            if self.credit and frame.flow_controlled_length:
                size = frame.flow_controlled_length
                self._respond(WindowUpdateFrame(0, size), WindowUpdateFrame(frame.stream_id, size))
        elif isinstance(frame, HeadersFrame | ContinuationFrame):
            self._block += frame.data
            if "END_HEADERS" in frame.flags:
                fields = {
                    bytes(name).decode("latin-1"): bytes(value).decode("latin-1")
                    for name, value in self._decoder.decode(self._block, raw=True)
                }
                (answer.trailers if answer.headers else answer.headers).update(fields)
                self._block = b""
        if "END_STREAM" in frame.flags:
            answer.ended = True

    def answer(self, stream: int) -> Answer:
        """Read until a stream has ended, in whatever way, or the connection has."""
        answer = self.answers.setdefault(stream, Answer())
        while not answer.ended and answer.reset is None:
            try:
                self.pump()
            except EOFError:
                break
        return answer

    def unary(self, path: str, payload: bytes, *more: tuple[str, str]) -> Answer:
        return self.answer(self.call(path, message(payload), *more))

    def until_closed(self) -> int | None:
        """Read until the server closes; return the code of its GOAWAY, if it sent one."""
        while not self.closed:
            try:
                self.pump()
            except EOFError:
                break
        return self.goaway.error_code if self.goaway else None

    def _respond(self, *frames: Frame) -> None:
        # The server may have closed already, and what it sent before is still to be read.
        with contextlib.suppress(ConnectionError):
            self.send(*frames)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


def in_time(begin: Callable[[], T]) -> T:
    """Try until it succeeds: on a busy machine a short time limit may pass in between."""

    def attempt() -> T | None:
        with contextlib.suppress(EOFError, ConnectionError, ssl.SSLError):
            return begin()
        return None

    return until("a client says what it has to within a short time limit", attempt)


def greeted(address: str, tls: ssl.SSLContext | None = None) -> Wire:
    """Connect where the time limit is short; return once the server's settings were read."""

    def begin() -> Wire:
        wire = Wire(address, tls=tls)
        try:
            wire.ping()
        except BaseException:
            wire.socket.close()
            raise
        return wire

    return in_time(begin)


class Reply:
    """One HTTP/1.1 response, read from a connection's file."""

    def __init__(self, file: BinaryIO, *, head: bool = False) -> None:
        line = file.readline()
        if not line:
            raise EOFError("the server closed the connection")
        version, status, *_ = line.split(None, 2)
        assert version == b"HTTP/1.1", line
        self.status = int(status)
        self.headers = dict(self._fields(file))
        if head or self.status < 200 or self.status in (204, 304):
            self.body = b""
        elif self.headers.get("transfer-encoding") == "chunked":
            self.body = b"".join(self._chunks(file))
        elif "content-length" in self.headers:
            length = int(self.headers["content-length"])
            self.body = file.read(length)
            if len(self.body) < length:
                raise EOFError("the body broke off")
        else:
            self.body = file.read()

    def _fields(self, file: BinaryIO) -> Iterable[tuple[str, str]]:
        while (line := file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            yield name.lower(), value.strip()

    def _chunks(self, file: BinaryIO) -> Iterable[bytes]:
        while True:
            line = file.readline()
            if not line:
                raise EOFError("the body broke off")
            size = int(line.split(b";")[0], 16)
            data = file.read(size)
            end = file.readline()
            if len(data) < size or not end:
                raise EOFError("the body broke off")
            if size == 0:
                return
            yield data


def farewell(wire: Wire) -> tuple[int, bytes] | None:
    """Read until the server closes; return what its GOAWAY says."""
    wire.until_closed()
    if wire.goaway is None:
        return None
    return wire.goaway.error_code, wire.goaway.additional_data
