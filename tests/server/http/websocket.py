"""A small WebSocket client on a raw connection: what it sends may be broken."""

import base64
import hashlib
import os
import ssl
from collections.abc import Mapping
from typing import Any

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from tests.server.http.asking import Connection, Head, head_bytes, parsed

KEY = base64.b64encode(bytes(range(16))).decode()
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, MORE, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA
PIECE_BYTES = 65536


def accepted(key: str) -> str:
    """Return what a server answers to a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()


def frame(
    opcode: int, payload: bytes, *, is_last: bool = True, reserved: int = 0, mask: bytes = b""
) -> bytes:
    """Return one frame of a client, masked."""
    mask = mask or os.urandom(4)
    size = len(payload)
    head = bytes([(0x80 if is_last else 0) | (reserved << 4) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
    key = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return head + mask + masked.to_bytes(size, "big")


class WebSocket(Connection):
    """A connection that asks to become a WebSocket as soon as it is made."""

    def __init__(
        self,
        address: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, tls)
        self._frames = Frames(ConnectionType.CLIENT)
        self._arrived: list[Any] = []
        self._text = ""
        given = {**HANDSHAKE, **(headers or {})}
        present = {name: value for name, value in given.items() if value is not None}
        self.send(head_bytes(method, target, present))
        self.opened: Head = self.head()

    def say(self, *messages: str | bytes) -> None:
        """Send messages, each in a frame of its own."""
        for each in messages:
            data, opcode = (each.encode(), TEXT) if isinstance(each, str) else (each, BINARY)
            self.send(frame(opcode, data))

    def next(self) -> Any:
        """Wait for what comes next: a text, a pong, a close, or None if the connection ends."""
        while True:
            while self._arrived:
                event = self._arrived.pop(0)
                if isinstance(event, TextMessage):
                    self._text += event.data
                    if event.message_finished:
                        text, self._text = self._text, ""
                        return text
                else:
                    assert not isinstance(event, BytesMessage), "lines are texts"
                    assert not isinstance(event, Ping), "nobody is asked whether he is there"
                    return event
            try:
                data = self.reader.read1(PIECE_BYTES)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._frames.receive_data(data)
            self._arrived += self._frames.events()

    def line(self) -> Any:
        """Wait for a text, and return it parsed."""
        found = self.next()
        assert isinstance(found, str), found
        assert "\n" not in found
        return parsed(found.encode())

    def is_closed(self) -> bool:
        """Wait for what comes next; return whether it is the end, with a frame or without."""
        found = self.next()
        return found is None or isinstance(found, CloseConnection)

    def is_answered(self, payload: bytes) -> bool:
        """Send a ping; return whether its pong is what comes next."""
        self.send(frame(PING, payload))
        found = self.next()
        return isinstance(found, Pong) and bytes(found.payload) == payload
