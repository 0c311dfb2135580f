"""Bodies of plain HTTP requests; answers that have none, or come before the request has ended."""

import threading
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.network.edge import EdgeEventKind, Limits
from tests.network.edge.conftest import OpenEdge, OpenService
from tests.network.edge.loop import poll_until, turn_until
from tests.network.edge.plain import body, opened, plain
from tests.network.edge.service import ECHO, OK, WAIT_SECONDS, Service
from tests.network.edge.wire import Reply, Wire, connect

POST = b"POST /held HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
HTTP2 = [(":method", "POST"), (":scheme", "http"), (":path", "/held"), (":authority", "x")]


# What arrives.


def test_a_request_in_one_piece_is_one_batch(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with connect(address) as connection:
        for _ in range(3):
            connection.sendall(POST + b"content-length: 300\r\n\r\n" + bytes(300))
            _, events = poll_until(edge, lambda _, events: len(events) >= 3)
            kinds = [EdgeEventKind.HTTP_OPENED, EdgeEventKind.MESSAGE, EdgeEventKind.HALF_CLOSED]
            assert [event[0] for event in events] == kinds
            edge.respond(events[0][1], 200, [], b"ok")
            head = b""
            while not head.endswith(b"\r\n\r\nok"):
                head += connection.recv(4096)
                edge.poll(0, 0)


def test_a_body_that_never_ends_holds_nobody_up(service: Service) -> None:
    with plain(service) as client, Wire(service.address) as other:
        client.send(CHUNKED)
        call = opened(service)[0]
        for number in range(200):
            client.send(b"1\r\n%d\r\n" % (number % 10))
            assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"%d" % (number % 10)
        assert other.unary(ECHO, b"x").status == (0, "")
    service.next_event(EdgeEventKind.ENDED, call)


def test_small_pieces_while_nobody_polls(open_service: OpenService) -> None:
    service = open_service(Limits(connection_queued_bytes_max=64 * 1024))
    with plain(service) as client:
        client.send(CHUNKED)
        call = opened(service)[0]
        with service.paused():
            for _ in range(2000):
                client.send(b"1\r\nx\r\n")
        # Long before all of them, the client was not read any more.
        data = b""
        while len(data) < 2000:
            data += service.next_event(EdgeEventKind.MESSAGE, call).detail
        assert data == b"x" * 2000


def test_a_paused_body_is_held_back(service: Service) -> None:
    size = 64 << 20
    content = bytes(size)
    with plain(service) as client:
        client.send(POST + b"content-length: %d\r\n\r\n" % size)
        call = opened(service)[0]
        service.remote.pause(call)
        before = service.remote.counters()["bytes_read"]
        sender = threading.Thread(target=client.send, args=(content,))
        sender.start()
        sender.join(0.2)
        assert sender.is_alive(), "the rest is not read"
        assert service.remote.counters()["bytes_read"] - before < 8 << 20
        service.remote.resume(call)
        assert len(body(service, call)) == size
        sender.join(WAIT_SECONDS)
        service.remote.respond(call, 200, [], b"done")
        assert client.reply().body == b"done"


def test_a_paused_body_of_http2_is_held_back_alone(service: Service) -> None:
    sent = Limits().stream_queued_bytes_max - 1024
    with Wire(service.address) as wire:
        wire.ping()  # its settings, which allow so much at once, have arrived
        stream = wire.open(HTTP2)
        call = opened(service)[0]
        service.remote.pause(call)
        wire.data(stream, bytes(sent))
        received = 0
        while received < sent:
            received += len(service.next_event(EdgeEventKind.MESSAGE, call).detail)
        # The answer to another call leaves after all that was said about this one.
        assert wire.unary(ECHO, b"x").status == (0, "")
        assert not wire.windows.get(stream)
        service.remote.resume(call)
        while wire.windows.get(stream, 0) < sent // 2:
            wire.pump()
        wire.data(stream, b"more", end=True)
        assert body(service, call) == b"more"
        service.remote.respond(call, 200, [], b"done")
        assert wire.answer(stream).data == b"done"


def test_a_call_that_ends_while_it_is_paused_keeps_nothing_of_its_connection(
    service: Service,
) -> None:
    """What its window lost goes back to the connection, however often that happens."""
    size = Limits().stream_queued_bytes_max - 1024
    with Wire(service.address) as wire:
        wire.ping()  # its settings, which allow so much at once, have arrived
        for _ in range(2 * Limits().connection_queued_bytes_max // size):
            stream = wire.open(HTTP2)
            call = opened(service)[0]
            service.remote.pause(call)
            wire.data(stream, bytes(size))
            received = 0
            while received < size:
                received += len(service.next_event(EdgeEventKind.MESSAGE, call).detail)
            service.remote.respond(call, 200, [], b"done")
            assert wire.answer(stream).data == b"done"
            wire.reset(stream)
        while wire.windows.get(0, 0) < Limits().connection_queued_bytes_max:
            wire.pump()


# Answers before the body has ended.


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_while_the_client_still_uploads(service: Service, *, streamed: bool) -> None:
    with plain(service) as client:
        for number in range(3):
            client.send(POST + b"content-length: 200000\r\n\r\n" + bytes(50_000))
            call = opened(service)[0]
            if streamed:
                service.remote.respond(call, 400, [], None)
                service.remote.send([(call, b"no")])
                service.remote.finish(call, OK)
            else:
                service.remote.respond(call, 400, [], b"no")
            reply = client.reply()
            assert (reply.status, reply.body) == (400, b"no"), number
            # The rest is thrown away, and the connection serves the next request.
            client.send(bytes(150_000))
            while not service.events.empty():
                assert service.next_event(EdgeEventKind.MESSAGE, call)
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.reply().status == 200


@pytest.mark.parametrize("length", [0, 1, 100_000, 250_000, 300_000, 3_000_000])
def test_an_answer_before_a_body_keeps_the_connection_or_says_that_it_does_not(
    service: Service, etcd: str, length: int
) -> None:
    """Asks a real etcd for the same."""
    head = POST + b"content-length: %d\r\n\r\n" % length
    again = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
    with plain(service) as client, connect(etcd) as other:
        # Its server reads a short body first.
        other.sendall(head + (bytes(length) if length < 256 * 1024 else b""))
        theirs = Reply(other.makefile("rb"))
        client.send(head)
        service.remote.respond(opened(service)[0], 404, [], b"no")
        ours = client.reply()
        assert (ours.status, ours.body) == (404, b"no")
        assert ours.headers.get("connection") == theirs.headers.get("connection")
        if "connection" in ours.headers:
            client.send(bytes(length // 2))
            assert client.file.read() == b""
        else:
            client.send(bytes(length) + again)
            assert client.reply().status == 200


def test_an_answer_before_a_body_of_unknown_length_is_the_last(service: Service) -> None:
    with plain(service) as client:
        client.send(CHUNKED)
        service.remote.respond(opened(service)[0], 404, [], b"no")
        assert client.reply().headers["connection"] == "close"
        client.send(b"2\r\nno\r\n0\r\n\r\n")
        assert client.file.read() == b""
    with plain(service) as client:
        client.send(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")
        call = opened(service)[0]
        assert body(service, call) == b"ok"
        service.remote.respond(call, 200, [], b"ok")
        assert "connection" not in client.reply().headers


def test_an_answer_to_a_paused_upload(service: Service) -> None:
    with plain(service) as client:
        client.send(POST + b"content-length: 100000\r\n\r\n")
        call = opened(service)[0]
        service.remote.pause(call)
        client.send(bytes(100_000))
        service.remote.respond(call, 400, [], b"no")
        assert client.reply().status == 400
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.reply().status == 200


def test_an_upload_that_goes_on_for_ever_is_cut_off(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with connect(address) as connection:
        connection.sendall(CHUNKED)
        _, events = poll_until(edge, lambda _, events: len(events) >= 1)
        edge.respond(events[0][1], 400, [], b"no")
        stop = threading.Event()

        def upload() -> None:
            try:
                while not stop.is_set():
                    connection.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            except ConnectionError:
                pass

        sender = threading.Thread(target=upload)
        sender.start()
        try:
            turn_until(edge, lambda: edge.counters()["connections_open"] == 0)
        finally:
            stop.set()
            sender.join(WAIT_SECONDS)


def test_an_unfinished_upload_that_was_answered_does_not_delay_the_end(service: Service) -> None:
    with plain(service) as answered, plain(service) as draining:
        for client in (answered, draining):
            client.send(POST + b"content-length: 1000\r\n\r\n")
        first, second = opened(service)[0], opened(service)[0]
        service.remote.respond(first, 400, [], b"no")
        assert answered.reply().status == 400
        service.remote.drain()
        service.remote.respond(second, 400, [], b"no")
        assert draining.reply().status == 400
        assert answered.file.read() == draining.file.read() == b""
    service.until(lambda edge: edge.is_drained())


# Answers without a body.


def asked(service: Service, protocol: str, method: str, status: int, *, streamed: bool) -> None:
    """Answer a request with a body, which may not leave; the connection goes on."""

    def answer() -> None:
        call = opened(service)[0]
        assert body(service, call) == b""
        if streamed:
            service.remote.respond(call, status, [], None)
            for _ in range(3):
                service.remote.send([(call, bytes(100_000))])
            service.until(lambda edge: edge.pending_bytes(call) == 0)
            service.remote.finish(call, OK)
        else:
            service.remote.respond(call, status, [], b"a body")

    if protocol == "http1":
        with plain(service) as client:
            client.send(method.encode() + b" /held HTTP/1.1\r\nhost: x\r\n\r\n")
            answer()
            reply = client.reply(head=True)
            assert reply.status == status
            length = reply.headers.get("content-length")
            assert length == (None if streamed or status != 200 else "6")
            client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.reply().status == 200
        return
    with Wire(service.address) as wire:
        stream = wire.open([(":method", method), *HTTP2[1:]], end=True)
        answer()
        answered = wire.answer(stream)
        assert (answered.headers[":status"], answered.data) == (str(status), b"")
        length = answered.headers.get("content-length")
        assert length == (None if streamed or status != 200 else "6")
        assert answered.ended


@pytest.mark.parametrize("protocol", ["http1", "http2"])
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
@pytest.mark.parametrize("streamed", [False, True])
def test_answers_without_a_body(
    service: Service, protocol: str, method: str, status: int, *, streamed: bool
) -> None:
    asked(service, protocol, method, status, streamed=streamed)
    # Pieces of a body that nobody gets do not hold their sender up.
    while not service.events.empty():
        service.next_event(EdgeEventKind.WRITABLE)


# What passes as it is.

TARGETS = st.text(st.sampled_from("abc/%20.~!$&'()*+,;=:@?"), max_size=20)


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_targets_pass_as_they_are(service: Service, protocol: str) -> None:
    def one(method: str, target: str) -> None:
        if protocol == "http1":
            with plain(service) as client:
                client.send(f"{method} {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                call, _, got_method, got_target, _ = opened(service)
                assert body(service, call) == b""
                service.remote.respond(call, 200, [], b"")
                assert client.reply().status == 200
        else:
            with Wire(service.address) as wire:
                headers = [(":method", method), (":scheme", "http"), (":path", target)]
                stream = wire.open([*headers, (":authority", "x")], end=True)
                call, _, got_method, got_target, _ = opened(service)
                assert body(service, call) == b""
                service.remote.respond(call, 200, [], b"")
                assert wire.answer(stream).headers[":status"] == "200"
        assert (got_method, got_target) == (method, target)

    @settings(max_examples=40)
    @given(TARGETS)
    def holds(target: str) -> None:
        one("POST", "/held" + target)

    holds()
    for target in ("//held//x", "/held/../y", "/held/" + quote("\xe9/ "), "/held?a=b?c&%zz"):
        one("POST", target)
    for method in ("PATCH", "BREW", "M-SEARCH", "get"):
        one(method, "/held")


@pytest.mark.parametrize("answer", [200, 404])
def test_expect_continue(service: Service, answer: int) -> None:
    with plain(service) as client:
        client.send(POST + b"expect: 100-continue\r\ncontent-length: 4\r\n\r\n")
        call = opened(service)[0]
        assert client.reply().status == 100
        if answer == 404:
            service.remote.respond(call, 404, [], b"")
            assert client.reply().status == 404
            client.send(b"body")
        else:
            client.send(b"body")
            assert body(service, call) == b"body"
            service.remote.respond(call, 200, [], b"")
            assert client.reply().status == 200
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.reply().status == 200
