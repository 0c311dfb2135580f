"""Clients that send an attack's bytes unchecked: HTTP/2 frame by frame, HTTP/1.1 unmodified.

`Wire` keeps HTTP/2's rules only in some methods: `call` and `say` respect the server's windows,
`send` respects no rule. No method waits past its deadline.
"""

import contextlib
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from struct import Struct

from hpack import Decoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8, 9),
)
END_STREAM = ACK = 1
END_HEADERS = 4
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5
WINDOW_MAX = 2**31 - 1
FIRST_WINDOW = 65_535
FRAME_BYTES = 16_384
READ_BYTES = 1 << 20
CONNECT_SECONDS_MAX = 5.0

_word = Struct(">I")
_setting = Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode an HTTP/2 frame."""
    return _word.pack(len(payload) << 8 | kind) + bytes((flags,)) + _word.pack(stream) + payload


def integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
    """Encode a number as HPACK does; `first` holds the bits beside the prefix."""
    full = (1 << prefix_bits) - 1
    if value < full:
        return bytes((first | value,))
    parts = bytearray((first | full,))
    value -= full
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def literal(name: bytes, value: bytes, first: int = 0) -> bytes:
    """Encode a literal header field; with `first` 0x40, the peer adds it to its table."""
    return b"".join((bytes((first,)), integer(len(name), 7), name, integer(len(value), 7), value))


def head(path: bytes, *more: tuple[bytes, bytes], method: bytes = b"POST") -> bytes:
    """Encode the headers of a gRPC call, or with another method those of a plain request."""
    fields = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"a")]
    if method == b"POST":
        fields += [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
    return b"".join([literal(name, value) for name, value in (*fields, *more)])


def message(payload: bytes, flag: int = 0) -> bytes:
    """Frame a message as gRPC does."""
    return bytes((flag,)) + _word.pack(len(payload)) + payload


def address_of(address: str) -> tuple[str, int]:
    """Split an address into host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def connect(address: str, seconds: float = CONNECT_SECONDS_MAX) -> socket.socket:
    """Open a TCP connection."""
    made = socket.create_connection(address_of(address), timeout=seconds)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def exchange(address: str, request: bytes, seconds: float = CONNECT_SECONDS_MAX) -> bytes:
    """Send bytes on a new connection; return the answer, or as much of it as arrived."""
    answer = b""
    with contextlib.suppress(OSError), connect(address, seconds) as connection:
        end = time.monotonic() + seconds
        connection.sendall(request)
        while not is_complete(answer) and time.monotonic() < end:
            piece = connection.recv(READ_BYTES)
            if not piece:
                break
            answer += piece
    return answer


def request(target: bytes, *headers: bytes, method: bytes = b"GET", body: bytes = b"") -> bytes:
    """Return an HTTP/1.1 request that closes its connection."""
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: a", b"Connection: close", *headers]
    if method != b"GET":
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def is_complete(answer: bytes) -> bool:
    """Return whether an answer of known length, or in chunks, is complete."""
    start, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    for line in start.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    return body.endswith(b"\r\n0\r\n\r\n")


def status_of(answer: bytes) -> str:
    """Return the status code of an HTTP/1.1 answer; `closed` if it has none."""
    parts = answer.split(b" ", 2)
    return parts[1][:3].decode(errors="replace") if len(parts) > 1 else "closed"


class Wire:
    """One HTTP/2 connection.

    `window` is the number of bytes that the server may send on each stream, and on all streams
    together; with `reads` False, the client does not even read those from the socket.
    """

    def __init__(self, address: str, *, window: int = WINDOW_MAX, reads: bool = True) -> None:
        self._socket = connect(address)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket)
        self._reads = reads
        self._input = bytearray()
        self._answers = bytearray()
        self._decoder = Decoder()
        self._known_blocks: dict[bytes, str] = {}
        self._status: dict[int, str] = {}
        self._skip: dict[int, tuple[int, bytes]] = {}
        self._window = FIRST_WINDOW
        self._stream_window = FIRST_WINDOW
        self._credits: Counter[int] = Counter()
        self._last = -1
        self.is_closed = False
        self.ended: set[int] = set()
        """Streams that the server has ended."""
        self.statuses: Counter[str] = Counter()
        """Counts of ended streams by gRPC or HTTP status, or `reset`."""
        self.messages: Counter[int] = Counter()
        """Complete messages by stream."""
        self.data_bytes = 0
        self.goaway: int | None = None
        settings = [(HEADER_TABLE_SIZE, 0), (INITIAL_WINDOW_SIZE, window)]
        hello = frame(SETTINGS, 0, 0, b"".join([_setting.pack(*each) for each in settings]))
        if window > FIRST_WINDOW:
            hello += frame(WINDOW_UPDATE, 0, 0, _word.pack(window - FIRST_WINDOW))
        self.send(PREFACE + hello, time.monotonic() + CONNECT_SECONDS_MAX)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.is_closed = True
        self._socket.close()

    # Sending.

    def next_stream(self) -> int:
        """Return the number of an unused stream."""
        self._last += 2
        return self._last

    def send(self, data: bytes, deadline: float) -> int:
        """Send bytes unchecked, and read meanwhile; return how many bytes the socket took."""
        # Answers to the server go first: frame boundaries inside `data` are unknown.
        view, sent = memoryview(bytes(self._answers) + data), 0
        own = len(self._answers)
        self._answers.clear()
        while sent < len(view) and self._wait(deadline, writes=True):
            try:
                sent += self._socket.send(view[sent : sent + READ_BYTES])
            except BlockingIOError:
                continue
            except OSError:
                self.is_closed = True
        return max(0, sent - own)

    def call(self, block: bytes, body: bytes, deadline: float, *, end: bool = True) -> int:
        """Open a stream with one message, within the windows; return its number."""
        stream = self.next_stream()
        whole = message(body)
        if len(whole) <= min(self._window, FIRST_WINDOW, FRAME_BYTES):
            self._window -= len(whole)
            self._credits[stream] -= len(whole)
            flags = END_STREAM if end else 0
            opening = frame(HEADERS, END_HEADERS, stream, block)
            self.send(opening + frame(DATA, flags, stream, whole), deadline)
        else:
            self.send(frame(HEADERS, END_HEADERS, stream, block), deadline)
            self.say(stream, whole, deadline, end=end)
        return stream

    def say(self, stream: int, data: bytes, deadline: float, *, end: bool = False) -> bool:
        """Send data on a stream as the server's windows allow; return whether all was sent."""
        at = 0
        while at < len(data):
            room = min(self._window, self._stream_window + self._credits[stream])
            if room <= 0:
                if self._answers and not self.is_closed:
                    self.send(b"", deadline)
                elif not self._wait(deadline):
                    return False
                continue
            frames = bytearray()
            last = min(len(data), at + room)
            self._window -= last - at
            self._credits[stream] -= last - at
            while at < last:
                piece = data[at : min(at + FRAME_BYTES, last)]
                at += len(piece)
                flags = END_STREAM if end and at == len(data) else 0
                frames += frame(DATA, flags, stream, piece)
            if self.send(bytes(frames), deadline) < len(frames):
                return False
        return True

    # Receiving.

    def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Read until a condition holds; return False if the time or the connection ends first."""
        while not condition():
            if self._answers and not self.is_closed:
                self.send(b"", deadline)  # this reads as well
            elif not self._wait(deadline):
                return condition()
        return True

    def answered(self, stream: int, deadline: float) -> str:
        """Wait for the end of a stream; return its status, or why the status is unknown."""
        if self.until(lambda: stream in self.ended, deadline):
            return self._status.get(stream, "reset")
        return "closed" if self.is_closed else "no answer"

    def _wait(self, deadline: float, *, writes: bool = False) -> bool:
        """Wait until the socket is ready, and read; return False at the deadline or when closed."""
        left = deadline - time.monotonic()
        if self.is_closed or left <= 0:
            return False
        wanted = (select.POLLIN if self._reads else 0) | (select.POLLOUT if writes else 0)
        self._poll.modify(self._socket, wanted)
        for _, events in self._poll.poll(left * 1000):
            if events & select.POLLIN:
                self._read()
            elif events & (select.POLLHUP | select.POLLERR):
                self.is_closed = True
        return not self.is_closed

    def _read(self) -> None:
        try:
            piece = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.is_closed = True
            return
        data = self._input
        data += piece
        at, end = 0, len(data)
        while end - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if end - at < 9 + size:
                break
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            self._take(data[at + 3], data[at + 4], stream, bytes(data[at + 9 : at + 9 + size]))
            at += 9 + size
        del data[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self.data_bytes += len(payload)
            self._count_messages(stream, payload)
        elif kind == HEADERS:
            self._status[stream] = self._status_in(payload)
        elif kind == RST_STREAM:
            self.ended.add(stream)
            self.statuses["reset"] += 1
            self._status[stream] = "reset"
        elif kind == WINDOW_UPDATE:
            if stream:
                self._credits[stream] += _word.unpack(payload)[0]
            else:
                self._window += _word.unpack(payload)[0]
        elif kind == SETTINGS and not flags & ACK:
            for name, value in _setting.iter_unpack(payload):
                if name == INITIAL_WINDOW_SIZE:
                    self._stream_window = value
            self._answers += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._answers += frame(PING, ACK, 0, payload)
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(payload[4:8], "big")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self.ended.add(stream)
            self.statuses[self._status.get(stream, "")] += 1

    def _status_in(self, block: bytes) -> str:
        # Blocks are independent of each other, because the table's size is 0.
        known = self._known_blocks.get(block)
        if known is None:
            fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
            known = fields.get("grpc-status") or fields.get(":status") or ""
            if len(self._known_blocks) < 1000:
                self._known_blocks[block] = known
        return known

    def _count_messages(self, stream: int, payload: bytes) -> None:
        skip, rest = self._skip.get(stream, (0, b""))
        at = skip - len(rest)
        if rest:
            payload, at = rest + payload, 0
        size = len(payload)
        while size - at >= 5:
            at += 5 + _word.unpack_from(payload, at + 1)[0]
            self.messages[stream] += 1
        if at >= size:
            self._skip[stream] = at - size, b""
        else:
            self._skip[stream] = 0, payload[at:]
