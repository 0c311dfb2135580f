"""The body of a request, read in slices: text that arrived becomes messages.

Reading takes time in proportion to what a client sent, and other clients must not wait for that. So
the caller reads one slice of a body, serves others, and reads the next one. What a slice costs is
counted in bytes rather than by a clock, so that the same input is always divided in the same way.
"""

from typing import TYPE_CHECKING, Final

from kvorum.gateway.decoding import Reading
from kvorum.gateway.json_values import Values
from kvorum.gateway.routes import Route
from kvorum.rpc.table import Kind

if TYPE_CHECKING:
    from kvorum.gateway.websocket import WebSocket

SLICE_BYTES: Final = 16 * 1024
"""How much of a body is read before others are served."""
VALUE_BYTES: Final = 256
"""What a message counts as besides its text: serving it costs more than reading `{}`."""
FRAMES_BYTES: Final = 1024
"""How many bytes of frames are read at once."""
FRAMES_FACTOR: Final = 4
"""What they count as: a frame without a payload costs more than its six bytes."""


class Body:
    """What a client sent on one call, and nobody has read yet."""

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
        """Whether its client has sent everything."""
        self.is_closed = False
        """Whether nothing more is read of it, apart from frames of a WebSocket."""
        self._route = route
        self._socket = socket
        # A body with many messages is divided into values; any other is read as a whole.
        self._values: Values | None = None
        if socket is not None or route.kind is Kind.BOTH_WAYS:
            self._values = Values()
        self._whole: bytes | bytearray = b""
        self._reading: Reading | None = None
        self._left = 0

    @property
    def kept_bytes(self) -> int:
        """How much of it is kept."""
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
        """How long its incomplete value is so far."""
        return len(self._whole) if self._values is None else self._values.held_bytes

    @property
    def has_more(self) -> bool:
        """Whether the next slice has something to read, even if nothing arrives before."""
        if self._reading is not None or (self._values is not None and self._values.unread_bytes):
            return True
        socket = self._socket
        return socket is not None and socket.is_open and socket.unread_bytes > 0

    @property
    def is_within_value(self) -> bool:
        """Whether a slice ended within a message, whose decoded part takes memory."""
        return self._reading is not None

    @property
    def is_broken(self) -> bool:
        """Whether what follows cannot be JSON any more."""
        return self._values is not None and self._values.is_broken

    def feed(self, piece: bytes) -> None:
        """Take what arrived."""
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
        """Note that nothing more arrives."""
        self.has_ended = True
        if self._values is None and not self.is_closed:
            self._reading = self._route.decoder.begin(bytes(self._whole))
            self._whole = b""

    def close(self) -> None:
        """Throw away what was not read, and what still arrives."""
        self.is_closed = True
        self._values = self._reading = None
        self._whole = b""

    def begin_slice(self) -> None:
        """Allow as much to be read as a slice has."""
        self._left = SLICE_BYTES

    def take(self) -> bytes | None:
        """Return the next message; None if there is none, or if the slice is used up.

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
        """Read frames of a WebSocket; return what is to be sent to its client.

        None if there is nothing to read, or if the slice is used up.
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
