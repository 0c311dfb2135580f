"""A server of one watch that sends events as fast as the client takes them, to measure clients.

A real server would spend time to produce events, on the same processors. This one has its answers
ready: an endless sequence of revisions of a hundred events each, from any revision on.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from struct import Struct

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import mvccpb

EVENTS_PER_REVISION = 100
VALUE = b"v" * 100
REVISION_MIN = 0x5A5A5A5
"""The first revision; all revisions have encodings of one length, so messages can be patched."""
REVISIONS_AT_ONCE = 10
READ_BYTES = 1 << 16
_FRAME = Struct(">IBI")
_PREFACE_BYTES = 24
_DATA, _HEADERS, _SETTINGS, _WINDOW = 0, 1, 4, 8
_STATUS_AND_TYPE = b"\x88\x0f\x10\x10application/grpc"
_FRAME_BYTES_MAX = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) << 8 | kind, flags, stream) + payload


def _message(stream: int, response: pb.WatchResponse) -> bytes:
    encoded = response.SerializeToString()
    data = b"\0" + len(encoded).to_bytes(4, "big") + encoded
    pieces = range(0, len(data), _FRAME_BYTES_MAX)
    return b"".join(_frame(_DATA, 0, stream, data[at : at + _FRAME_BYTES_MAX]) for at in pieces)


def _varint(value: int) -> bytes:
    return bytes(value >> shift & 0x7F | (0x80 if shift < 21 else 0) for shift in range(0, 28, 7))


def _revision(stream: int, watch: int) -> bytes:
    """Encode the first revision's message."""
    header = pb.ResponseHeader(cluster_id=1 << 62, member_id=1 << 61, revision=REVISION_MIN)
    response = pb.WatchResponse(header=header, watch_id=watch)
    for number in range(EVENTS_PER_REVISION):
        kv = mvccpb.KeyValue(key=b"bench/events/%03d" % number, value=VALUE, create_revision=2)
        kv.mod_revision = kv.version = REVISION_MIN
        response.events.append(mvccpb.Event(kv=kv))
    return _message(stream, response)


class Feeder:
    """One connection with one watch stream."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._input = bytearray()
        self._stream = 0
        self._watch: int | None = None
        self._revision = 0
        self._template = b""
        self._rooms = {0: 65_535}
        self._initial = 65_535
        self._is_new = True

    def serve(self) -> None:
        """Send events until the client disconnects."""
        self._connection.sendall(_frame(_SETTINGS, 0, 0, b""))
        while self._read(is_waiting=not self._can_send()):
            while self._can_send():
                self._send_revisions()
                self._read(is_waiting=False)

    def _can_send(self) -> bool:
        rooms = self._rooms
        return self._watch is not None and min(rooms[0], rooms[self._stream]) > 1 << 18

    def _send_revisions(self) -> None:
        """Send several revisions in one piece."""
        assert self._watch is not None
        first = self._revision
        self._revision += REVISIONS_AT_ONCE
        output = b"".join(
            self._template.replace(_varint(REVISION_MIN), _varint(revision))
            for revision in range(first, self._revision)
        )
        self._rooms[0] -= len(output)
        self._rooms[self._stream] -= len(output)
        self._connection.sendall(output)

    def _read(self, *, is_waiting: bool) -> bool:
        """Handle the client's input; return False once it has disconnected."""
        self._connection.setblocking(is_waiting)
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return True
        finally:
            self._connection.setblocking(True)
        self._input += data
        if self._is_new and len(self._input) >= _PREFACE_BYTES:
            del self._input[:_PREFACE_BYTES]
            self._is_new = False
        while len(self._input) >= _FRAME.size:
            length_and_kind, flags, stream = _FRAME.unpack_from(self._input)
            end = _FRAME.size + (length_and_kind >> 8)
            if len(self._input) < end:
                break
            self._take(length_and_kind & 0xFF, flags, stream, bytes(self._input[_FRAME.size : end]))
            del self._input[:end]
        return bool(data)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags:
            for at in range(0, len(payload), 6):
                if payload[at + 1] == 4:
                    self._initial = int.from_bytes(payload[at + 2 : at + 6], "big")
            self._connection.sendall(_frame(_SETTINGS, 1, 0, b""))
        elif kind == _WINDOW:
            room = self._rooms.setdefault(stream, self._initial)
            self._rooms[stream] = room + int.from_bytes(payload, "big")
        elif kind == _HEADERS:
            self._stream = stream
            self._rooms.setdefault(stream, self._initial)
            self._connection.sendall(_frame(_HEADERS, 4, stream, _STATUS_AND_TYPE))
        elif kind == _DATA:
            request = pb.WatchRequest.FromString(payload[5:])
            if request.HasField("create_request"):
                self._watch = request.create_request.watch_id
                self._revision = max(request.create_request.start_revision, REVISION_MIN)
                self._template = _revision(stream, self._watch)
                created = pb.WatchResponse(watch_id=self._watch, created=True)
                created.header.revision = self._revision
                self._connection.sendall(_message(stream, created))
            else:
                self._watch = None


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        try:
            Feeder(connection).serve()
        except OSError:
            connection.close()


@contextmanager
def feeding() -> Iterator[str]:
    """Run the server within the block; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = get_context("fork").Process(target=_serve, args=(listener,), daemon=True)
        process.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.kill()
            process.join()
