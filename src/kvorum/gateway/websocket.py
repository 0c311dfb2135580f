"""WebSocket on the gateway's paths: the handshake, and frames in both directions.

The payload of each message is a part of the request's body, and each line of the answer is a
message. Browsers cannot set headers here, so a token comes as a subprotocol or in a cookie.
"""

from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from kvorum.edge.interface import Headers

VERSION: Final = "13"
OUR_VERSION: Final[Headers] = (("sec-websocket-version", VERSION),)
KEY_BYTES: Final = 16
BEARER: Final = "Bearer"

READ_HEADERS: Final = (
    "connection",
    "cookie",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "upgrade",
)
"""The headers that are read here."""


def asks_for_upgrade(headers: Mapping[str, str]) -> bool:
    """Return whether a request is to become a WebSocket."""
    return _has_token(headers.get("connection", ""), "upgrade") and _has_token(
        headers.get("upgrade", ""), "websocket"
    )


def handshake_refusal(method: str, headers: Mapping[str, str]) -> tuple[int, str, Headers] | None:
    """Return the status, text and headers of the answer to a handshake that is not one."""
    if method != "GET":
        return 405, "Method Not Allowed", OUR_VERSION
    try:
        key = b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except (BadBase64, ValueError):
        key = b""
    if len(key) != KEY_BYTES or not _has_token(headers.get("sec-websocket-version", ""), VERSION):
        return 400, "Bad Request", OUR_VERSION
    return None


def handshake_answer(headers: Mapping[str, str]) -> Headers:
    """Return the headers that accept a handshake."""
    key = headers["sec-websocket-key"].encode()
    answer = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", generate_accept_token(key).decode()),
    ]
    offered = headers.get("sec-websocket-protocol", "").split(",")
    if any(each.strip(" \t") == BEARER for each in offered):
        answer.append(("sec-websocket-protocol", BEARER))
    return answer


def metadata_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what counts of a handshake's headers for the call: who makes it."""
    shown = {}
    protocols = headers.get("sec-websocket-protocol", "")
    if protocols:
        _, found, token = protocols.partition(f"{BEARER},")
        shown["authorization"] = f"{BEARER} {token.strip(' ')}" if found else ""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get("token")
    except CookieError:
        cookie = None
    if cookie is not None:
        shown["authorization"] = f"{BEARER} {cookie.value}"
    return shown


def _has_token(value: str, token: str) -> bool:
    return any(each.strip(" \t").lower() == token for each in value.split(","))


class WebSocket:
    """One open WebSocket, without its connection: bytes go in and out."""

    __slots__ = ("_bytes_max", "_connection", "_message")

    def __init__(self, bytes_max: int) -> None:
        """Take messages of at most so many bytes."""
        self._connection = Connection(ConnectionType.SERVER)
        self._bytes_max = bytes_max
        self._message = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed it."""
        return self._connection.state is ConnectionState.OPEN

    @property
    def pending_bytes(self) -> int:
        """How much is kept of a message that is not whole."""
        return len(self._message)

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Take bytes of the client; return whole messages, and bytes to be sent to it."""
        messages: list[bytes] = []
        answers = b""
        if not self.is_open:
            return messages, answers
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
        """Answer the client's close, or an error in its frames, in kind."""
        try:
            return self._connection.send(event.response())
        except LocalProtocolError:
            return b""

    def text(self, line: bytes) -> bytes:
        """Return the frame of a message to the client."""
        return self._connection.send(TextMessage(line.decode())) if self.is_open else b""

    def close(self, reason: CloseReason = CloseReason.NORMAL_CLOSURE) -> bytes:
        """Return the frame that ends it; nothing if it has ended."""
        return self._connection.send(CloseConnection(reason)) if self.is_open else b""
