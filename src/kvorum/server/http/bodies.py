"""Decode the body of a request in slices, from received text to messages.

Decoding takes time proportional to the body, and other clients must not wait for all of it. So the
caller reads one slice of a body, serves other clients, and reads the next slice. A slice is limited
by bytes rather than by a clock, so that the same input always has the same slices.
"""

from typing import TYPE_CHECKING, Final

from kvorum.server.http.decoding import Reading
from kvorum.server.http.json_values import Values
from kvorum.server.http.routes import Route
from kvorum.server.rpc.table import RpcKind

if TYPE_CHECKING:
    from kvorum.server.http.websocket import WebSocket

SLICE_BYTES: Final = 16 * 1024
"""Bytes of a body to read before other clients are served."""
VALUE_BYTES: Final = 256
"""Cost of a message besides its text: serving it costs more than reading `{}`."""
FRAMES_BYTES: Final = 1024
"""Bytes of WebSocket frames to read at once."""
FRAMES_FACTOR: Final = 4
"""Cost factor of these bytes: a frame without a payload costs more than its six bytes."""


class Body:
    """The unread part of one call's body."""

    __slots__ = (
        "_left",
        "_reading",
        "_route",
        "_socket",
        "_values",
        "_whole",
        "has_ended",
        "is_closed",
    )

    def __init__(self, route: Route, socket: "WebSocket | None") -> None:
        self.has_ended = False
        """Whether the client has sent the whole body."""
        self.is_closed = False
        """Whether the rest is discarded, apart from a WebSocket's frames."""
        self._route = route
        self._socket = socket
        # A body that may have many messages is divided into values; any other is one message.
        self._values: Values | None = None
        if socket is not None or route.kind is RpcKind.BOTH_WAYS:
            self._values = Values()
        self._whole: bytes | bytearray = b""
        self._reading: Reading | None = None
        self._left = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes kept of the body."""
        kept = len(self._whole)
        if self._reading is not None:
            kept += len(self._reading.text)
        if self._values is not None:
            kept += self._values.held_bytes + self._values.unread_bytes
        if self._socket is not None:
            kept += self._socket.pending_bytes + self._socket.unread_bytes
        return kept

    @property
    def incomplete_bytes(self) -> int:
        """Length of the incomplete value so far."""
        return len(self._whole) if self._values is None else self._values.held_bytes

    @property
    def has_more(self) -> bool:
        """Whether the next slice has something to read without further input."""
        if self._reading is not None or (self._values is not None and self._values.unread_bytes):
            return True
        socket = self._socket
        return socket is not None and socket.is_open and socket.unread_bytes > 0

    @property
    def is_within_value(self) -> bool:
        """Whether a slice ended within a message, whose decoded part occupies memory."""
        return self._reading is not None

    @property
    def is_broken(self) -> bool:
        """Whether the body is invalid JSON; no further messages follow."""
        return self._values is not None and self._values.is_broken

    def feed(self, piece: bytes) -> None:
        """Add received bytes."""
        if self._socket is not None:
            self._socket.feed(piece)
        elif self._values is not None:
            self._values.feed(piece)
        elif self.is_closed or self.has_ended:
            return
        elif not self._whole:
            self._whole = piece
        else:
            if isinstance(self._whole, bytes):
                self._whole = bytearray(self._whole)
            self._whole += piece

    def end(self) -> None:
        """Mark the body as completely received."""
        self.has_ended = True
        if self._values is None and not self.is_closed:
            self._reading = self._route.decoder.begin(bytes(self._whole))
            self._whole = b""

    def close(self) -> None:
        """Discard unread bytes and all further input."""
        self.is_closed = True
        self._values = self._reading = None
        self._whole = b""

    def begin_slice(self) -> None:
        """Reset the allowance to one slice."""
        self._left = SLICE_BYTES

    def take(self) -> bytes | None:
        """Return the next message; None if none is complete or the slice is used up.

        Raises Malformed.
        """
        while self._left > 0:
            if self._reading is None:
                value = self._next_value()
                if value is None:
                    return None
                self._reading = self._route.decoder.begin(value)
            reading = self._reading
            before = reading.offset
            if not reading.advance(max(self._left, VALUE_BYTES)):
                self._left = 0
                return None
            self._left -= reading.offset - before + VALUE_BYTES
            self._reading = None
            return reading.message
        return None

    def _next_value(self) -> bytes | None:
        values = self._values
        if values is None:
            return None
        unread = values.unread_bytes
        value = values.take(self._left)
        self._left -= unread - values.unread_bytes
        return value

    def take_frames(self) -> bytes | None:
        """Read frames of a WebSocket; return bytes to send to its client.

        None if there is nothing to read or the slice is used up.
        """
        socket = self._socket
        if socket is None or self._left <= 0 or not socket.is_open or not socket.unread_bytes:
            return None
        messages, answers = socket.receive(FRAMES_BYTES)
        self._left -= FRAMES_FACTOR * FRAMES_BYTES
        if self._values is not None:
            for message in messages:
                self._values.feed(message + b"\n")
        return answers
