"""HTTP/2 as a gRPC client needs it: bytes in, events out, no socket and no clock.

A call is one stream: header fields, messages of bytes, an end. The client asks servers for header
blocks without a dynamic table, so that equal blocks mean the same and are decoded once.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from hpack import Decoder

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES_MAX: Final = 1 << 20
"""The longest frame that the client accepts; long frames save servers many short ones."""
STREAM_WINDOW_BYTES: Final = 4 << 20
"""How much of one answer a server may send before it needs a window update."""
CONNECTION_WINDOW_BYTES: Final = 64 << 20
HEADER_BYTES_MAX: Final = 64 << 10
_DEFAULT_WINDOW: Final = 65_535
_WINDOW_MAX: Final = (1 << 31) - 1
_BLOCKS_KEPT: Final = 64

_DATA, _HEADERS, _RESET, _SETTINGS, _PUSH = 0, 1, 3, 4, 5
_PING, _GO_AWAY, _WINDOW, _CONTINUATION = 6, 7, 8, 9
_END_STREAM, _ACKNOWLEDGED, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32

_FRAME: Final = Struct(">IBI")  # length and type, flags, stream
_SETTING: Final = Struct(">HI")
_NUMBER: Final = Struct(">I")

_TABLE, _ENABLE_PUSH, _STREAMS_MAX, _INITIAL_WINDOW, _FRAME_MAX, _FIELDS_MAX = 1, 2, 3, 4, 5, 6
_SETTINGS_SENT: Final = (
    (_TABLE, 0),
    (_ENABLE_PUSH, 0),
    (_FRAME_MAX, FRAME_BYTES_MAX),
    (_FIELDS_MAX, HEADER_BYTES_MAX),
)

Fields = tuple[tuple[str, str], ...]

_NO_TABLE: Final = b"\x20"
"""The first byte of a header block that sets the size of the dynamic table to zero."""
BLOCKS_KNOWN: Final[dict[bytes, Fields]] = {
    bytes.fromhex("88 0f10 8b1d75d0620d263d4c4d6564"): (
        (":status", "200"),
        ("content-type", "application/grpc"),
    ),
    bytes.fromhex("00 889acac8b21234da8f 0130 00 899acac8b5254207317f 00"): (
        ("grpc-status", "0"),
        ("grpc-message", ""),
    ),
    bytes.fromhex("00 889acac8b21234da8f 8107"): (("grpc-status", "0"),),
}
"""The header blocks of successful answers, which do not depend on a dynamic table.

A client that receives no others does not need to load the HPACK decoder.
"""


class Reset(IntEnum):
    """Why a stream or a connection ends early."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12


class StreamEventKind(IntEnum):
    """The kinds of events on a stream."""

    FIELDS = 0
    """The server sent header fields or trailers."""
    BYTES = 1
    """The server sent bytes of the answer."""
    ENDED = 2
    """The server ended the stream without an error."""
    RESET = 3
    """The server reset the stream; the detail is the error code, perhaps one not in `Reset`."""
    REFUSED = 4
    """The server did not process the stream, so the client can safely send it again."""


Event: TypeAlias = tuple[StreamEventKind, int, Fields | bytes | int]
"""An event on a stream: its kind, the stream's number, and the detail."""
_GOT_FIELDS, _GOT_BYTES, _ENDED = (
    StreamEventKind.FIELDS,
    StreamEventKind.BYTES,
    StreamEventKind.ENDED,
)


class ProtocolError(Exception):
    """The server violated HTTP/2 or a limit of the client: the connection must end."""


class ForeignError(ProtocolError):
    """The other side speaks another protocol than HTTP/2, so it has processed no call."""


class _Stream:
    __slots__ = ("ends", "is_held", "received", "room", "waiting")

    def __init__(self, room: int) -> None:
        self.room = room
        """How many bytes the server's window allows."""
        self.received = 0
        """Bytes received since the last window update."""
        self.is_held = False
        """Whether to withhold window updates, because the user does not take the messages."""
        self.waiting = bytearray()
        """Bytes to send once the window allows it."""
        self.ends = False
        """Whether this side ends the stream after those bytes."""


class Http2Connection:
    """One connection. Bytes to send collect in `output` and `pongs` until `take_output`.

    While no call waits, answers to pings may wait for other output: gRPC servers ping with every
    answer, and sending the pong alone would cost as much as the call.
    """

    __slots__ = (
        "_block",
        "_blocks",
        "_decoder",
        "_ends",
        "_events",
        "_frame_bytes_max",
        "_has_table",
        "_in_block",
        "_input",
        "_missing",
        "_next_stream",
        "_received",
        "_room",
        "_stream_room",
        "_streams",
        "_streams_max",
        "_window",
        "go_away_code",
        "has_settings",
        "is_going_away",
        "output",
        "pongs",
    )

    def __init__(self, stream_window_bytes: int = STREAM_WINDOW_BYTES) -> None:
        self._window = stream_window_bytes
        self.output: bytearray = bytearray(PREFACE)
        self.pongs: bytearray = bytearray()
        """Answers to the server's pings."""
        settings = (*_SETTINGS_SENT, (_INITIAL_WINDOW, stream_window_bytes))
        self._put(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings))
        self.has_settings: bool = False
        """Whether the server's settings have arrived."""
        grown = CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW
        self._put(_WINDOW, 0, 0, _NUMBER.pack(grown))
        self.is_going_away: bool = False
        """Whether new streams are impossible: the server goes away, or the numbers are used up."""
        self.go_away_code: int | None = None
        """The error code with which the server goes away; None if it does not."""
        self._input = bytearray()
        """An incomplete frame."""
        self._missing = 9
        """How many bytes `_input` needs before it is parsed again."""
        self._events: list[Event] = []
        self._streams: dict[int, _Stream] = {}
        self._streams_max = _WINDOW_MAX
        self._next_stream = 1
        self._room = _DEFAULT_WINDOW
        self._stream_room = _DEFAULT_WINDOW
        self._frame_bytes_max = 16_384
        self._received = 0
        self._decoder: Decoder | None = None
        """Made for the first header block that is not in `_blocks`."""
        self._has_table = True
        """Whether a header block may depend on earlier ones."""
        self._blocks = dict(BLOCKS_KNOWN)
        # An incomplete header block: its stream, its bytes, and whether it ends the stream.
        self._in_block = 0
        self._block = bytearray()
        self._ends = False

    @property
    def has_room(self) -> bool:
        """Whether a stream may be opened now."""
        return not self.is_going_away and len(self._streams) < self._streams_max

    @property
    def open_count(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    # Requests of the client.

    def open(self, block: bytes, data: bytes, *, ends: bool) -> int:
        """Open a stream with header fields from `field_block`, and send its first bytes."""
        assert self.has_room, "no stream can be opened here"
        number = self._next_stream
        self._next_stream = number + 2
        if number >= _WINDOW_MAX - 2:
            self.is_going_away = True
        stream = self._streams[number] = _Stream(self._stream_room)
        stream.ends = ends
        size, frame_max = len(data), self._frame_bytes_max
        if max(size, len(block)) <= frame_max and size <= stream.room and size <= self._room:
            # Nearly every call fits into one frame and the windows.
            stream.room -= size
            self._room -= size
            flags = _END_STREAM if ends else 0
            self.output += b"".join(
                (
                    _FRAME.pack(len(block) << 8 | _HEADERS, _END_HEADERS, number),
                    block,
                    _FRAME.pack(size << 8 | _DATA, flags, number),
                    data,
                )
                if size or ends
                else (_FRAME.pack(len(block) << 8 | _HEADERS, _END_HEADERS, number), block)
            )
        else:
            self._put_block(number, block)
            self._append(number, stream, data)
        return number

    def hold(self, number: int, *, is_held: bool) -> None:
        """Withhold window updates for a stream, or resume them."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.is_held = is_held
            if stream.received >= self._window // 2:
                self._replace(number, stream)

    def send(self, number: int, data: bytes, *, ends: bool = False) -> None:
        """Send more bytes on a stream; does nothing if it has ended."""
        stream = self._streams.get(number)
        if stream is None or stream.ends:
            return
        stream.ends = ends
        self._append(number, stream, data)

    def waiting_bytes(self, number: int) -> int:
        """Return how many bytes of a stream wait for the server's window."""
        stream = self._streams.get(number)
        return 0 if stream is None else len(stream.waiting)

    def cancel(self, number: int) -> None:
        """Reset a stream, which then has no more events."""
        if self._streams.pop(number, None) is not None:
            self._put(_RESET, 0, number, _NUMBER.pack(Reset.CANCEL))

    def ping(self) -> None:
        """Ping the server; any bytes that then arrive show that it is alive."""
        self._put(_PING, 0, 0, b"kvorum\0\0")

    def take_output(self) -> bytes:
        """Return the bytes to send, and clear the buffers."""
        data = bytes(self.output)
        if self.pongs:
            data += self.pongs
            self.pongs.clear()
        self.output.clear()
        return data

    # Input from the server.

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Take bytes from the server; return their events. Raises ProtocolError."""
        rest = self._input
        # HTTP/2 begins with settings, whose first byte is zero, unlike that of common protocols.
        if data and not self.has_settings and not rest and data[0]:
            raise ForeignError(_foreign(bytes(data[:_SHOWN_BYTES])))
        if rest:
            rest += data
            if len(rest) < self._missing:
                return []
            data = bytes(rest)
            rest.clear()
        at, end, self._missing = 0, len(data), 9
        while end - at >= 9:
            length_and_kind, flags, number = _FRAME.unpack_from(data, at)
            length = length_and_kind >> 8
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes; {FRAME_BYTES_MAX} were allowed")
            if end - at - 9 < length:
                self._missing = 9 + length
                break
            payload = bytes(data[at + 9 : at + 9 + length])
            at += 9 + length
            self._take(length_and_kind & 0xFF, flags, number & 0x7FFF_FFFF, payload)
        if at < end:
            rest += data[at:]
        events, self._events = self._events, []
        return events

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._in_block and kind != _CONTINUATION:
            raise ProtocolError("a header block was interrupted")
        if kind == _DATA:
            self._take_data(flags, number, payload)
        elif kind == _HEADERS:
            self._take_headers(flags, number, payload)
        elif kind == _WINDOW:
            self._take_window(number, payload)
        elif kind == _PING:
            if not flags & _ACKNOWLEDGED:
                self.pongs += _FRAME.pack(len(payload) << 8 | _PING, _ACKNOWLEDGED, 0) + payload
        elif kind == _SETTINGS:
            self._take_settings(flags, payload)
        elif kind == _RESET:
            if self._streams.pop(number, None) is not None:
                code = _number(payload)
                refused = code == Reset.REFUSED_STREAM
                self._events.append(
                    (StreamEventKind.REFUSED if refused else StreamEventKind.RESET, number, code)
                )
        elif kind == _GO_AWAY:
            self._go_away(payload)
        elif kind == _CONTINUATION:
            self._take_continuation(flags, number, payload)
        elif kind == _PUSH:
            raise ProtocolError("the server pushed something, which was declined")

    def _replace(self, number: int, stream: _Stream) -> None:
        """Extend the stream's window by the received bytes, unless it is held."""
        if not stream.is_held:
            self._put(_WINDOW, 0, number, _NUMBER.pack(stream.received))
            stream.received = 0

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._received += size
        if self._received >= CONNECTION_WINDOW_BYTES // 2:
            self._put(_WINDOW, 0, 0, _NUMBER.pack(self._received))
            self._received = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.received += size
        if stream.received >= self._window // 2 and not flags & _END_STREAM:
            self._replace(number, stream)
        if flags & _PADDED:
            payload = _unpadded(payload)
        if payload:
            self._events.append((_GOT_BYTES, number, payload))
        if flags & _END_STREAM:
            self._end(number)

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _PRIORITY:
            payload = payload[5:]
        if flags & _END_HEADERS:
            self._take_block(number, payload, bool(flags & _END_STREAM))
        else:
            self._in_block, self._ends = number, bool(flags & _END_STREAM)
            self._block = bytearray(payload)

    def _take_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if number != self._in_block or not number:
            raise ProtocolError("a header block continues that had not started")
        self._block += payload
        if len(self._block) > HEADER_BYTES_MAX:
            raise ProtocolError(f"a header block of more than {HEADER_BYTES_MAX} bytes")
        if flags & _END_HEADERS:
            self._in_block = 0
            self._take_block(number, bytes(self._block), self._ends)

    def _take_block(self, number: int, block: bytes, ends: bool) -> None:
        fields = self._blocks.get(block)
        if fields is None:
            fields = self._decode(block)
        if number not in self._streams:
            return
        self._events.append((_GOT_FIELDS, number, fields))
        if ends:
            self._end(number)

    def _decode(self, block: bytes) -> Fields:
        if block.startswith(_NO_TABLE):
            # The server uses no dynamic table, as the client's settings ask.
            self._has_table = False
            if self._decoder is not None:
                self._decoder.header_table_size = 0
            block = block[1:]
            if (known := self._blocks.get(block)) is not None:
                return known
        from hpack import Decoder, HPACKError

        if self._decoder is None:
            self._decoder = Decoder(max_header_list_size=HEADER_BYTES_MAX)
            if not self._has_table:
                self._decoder.header_table_size = 0
        had_table = self._has_table
        try:
            decoded = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise ProtocolError(f"a header block cannot be read: {error}") from error
        self._has_table = self._decoder.header_table.maxsize != 0
        fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in decoded)
        if not had_table and not self._has_table:
            # Without a dynamic table the same bytes always mean the same.
            if len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks = dict(BLOCKS_KNOWN)
            self._blocks[block] = fields
        return fields

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACKNOWLEDGED:
            return
        self.has_settings = True
        if len(payload) % _SETTING.size:
            raise ProtocolError(f"settings of {len(payload)} bytes")
        for name, value in _SETTING.iter_unpack(payload):
            if name == _STREAMS_MAX:
                self._streams_max = value
            elif name == _INITIAL_WINDOW:
                if value > _WINDOW_MAX:
                    raise ProtocolError(f"a window of {value} bytes")
                grown, self._stream_room = value - self._stream_room, value
                for stream in self._streams.values():
                    stream.room += grown
            elif name == _FRAME_MAX:
                if not 16_384 <= value < 1 << 24:
                    raise ProtocolError(f"frames of {value} bytes")
                self._frame_bytes_max = value
        self._put(_SETTINGS, _ACKNOWLEDGED, 0, b"")
        self._send_all_waiting()

    def _take_window(self, number: int, payload: bytes) -> None:
        grown = _number(payload) & 0x7FFF_FFFF
        if not number:
            self._room += grown
            if self._room > _WINDOW_MAX:
                raise ProtocolError("the window of the connection is too large")
            self._send_all_waiting()
        elif (stream := self._streams.get(number)) is not None:
            stream.room += grown
            self._send_waiting(number, stream)

    def _go_away(self, payload: bytes) -> None:
        self.is_going_away = True
        last = _number(payload) & 0x7FFF_FFFF
        self.go_away_code = int.from_bytes(payload[4:8])
        for number in [each for each in self._streams if each > last]:
            del self._streams[number]
            self._events.append((StreamEventKind.REFUSED, number, Reset.NO_ERROR))

    def _end(self, number: int) -> None:
        stream = self._streams.pop(number)
        if stream.waiting or not stream.ends:
            # The server has answered without waiting for the whole request.
            self._put(_RESET, 0, number, _NUMBER.pack(Reset.CANCEL))
        self._events.append((_ENDED, number, b""))

    # Sending.

    def _put(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self.output += _FRAME.pack(len(payload) << 8 | kind, flags, number) + payload

    def _put_block(self, number: int, block: bytes) -> None:
        size = self._frame_bytes_max
        kind = _HEADERS
        for at in range(0, len(block), size):
            flags = _END_HEADERS if at + size >= len(block) else 0
            self._put(kind, flags, number, block[at : at + size])
            kind = _CONTINUATION

    def _send_all_waiting(self) -> None:
        for number, stream in self._streams.items():
            if stream.waiting:
                self._send_waiting(number, stream)

    def _append(self, number: int, stream: _Stream, data: bytes) -> None:
        """Send more bytes on a stream, now or when the windows allow it."""
        if data:
            stream.waiting += data
            self._send_waiting(number, stream)
        elif stream.ends and not stream.waiting:
            self._put(_DATA, _END_STREAM, number, b"")

    def _send_waiting(self, number: int, stream: _Stream) -> None:
        waiting = stream.waiting
        while waiting:
            size = min(len(waiting), stream.room, self._room, self._frame_bytes_max)
            if size <= 0:
                return
            stream.room -= size
            self._room -= size
            data = bytes(waiting[:size])
            del waiting[:size]
            is_last = stream.ends and not waiting
            self._put(_DATA, _END_STREAM if is_last else 0, number, data)


def field_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return header fields as a block that does not depend on earlier blocks."""
    return b"".join(
        _field(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields
    )


def _field(name: bytes, value: bytes) -> bytes:
    return b"\0" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    head = bytearray((127,))
    while size >= 128:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + text


def _number(payload: bytes) -> int:
    if len(payload) < 4:
        raise ProtocolError(f"a number of {len(payload)} bytes")
    number: int = _NUMBER.unpack_from(payload)[0]
    return number


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("more padding than there are bytes")
    return payload[1 : len(payload) - payload[0]]


_SHOWN_BYTES: Final = 60
_TLS_RECORDS: Final = ((0x15, 0x03), (0x16, 0x03))
"""The first bytes of a TLS server: those of an alert, and those of a handshake."""


def _foreign(data: bytes) -> str:
    """Return an error text that names a port's protocol, by the first bytes from it."""
    if tuple(data[:2]) in _TLS_RECORDS:
        return (
            "the port speaks TLS, and was asked without; write the endpoint with https://, and "
            "give the authority that signed its certificate as ca="
        )
    answer = data.splitlines()[0].decode("latin-1")
    what = "HTTP/1" if data.startswith(b"HTTP/") else "something else"
    return (
        f"the port does not speak gRPC but {what}: it answered {answer!r}; expected a port for "
        "clients, for example localhost:2379"
    )
