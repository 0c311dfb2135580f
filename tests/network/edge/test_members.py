"""Listeners for members: HTTP/1.1 only, long streams out, long uploads in, short timeouts."""

import random
import socket
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.network.edge import INCIDENTS, EdgeEventKind, Limits, TlsSettings
from tests.certificates import Authority, trusting
from tests.network.edge.client import Client
from tests.network.edge.conftest import OpenService
from tests.network.edge.plain import body, opened
from tests.network.edge.service import ECHO, OK, WAIT_SECONDS, Arrived, Service
from tests.network.edge.wire import PREFACE, Reply, connect, in_time
from tests.waiting import until

STREAM = b"GET /raft/stream/message/1 HTTP/1.1\r\nhost: x\r\n\r\n"
UPLOAD = b"POST /raft/snapshot HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
SIZES = st.one_of(st.integers(1, 300), st.sampled_from([16_384, 16_385, 70_000, 400_000]))
LIMITS = Limits(http1_idle_seconds_max=0.5, http1_read_seconds_max=0.1)


@pytest.fixture
def service(open_service: OpenService) -> Service:
    return open_service(http1_only=True)


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def echo(connection: socket.socket, file: Any, text: bytes) -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(text)
    connection.sendall(head + text)
    reply = Reply(file)
    assert (reply.status, reply.body) == (200, text)


# HTTP/1.1 only.


def test_http2_is_refused_as_go_refuses_it(service: Service) -> None:
    with connect(service.address) as connection:
        connection.sendall(PREFACE + b"\0\0\0\4\0\0\0\0\0")
        said = read_all(connection)
    assert said == b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    service.until(lambda edge: edge.counters()["requests_refused"] == 1)
    assert service.remote.counters()["calls_received"] == 0


def test_there_is_no_grpc(service: Service) -> None:
    with grpc.insecure_channel(service.address) as channel, pytest.raises(grpc.RpcError) as failed:
        Client(channel).unary(ECHO, b"x")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


def test_other_listeners_of_the_edge_serve_all(open_service: OpenService) -> None:
    service = open_service()
    _, address = service.do(lambda edge: edge.listen("127.0.0.1:0", http1_only=True))
    for place in (service.address, address):
        with connect(place) as connection, connection.makefile("rb") as file:
            echo(connection, file, b"one")
            echo(connection, file, b"two")
    with grpc.insecure_channel(service.address) as channel:
        assert Client(channel).unary(ECHO, b"x") == b"x"


def test_whoever_offers_http2_speaks_http1(open_service: OpenService, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("member")
    service = open_service(tls=TlsSettings(str(pair.cert), str(pair.key)), http1_only=True)
    context = trusting(authority.cert)
    context.set_alpn_protocols(["h2"])
    with (
        context.wrap_socket(connect(service.address), server_hostname="localhost") as connection,
        connection.makefile("rb") as file,
    ):
        assert connection.selected_alpn_protocol() is None
        echo(connection, file, b"one")


# Streams out.


def test_pieces_leave_at_once_and_those_of_a_batch_together(
    open_service: OpenService, tmp_path: Path
) -> None:
    service = open_service(None, f"unix:{tmp_path}/socket", http1_only=True)
    with connect(service.address) as connection:
        connection.sendall(STREAM)
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        service.remote.respond(call, 200, [("x-server-version", "3.7.1")], None)
        head = connection.recv(65536)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n")
        for _ in range(3):
            service.remote.send([(call, b"alone")])
            assert connection.recv(65536) == b"5\r\nalone\r\n"
            # Written one after the other, they would not all be there at the first look.
            service.remote.send([(call, b"together")] * 200)
            said = connection.recv(65536)
            assert unchunked(said) == b"together" * 200
        service.remote.finish(call, OK)
        assert connection.recv(65536) == b"0\r\n\r\n"


def unchunked(data: bytes) -> bytes:
    pieces = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(data[:length])
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
    return b"".join(pieces)


def test_pieces_keep_their_order_however_they_leave(service: Service) -> None:
    """Some are written at once, some wait for others, some are half-written to a slow reader."""

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.lists(SIZES, max_size=6), max_size=12), st.booleans())
    def holds(batches: list[list[int]], is_read_late: bool) -> None:
        sent = [[bytes([size % 251]) * size for size in batch] for batch in batches]
        with connect(service.address) as connection, connection.makefile("rb") as file:
            connection.sendall(STREAM)
            call = opened(service)[0]
            assert body(service, call) == b""
            service.remote.respond(call, 200, [], None)
            while file.readline() != b"\r\n":
                pass
            said = b""
            for batch in sent:
                for piece in batch:
                    service.remote.send([(call, piece)])
                    said += b"" if is_read_late else chunks(file, len(piece))
                service.remote.send([(call, piece) for piece in batch])
                said += b"" if is_read_late else chunks(file, sum(map(len, batch)))
            expected = b"".join(b"".join(batch) * 2 for batch in sent)
            said += chunks(file, len(expected) - len(said))
            assert said == expected
            service.until(lambda edge: edge.pending_bytes(call) == 0)
            service.remote.finish(call, OK)
            assert file.readline() == b"0\r\n"
        while not service.events.empty():
            service.next_event(EdgeEventKind.WRITABLE)

    holds()


def chunks(file: Any, length: int) -> bytes:
    """Read chunks until there are so many bytes of a body."""
    data = b""
    while len(data) < length:
        data += file.read(int(file.readline(), 16))
        assert file.readline() == b"\r\n"
    return data


def test_older_clients_are_sent_no_chunks(service: Service) -> None:
    with connect(service.address) as connection:
        connection.sendall(STREAM.replace(b"HTTP/1.1", b"HTTP/1.0"))
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        service.remote.respond(call, 200, [], None)
        head = connection.recv(65536)
        assert b" 200 OK\r\n" in head and b"chunked" not in head and head.endswith(b"\r\n\r\n")
        service.remote.send([(call, b"one")])
        assert connection.recv(65536) == b"one"
        service.remote.finish(call, OK)
        assert connection.recv(65536) == b""


def test_a_length_that_was_told_makes_chunks_superfluous(service: Service) -> None:
    with connect(service.address) as connection:
        connection.sendall(STREAM)
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        service.remote.respond(call, 200, [("content-length", "6")], None)
        assert connection.recv(65536).endswith(b"\r\n\r\n")
        for piece in (b"one", b"two"):
            service.remote.send([(call, piece)])
            assert connection.recv(65536) == piece


def test_a_stream_whose_reader_leaves_is_ended(service: Service) -> None:
    with connect(service.address) as connection:
        connection.sendall(STREAM)
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        assert service.next_event(EdgeEventKind.HALF_CLOSED)
        service.remote.respond(call, 200, [], None)
        connection.recv(65536)
    service.next_event(EdgeEventKind.ENDED, call)
    service.remote.send([(call, b"late")])
    assert service.remote.pending_bytes(call) == 0


# Uploads in.


class Uploader:
    """Sends the chunks of a request that has begun as fast as they are taken."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self.sent = 0
        self._connection = connection
        self._size = size
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        piece = bytes(256 * 1024)
        while self.sent < self._size:
            self._connection.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
            self.sent += len(piece)
        self._connection.sendall(b"0\r\n\r\n")

    def wait_until_stuck(self) -> int:
        """Return how much was sent when nothing more is taken."""
        sent: deque[int] = deque(maxlen=40)

        def is_stuck() -> bool:
            sent.append(self.sent)
            return sent.count(self.sent) == sent.maxlen

        until("nothing more is taken of an upload", is_stuck)
        return sent[-1]

    def join(self) -> None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()


def next_piece(service: Service) -> Arrived:
    return service.events.get(timeout=WAIT_SECONDS)


def test_a_paused_upload_is_held_back(service: Service) -> None:
    size = 300 << 20
    with connect(service.address) as connection:
        connection.sendall(UPLOAD)
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        service.remote.pause(call)
        uploader = Uploader(connection, size)
        stuck = uploader.wait_until_stuck()
        assert stuck < 32 << 20, "sockets and queues hold some, but not everything"
        service.remote.resume(call)
        received = 0
        while (event := next_piece(service)).kind == EdgeEventKind.MESSAGE:
            received += len(event.detail)
        assert event.kind == EdgeEventKind.HALF_CLOSED and received == size
        uploader.join()
        service.remote.respond(call, 204, [], b"")
        with connection.makefile("rb") as file:
            assert Reply(file).status == 204


def test_pauses_lose_nothing(open_service: OpenService) -> None:
    service = open_service(Limits(stream_queued_bytes_max=64 * 1024), http1_only=True)
    chance = random.Random(1)
    content = chance.randbytes(4 << 20)
    with connect(service.address) as connection, connection.makefile("rb") as file:
        for _ in range(2):
            head = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content)
            sender = threading.Thread(target=connection.sendall, args=(head + content,))
            sender.start()
            call = service.next_event(EdgeEventKind.HTTP_OPENED).call
            received = b""
            while (event := next_piece(service)).kind == EdgeEventKind.MESSAGE:
                received += event.detail
                if chance.random() < 0.2:
                    service.remote.pause(call)
                    service.remote.pause(call)
                    service.remote.resume(call)
            assert event.kind == EdgeEventKind.HALF_CLOSED
            assert received == content
            # A client that is answered while it is paused can go on with the next request.
            service.remote.pause(call)
            service.remote.respond(call, 200, [], b"")
            assert Reply(file).status == 200
            sender.join()
    # Whatever is sent to calls that have ended is ignored.
    service.remote.pause(call)
    service.remote.resume(call)


# No patience.


def wait_until_an_idle_one_is_closed(service: Service) -> None:
    """Leave everything alone until the edge has closed an idle connection, for no fault of its."""

    def used() -> socket.socket:
        connection = connect(service.address)
        try:
            with connection.makefile("rb") as file:
                echo(connection, file, b"x")
        except BaseException:
            connection.close()
            raise
        return connection

    with in_time(used) as connection:
        service.remote.incidents()
        assert connection.recv(1) == b""
    assert service.remote.incidents() == []


def test_an_idle_connection_is_closed(open_service: OpenService) -> None:
    service = open_service(LIMITS, http1_only=True)
    wait_until_an_idle_one_is_closed(service)
    # At a listener for all it may stay as long as it likes.
    _, address = service.do(lambda edge: edge.listen("127.0.0.1:0"))
    with connect(address) as connection, connection.makefile("rb") as file:
        echo(connection, file, b"x")
        wait_until_an_idle_one_is_closed(service)
        echo(connection, file, b"x")


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", b"G"])
def test_a_head_that_does_not_come(open_service: OpenService, first: bytes) -> None:
    service = open_service(LIMITS, http1_only=True)
    # It may be closed before it says anything.
    with connect(service.address) as connection, suppress(ConnectionError):
        connection.sendall(first)
        assert connection.recv(1) == b""
    service.until(lambda edge: any(edge.counters()[name] for name in INCIDENTS))
    assert [one[0] for one in service.remote.incidents()] == ["headers_timed_out"]


def begun(service: Service, connection: socket.socket, request: bytes) -> list[Arrived]:
    """Begin a request of two events; return what has happened then.

    These are others on a busy machine, where a client or the loop may stand still until its time
    is up.
    """
    with suppress(ConnectionError):
        connection.sendall(request)
    service.until(
        lambda edge: (
            service.events.qsize() >= 2
            or any(edge.counters()[f"{part}_timed_out"] for part in ("headers", "bodies"))
        )
    )
    return [service.events.get() for _ in range(service.events.qsize())]


UPLOAD_EVENTS = [EdgeEventKind.HTTP_OPENED, EdgeEventKind.MESSAGE]
STREAM_EVENTS = [EdgeEventKind.HTTP_OPENED, EdgeEventKind.HALF_CLOSED]


def test_a_body_that_does_not_come(open_service: OpenService) -> None:
    def is_given_up() -> bool:
        service = open_service(Limits(http1_read_seconds_max=0.1), http1_only=True)
        with connect(service.address) as connection:
            events = begun(service, connection, UPLOAD + b"3\r\nabc\r\n")
            if [event.kind for event in events] != UPLOAD_EVENTS:
                return False
            assert events[1].detail == b"abc"
            service.next_event(EdgeEventKind.ENDED, events[0].call)
            assert connection.recv(1) == b""
        ((name, listener, peer, text, times),) = service.remote.incidents()
        assert (name, listener, times) == ("bodies_timed_out", 0, 1)
        assert peer and text == "the body of a request did not come in time"
        return True

    until("the loop has a request in time", is_given_up)


def test_who_is_made_to_wait_is_not_closed(open_service: OpenService) -> None:
    limits = Limits(http1_idle_seconds_max=0.5, http1_read_seconds_max=0.3)

    def goes_on() -> bool:
        service = open_service(limits, http1_only=True)
        with connect(service.address) as upload, connect(service.address) as stream:
            events = begun(service, upload, UPLOAD + b"3\r\nabc\r\n")
            if [event.kind for event in events] != UPLOAD_EVENTS:
                return False
            uploading = events[0].call
            service.remote.pause(uploading)
            events = begun(service, stream, STREAM)
            if [event.kind for event in events] != STREAM_EVENTS:
                return False
            streaming = events[0].call
            service.remote.respond(streaming, 200, [], None)
            # From when the idle one has been served, no other may be closed.
            wait_until_an_idle_one_is_closed(service)
            if not service.events.empty():
                # The upload had been given up before it was made to wait.
                return False
            service.remote.send([(streaming, b"still")])
            data = b""
            while not data.endswith(b"5\r\nstill\r\n"):
                piece = stream.recv(65536)
                assert piece, "the stream was closed"
                data += piece
            upload.sendall(b"0\r\n\r\n")
            service.remote.resume(uploading)
            service.next_event(EdgeEventKind.HALF_CLOSED, uploading)
            service.remote.respond(uploading, 204, [], b"")
            with upload.makefile("rb") as file:
                assert Reply(file).status == 204
        return True

    until("all is said in time, and goes on after its time", goes_on)
