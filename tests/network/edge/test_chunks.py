"""Streams over HTTP/1.1: every piece is one chunk, and what is not read is counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.network.edge import EdgeEventKind, Limits
from tests.network.edge.conftest import OpenService
from tests.network.edge.plain import Plain, body, opened, plain
from tests.network.edge.service import OK, Service
from tests.network.edge.wire import Wire

GET = b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n"
# What the sockets between both sides may hold is less.
UNREAD_BYTES = 32 << 20


def stream(service: Service, client: Plain) -> int:
    """Begin a request whose answer is sent in pieces."""
    client.send(GET)
    call = opened(service)[0]
    assert body(service, call) == b""
    service.remote.respond(call, 200, [], None)
    head = client.begin()
    assert b"transfer-encoding: chunked" in head.lower()
    return call


SIZES = st.one_of(st.integers(1, 300), st.sampled_from([8_191, 65_536, 65_537, 300_000]))


def test_every_piece_is_one_chunk(service: Service) -> None:
    @settings(max_examples=40)
    @given(st.lists(st.lists(SIZES, max_size=30), max_size=4))
    def holds(batches: list[list[int]]) -> None:
        pieces = [[bytes([size % 251]) * size for size in batch] for batch in batches]
        with plain(service) as client:
            call = stream(service, client)
            for batch in pieces:
                service.remote.send([(call, piece) for piece in batch])
            service.remote.finish(call, OK)
            for piece in [piece for batch in pieces for piece in batch]:
                assert client.chunk() == piece
            assert client.chunk() == b""
        while not service.events.empty():
            service.next_event(EdgeEventKind.WRITABLE)

    holds()


def test_pieces_of_many_streams_in_one_batch(service: Service) -> None:
    with plain(service) as first, plain(service) as second:
        calls = [stream(service, client) for client in (first, second)]
        batch = [(calls[number % 2], b"line %d\n" % number) for number in range(200)]
        service.remote.send(batch)
        for number in range(0, 200, 2):
            assert first.chunk() == b"line %d\n" % number
            assert second.chunk() == b"line %d\n" % (number + 1)


def test_a_piece_leaves_as_soon_as_it_is_sent(service: Service) -> None:
    with plain(service) as client:
        call = stream(service, client)
        for number in range(5):
            service.remote.send([(call, b"%d" % number)])
            assert client.chunk() == b"%d" % number


def test_a_piece_over_http2_leaves_as_soon_as_it_is_sent(service: Service) -> None:
    with Wire(service.address) as wire:
        request = {":method": "GET", ":scheme": "http", ":path": "/held", ":authority": "x"}
        wire_stream = wire.open(list(request.items()), end=True)
        call = opened(service)[0]
        assert body(service, call) == b""
        service.remote.respond(call, 200, [], None)
        sent = b""
        for number in range(5):
            service.remote.send([(call, b"%d" % number)])
            sent += b"%d" % number
            while wire.answers[wire_stream].data != sent:
                wire.pump()


@pytest.mark.parametrize("pieces", [1, 8])
def test_what_is_not_read_is_counted(open_service: OpenService, pieces: int) -> None:
    service = open_service(Limits(connection_unread_bytes_max=1 << 20))
    with plain(service) as client:
        call = stream(service, client)
        piece = bytes(UNREAD_BYTES // pieces)
        service.remote.send([(call, piece)] * pieces)
        assert not service.remote.has_room(call)
        # Sockets take some of it; the rest of a chunk that has begun is counted, too.
        assert service.remote.pending_bytes(call) > UNREAD_BYTES // 4
        for _ in range(pieces):
            assert client.chunk() == piece
        service.next_event(EdgeEventKind.WRITABLE, call)
        service.until(lambda edge: edge.pending_bytes(call) == 0 and edge.has_room(call))
        service.remote.send([(call, b"more")])
        assert client.chunk() == b"more"


def test_pieces_count_as_they_leave(service: Service) -> None:
    with plain(service) as client:
        call = stream(service, client)
        service.remote.send([(call, bytes(UNREAD_BYTES))])
        # The chunk's length, and half of its bytes.
        assert int(client.file.readline(), 16) == UNREAD_BYTES
        client.file.read(UNREAD_BYTES // 2)
        service.until(lambda edge: edge.pending_bytes(call) <= UNREAD_BYTES // 2)
        assert service.events.empty(), "there is still more than enough to send"


@pytest.mark.parametrize("head", ["connection: close\r\n", "connection: keep-alive\r\n"])
def test_an_answer_is_whole_however_late_it_is_read(service: Service, head: str) -> None:
    content = bytes(range(256)) * (UNREAD_BYTES // 256)
    with plain(service) as client, Wire(service.address) as other:
        client.send(f"GET /held HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode())
        call = opened(service)[0]
        assert body(service, call) == b""
        service.remote.respond(call, 200, [], content)
        # Somebody else is answered meanwhile, so this one's turn is over, too.
        other.ping()
        assert client.reply().body == content
