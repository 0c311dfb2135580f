"""HTTP/2 by itself: windows of answers that nobody takes, and header blocks known by heart."""

import struct

from hpack import Decoder

from kvorum.client.grpc.http2 import BLOCKS_KNOWN, STREAM_WINDOW_BYTES, Http2Connection, field_block

DATA, SETTINGS, WINDOW = 0, 4, 8


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, 0)) + struct.pack(">I", stream) + payload


def windows(data: bytes, stream: int) -> int:
    """Return how many bytes more a server may send on a stream, by these frames."""
    granted = 0
    while data:
        size = int.from_bytes(data[:3], "big")
        if data[3] == WINDOW and struct.unpack(">I", data[5:9])[0] == stream:
            granted += struct.unpack(">I", data[9:13])[0]
        data = data[9 + size :]
    return granted


def test_what_came_is_replaced_when_it_is_taken() -> None:
    connection = Http2Connection()
    stream = connection.open(field_block(((":method", "POST"),)), b"", ends=True)
    connection.receive(frame(SETTINGS, 0, b""))
    connection.output.clear()
    piece = frame(DATA, stream, bytes(16_384))
    pieces = STREAM_WINDOW_BYTES // 16_384
    connection.hold(stream, is_held=True)
    for _ in range(pieces):
        connection.receive(piece)
    assert windows(bytes(connection.output), stream) == 0
    connection.hold(stream, is_held=False)
    assert windows(bytes(connection.output), stream) == STREAM_WINDOW_BYTES
    for _ in range(pieces):
        connection.receive(piece)
    assert windows(bytes(connection.output), stream) == 2 * STREAM_WINDOW_BYTES


def test_the_blocks_that_are_known_are_what_a_decoder_reads() -> None:
    for block, fields in BLOCKS_KNOWN.items():
        decoder = Decoder()
        decoded = [
            (name.decode(), value.decode()) for name, value in decoder.decode(block, raw=True)
        ]
        assert decoded == list(fields)
        assert not decoder.header_table.dynamic_entries, "it changes the table"
