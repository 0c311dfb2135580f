"""A server that answers frame by frame, as the test says: it may break every rule of HTTP/2."""

import socket
import threading
from types import TracebackType

from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.network.edge.caller import Caller
from tests.network.edge.wire import PREFACE, SECONDS, message

STREAMS_MAX = 3
OK_HEADERS = ((":status", "200"), ("content-type", "application/grpc"))
OK_TRAILERS = (("grpc-status", "0"),)


class RawServer:
    """Listens, and serves one client at a time."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._socket: socket.socket | None = None
        self._encoder, self._decoder = Encoder(), Decoder()
        self._rest = b""

    def __enter__(self) -> "RawServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._listener.close()

    @property
    def socket(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def accept(self, settings: dict[int, int] | None = None, *, greets: bool = True) -> None:
        """Take the next client; by default it is greeted with settings."""
        self._socket, _ = self._listener.accept()
        self._socket.settimeout(SECONDS)
        self._encoder, self._decoder = Encoder(), Decoder()
        self._rest = b""
        if greets:
            self.send(SettingsFrame(0, settings or {}))

    def accept_later(self, settings: dict[int, int] | None = None) -> threading.Thread:
        """Take the next client in a thread, while the test's own connects."""
        thread = threading.Thread(target=self.accept, args=(settings,))
        thread.start()
        return thread

    def close(self) -> None:
        """Lose the client."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(frame.serialize() for frame in frames))

    def read(self) -> Frame:
        """Return the client's next frame."""
        self._rest += b"" if self._rest else self._recv()
        if self._rest.startswith(b"PRI"):
            while len(self._rest) < len(PREFACE):
                self._rest += self._recv()
            self._rest = self._rest.removeprefix(PREFACE)
        while len(self._rest) < 9:
            self._rest += self._recv()
        frame, length = Frame.parse_frame_header(memoryview(self._rest[:9]))
        while len(self._rest) < 9 + length:
            self._rest += self._recv()
        frame.parse_body(memoryview(self._rest[9 : 9 + length]))
        self._rest = self._rest[9 + length :]
        return frame

    def _recv(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError("the client has closed")
        return data

    def expect(self, kind: type[Frame]) -> Frame:
        """Return the client's next frame of a kind."""
        while not isinstance(frame := self.read(), kind):
            if isinstance(frame, HeadersFrame):
                self._decoder.decode(frame.data)
        return frame

    def expect_call(self) -> tuple[int, dict[str, str]]:
        """Return the stream and the headers of the client's next call."""
        frame = self.expect(HeadersFrame)
        assert isinstance(frame, HeadersFrame)
        headers = self._decoder.decode(frame.data)
        return frame.stream_id, {str(name): str(value) for name, value in headers}

    def headers(self, stream: int, *pairs: tuple[str, str], ends: bool = False) -> HeadersFrame:
        frame = HeadersFrame(stream, self._encoder.encode(list(pairs)))
        frame.flags.add("END_HEADERS")
        if ends:
            frame.flags.add("END_STREAM")
        return frame

    def answer(self, stream: int, *messages: bytes) -> None:
        """Answer a call with messages, successfully."""
        self.send(
            self.headers(stream, *OK_HEADERS),
            *(DataFrame(stream, message(each)) for each in messages),
            self.headers(stream, *OK_TRAILERS, ends=True),
        )

    def reset(self, stream: int, code: int) -> None:
        self.send(RstStreamFrame(stream, code))

    def go_away(self, last_stream: int, code: int = 0) -> None:
        self.send(GoAwayFrame(0, last_stream, code))

    def pong(self, frame: Frame) -> None:
        assert isinstance(frame, PingFrame)
        self.send(PingFrame(0, frame.opaque_data, flags=["ACK"]))

    def widen(self, stream: int, size: int) -> None:
        self.send(WindowUpdateFrame(stream, size))


def connected(caller: Caller, server: RawServer, settings: dict[int, int] | None = None) -> int:
    """Connect to a server that greets with these settings; return the endpoint."""
    accepting = server.accept_later(settings)
    endpoint = caller.connect(server.address)
    accepting.join()
    return endpoint
