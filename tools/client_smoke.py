"""Try the installed client on any system: `make smoke-client` runs it where no server can run.

The client puts and gets a key by threads and by asyncio, and reports a port without a server by its
own error. The server is a stub of this file: it answers every call with one message, and needs
nothing but Python. No package that only servers need may be imported meanwhile.
"""

import asyncio
import socket
import struct
import sys
import threading
from contextlib import suppress

import kvorum
from kvorum.client import KvorumError

SERVER_PACKAGES = {"bcrypt", "cryptography", "greenlet", "lmdb", "rich", "uvloop"}
PREFACE_BYTES = 24
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def literal(*texts: str) -> bytes:
    """Return names and values of headers in HPACK, without its table and without Huffman's code."""
    encoded = [bytes([len(text)]) + text.encode() for text in texts]
    pairs = zip(encoded[::2], encoded[1::2], strict=True)
    return b"".join(b"\x00" + name + value for name, value in pairs)


def field(number: int, content: bytes) -> bytes:
    """Return a field of a Protobuf message that is shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


# A header at revision 2 and one key: both a PutResponse and a RangeResponse can be read from it.
KEY_VALUE = field(1, b"greeting") + b"\x10\x02\x18\x02\x20\x01" + field(5, b"hello")
MESSAGE = field(1, b"\x18\x02") + field(2, KEY_VALUE)
# HPACK has ":status 200" as entry 8 of its static table.
FIRST_HEADERS = b"\x88" + literal("content-type", "application/grpc")
LAST_HEADERS = literal("grpc-status", "0")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def answer_calls(connection: socket.socket) -> None:
    """Answer every call of one connection with the message, until the client closes it."""
    with suppress(OSError), connection, connection.makefile("rb") as received:
        received.read(PREFACE_BYTES)
        connection.sendall(frame(SETTINGS, 0, 0, b""))
        while len(head := received.read(9)) == 9:
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = received.read(int.from_bytes(head[:3]))
            if kind in (SETTINGS, PING) and not flags & ACK:
                connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind in (DATA, HEADERS) and flags & END_STREAM:
                body = struct.pack(">BI", 0, len(MESSAGE)) + MESSAGE
                connection.sendall(
                    frame(HEADERS, END_HEADERS, stream, FIRST_HEADERS)
                    + frame(DATA, 0, stream, body)
                    + frame(HEADERS, END_HEADERS | END_STREAM, stream, LAST_HEADERS)
                )


def accept_connections(listener: socket.socket) -> None:
    """Give each connection a thread that answers its calls, until the listener is closed."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer_calls, args=(connection,), daemon=True).start()


async def try_asyncio(address: str) -> None:
    """Put and get a key with `AsyncClient`."""
    async with kvorum.AsyncClient(address, timeout=60) as client:
        await client.put("greeting", "hello")
        found = await client.get("greeting")
        assert found is not None and found.text == "hello"


def main() -> None:
    """Try both clients against the stub, and against a port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as silent:
        threading.Thread(target=accept_connections, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with kvorum.Client(address, timeout=60) as client:
            client.put("greeting", "hello")
            found = client.get("greeting")
            assert found is not None and found.text == "hello"
        asyncio.run(try_asyncio(address))
        silent.bind(("127.0.0.1", 0))
        with kvorum.Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout=1) as client:
            try:
                client.get("greeting")
            except KvorumError as error:
                print(f"no server: {error}")
            else:
                raise AssertionError("a port at which nothing listens answered")
    loaded = SERVER_PACKAGES & set(sys.modules)
    assert not loaded, f"the client imported {sorted(loaded)}, which only servers need"
    print(f"kvorum {kvorum.__version__} works as a client on {sys.platform}")


if __name__ == "__main__":
    main()
