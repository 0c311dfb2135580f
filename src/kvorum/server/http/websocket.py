"""WebSocket on the gateway's paths: frames in both directions.

Each WebSocket message from the client is a part of the request's body, and each line of the answer
is a message.
"""

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError


class WebSocket:
    """One WebSocket without I/O: takes received bytes and returns bytes to send."""

    __slots__ = ("_bytes_max", "_connection", "_message", "_unread")

    def __init__(self, bytes_max: int) -> None:
        """Accept messages of at most `bytes_max` bytes."""
        self._connection = Connection(ConnectionType.SERVER)
        self._bytes_max = bytes_max
        self._message = bytearray()
        self._unread = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed the WebSocket."""
        return self._connection.state is ConnectionState.OPEN

    @property
    def pending_bytes(self) -> int:
        """Bytes kept of an incomplete message."""
        return len(self._message)

    @property
    def unread_bytes(self) -> int:
        """Bytes fed but not read."""
        return len(self._unread)

    def feed(self, data: bytes) -> None:
        """Add bytes from the client, unless the WebSocket has ended."""
        if self.is_open:
            self._unread += data

    def receive(self, bytes_max: int) -> tuple[list[bytes], bytes]:
        """Read up to `bytes_max` bytes; return complete messages, and bytes for the client."""
        messages: list[bytes] = []
        answers = b""
        data = bytes(self._unread[:bytes_max])
        del self._unread[:bytes_max]
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, TextMessage | BytesMessage):
                content = event.data
                self._message += content.encode() if isinstance(content, str) else content
                if len(self._message) > self._bytes_max:
                    return messages, answers + self.close(CloseReason.MESSAGE_TOO_BIG)
                if event.message_finished:
                    messages.append(bytes(self._message))
                    self._message.clear()
            elif isinstance(event, Ping):
                answers += self._connection.send(event.response())
            elif isinstance(event, CloseConnection):
                return messages, answers + self._confirm(event)
        return messages, answers

    def _confirm(self, event: CloseConnection) -> bytes:
        """Return the answer to the client's close, or to an error in its frames."""
        try:
            return self._connection.send(event.response())
        except LocalProtocolError:
            return b""

    def text(self, line: bytes) -> bytes:
        """Return the frame of a message to the client."""
        return self._connection.send(TextMessage(line.decode())) if self.is_open else b""

    def close(self, reason: CloseReason = CloseReason.NORMAL_CLOSURE) -> bytes:
        """Return the close frame, or b"" if the WebSocket has ended."""
        return self._connection.send(CloseConnection(reason)) if self.is_open else b""
