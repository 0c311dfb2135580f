"""Status 101 turns a connection over to the loop: raw bytes both ways, as WebSocket needs them."""

import ssl
from pathlib import Path

import pytest

from kvorum.network.edge import EdgeEventKind, Limits, TlsSettings
from tests.certificates import Authority, trusting
from tests.network.edge.conftest import OpenService
from tests.network.edge.plain import Plain, opened, plain
from tests.network.edge.service import OK, WAIT_SECONDS, Service

OFFER = (
    b"GET /held HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
ANSWER = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", "x")]
# More than the sockets between both sides hold, less than a client may leave unread.
UNREAD_BYTES = 15 << 20


class Place:
    """A service, and how to connect to it."""

    def __init__(self, service: Service, tls: ssl.SSLContext | None) -> None:
        self.service = service
        self.tls = tls


@pytest.fixture(params=["plain", "tls"])
def place(request: pytest.FixtureRequest, open_service: OpenService, tmp_path: Path) -> Place:
    if request.param == "plain":
        return Place(open_service(), None)
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    service = open_service(tls=TlsSettings(str(pair.cert), str(pair.key)))
    return Place(service, trusting(authority.cert))


def upgraded(service: Service, client: Plain) -> int:
    """Turn a connection over; return its call."""
    client.send(OFFER)
    call, _, method, _, headers = opened(service)
    assert (method, headers["upgrade"]) == ("GET", "websocket")
    service.next_event(EdgeEventKind.HALF_CLOSED, call)
    service.remote.respond(call, 101, ANSWER, None)
    reply = client.reply()
    assert (reply.status, reply.headers["upgrade"]) == (101, "websocket")
    assert reply.headers["connection"].lower() == "upgrade"
    assert reply.headers["sec-websocket-accept"] == "x"
    assert "content-length" not in reply.headers
    assert "transfer-encoding" not in reply.headers
    return call


def raw(service: Service, call: int, size: int) -> bytes:
    """Take raw bytes from a client, in whatever pieces they come."""
    data = b""
    while len(data) < size:
        data += service.next_event(EdgeEventKind.MESSAGE, call).detail
    return data


def test_raw_bytes_both_ways(place: Place) -> None:
    with plain(place.service, place.tls) as client:
        call = upgraded(place.service, client)
        every = bytes(range(256)) * 300
        client.send(every)
        assert raw(place.service, call, len(every)) == every
        place.service.remote.send([(call, b"\x81\x05hello"), (call, every)])
        assert client.file.read(7 + len(every)) == b"\x81\x05hello" + every
        place.service.remote.finish(call, OK)
        assert client.file.read() == b""


def test_what_came_with_the_head_is_not_lost(place: Place) -> None:
    service = place.service
    with plain(service, place.tls) as client:
        client.send(OFFER + b"\x81\x03one")
        call = opened(service)[0]
        service.next_event(EdgeEventKind.HALF_CLOSED, call)
        client.send(b"\x81\x03two")
        service.remote.respond(call, 101, ANSWER, None)
        assert client.reply().status == 101
        assert raw(service, call, 10) == b"\x81\x03one\x81\x03two"


def test_an_offer_that_is_not_taken(place: Place) -> None:
    with plain(place.service, place.tls) as client:
        for path in (b"/echo", b"/echo/again"):
            client.send(OFFER.replace(b"/held", path))
            assert client.reply().status == 200


@pytest.mark.parametrize("way", ["close", "shutdown"])
def test_the_client_goes_away(place: Place, way: str) -> None:
    service = place.service
    with plain(service, place.tls) as client:
        call = upgraded(service, client)
        client.send(b"last")
        if way == "shutdown":
            client.socket.shutdown(1)
            assert raw(service, call, 4) == b"last"
            service.next_event(EdgeEventKind.ENDED, call)
    if way == "close":
        assert raw(service, call, 4) == b"last"
        service.next_event(EdgeEventKind.ENDED, call)
    service.remote.send([(call, b"late")])
    assert service.remote.pending_bytes(call) == 0
    service.until(lambda edge: edge.counters()["connections_open"] == 0)


def test_everything_sent_leaves_before_the_end(place: Place) -> None:
    service = place.service
    content = bytes(range(256)) * (UNREAD_BYTES // 256)
    with plain(service, place.tls) as client:
        call = upgraded(service, client)
        service.remote.send([(call, content)])
        service.remote.finish(call, OK)
        # What the client still says does not matter, nor whether it says no more.
        client.send(b"unheard")
        if place.tls is None:
            client.socket.shutdown(1)
        assert client.file.read() == content
    # What was on its way when the loop finished may be told; nothing else is.
    while not service.events.empty():
        service.next_event(EdgeEventKind.MESSAGE, call)


def test_a_slow_reader_is_seen(place: Place) -> None:
    service = place.service
    limit = Limits().stream_writable_bytes
    with plain(service, place.tls) as client:
        call = upgraded(service, client)
        service.remote.send([(call, bytes(UNREAD_BYTES // 4))] * 4)
        assert service.remote.pending_bytes(call) > limit
        # It may speak all the while.
        client.send(b"hello")
        assert raw(service, call, 5) == b"hello"
        assert client.file.read(UNREAD_BYTES) == bytes(UNREAD_BYTES)
        service.next_event(EdgeEventKind.WRITABLE, call)
        service.until(lambda edge: edge.pending_bytes(call) == 0)
        service.remote.send([(call, b"more")])
        assert client.file.read(4) == b"more"


def test_a_paused_client_is_not_read(open_service: OpenService) -> None:
    service = open_service(Limits(stream_queued_bytes_max=64 * 1024))
    with plain(service) as client:
        call = upgraded(service, client)
        service.remote.pause(call)
        before = service.remote.counters()["bytes_read"]
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.sendall(bytes(UNREAD_BYTES))
        assert service.remote.counters()["bytes_read"] - before < 1 << 20
        client.socket.settimeout(WAIT_SECONDS)
        service.remote.resume(call)
        assert not any(raw(service, call, 1 << 20))


def test_drain_waits_for_upgraded_connections_as_for_streams(place: Place) -> None:
    service = place.service
    with (
        plain(service, place.tls) as client,
        plain(service, place.tls) as reader,
    ):
        call = upgraded(service, client)
        reader.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        stream = opened(service)[0]
        service.next_event(EdgeEventKind.HALF_CLOSED, stream)
        service.remote.respond(stream, 200, [], None)
        service.remote.drain()
        service.until(lambda edge: edge.is_quiet())
        client.send(b"still here")
        assert raw(service, call, 10) == b"still here"
        assert not service.remote.is_drained()
        service.remote.send([(call, b"bye"), (stream, b"bye")])
        for one in (call, stream):
            service.remote.finish(one, OK)
        assert client.file.read() == b"bye"
        assert reader.reply().body == b"bye"
    service.until(lambda edge: edge.is_drained())
