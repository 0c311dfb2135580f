"""Requests to other members, against both edges and a real etcd's peer port."""

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvorum.network.dialer import links
from kvorum.network.dialer.interface import WRITABLE_BYTES, DialEvent
from kvorum.network.edge import EdgeEventKind, Limits, TlsSettings
from kvorum.network.tls.credentials import DialSettings
from tests.certificates import Authority, Pair
from tests.etcd import running_etcd
from tests.network.dialer.dialing import (
    COMPLETED,
    FAILED,
    PIECE,
    REFUSED,
    RESPONDED,
    WRITABLE,
    Dialing,
)
from tests.network.edge.conftest import OpenService, edge_kind, open_service
from tests.network.edge.service import OK, Service
from tests.ports import held_port
from tests.waiting import WAIT_SECONDS_MAX

__all__ = ["edge_kind", "open_service"]

OpenDialing = Callable[..., Dialing]


@pytest.fixture
def open_dialing() -> Iterator[OpenDialing]:
    opened = []

    def open_it(
        settings: DialSettings | None = None,
        seconds: float = WAIT_SECONDS_MAX,
        local_address: str = "",
    ) -> Dialing:
        opened.append(Dialing(settings or DialSettings(), seconds, local_address))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


@pytest.fixture
def dialing(open_dialing: OpenDialing) -> Dialing:
    return open_dialing()


@contextmanager
def scripted(*script: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Serve connections one after the other; to each request on one say the next, then close.

    Yields the URL, and what was read.
    """
    read: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS_MAX)

        def serve() -> None:
            for answers in script:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(WAIT_SECONDS_MAX)
                    for answer in answers:
                        read.append(connection.recv(65536))
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", read
        thread.join(WAIT_SECONDS_MAX)
        assert not thread.is_alive()


def counter(service: Service, name: str) -> int:
    return service.remote.counters()[name]


# Requests and answers.


def test_requests_and_answers(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service()
    url = f"http://{service.address}"
    number = dialing.dialer.request(url, "POST", "/echo?a=b", [("x-server-from", "abc")], b"hello")
    status, headers, body = dialing.answer(number)
    assert (status, body) == (200, b"hello")
    assert ("content-type", "text/plain") in headers
    # A GET with a body, and what the other side hears.
    number = dialing.dialer.request(url, "GET", "/members/hashkv", [("X-Mixed", "Yes")], b"{}")
    dialing.until(lambda: service.events.qsize() == 3)
    opened = service.next_event(EdgeEventKind.HTTP_OPENED)
    _, method, target, heard = opened.detail
    assert (method, target) == ("GET", "/members/hashkv")
    assert dict(heard)["x-mixed"] == "Yes"
    assert dict(heard)["host"] == service.address
    assert service.next_event(EdgeEventKind.MESSAGE).detail == b"{}"
    service.remote.respond(opened.call, 412, [("x-etcd-cluster-id", "1f")], b"cluster ID mismatch")
    status, headers, body = dialing.answer(number)
    assert (status, body) == (412, b"cluster ID mismatch")
    assert ("x-etcd-cluster-id", "1f") in headers
    # All of it on one connection.
    assert counter(service, "connections_accepted") == 1


@pytest.mark.parametrize("given", ["", "127.0.0.2"])
def test_connections_come_from_the_local_address(open_dialing: OpenDialing, given: str) -> None:
    dialing = open_dialing(local_address=given)
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialing.dialer.request(f"http://127.0.0.1:{server.getsockname()[1]}", "GET", "/", [], b"")
        server.setblocking(False)
        connection, (host, _) = dialing.run(dialing.loop.sock_accept(server))
        connection.close()
    assert host == (given or "127.0.0.1")


def test_a_stream_comes_as_it_is_sent(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service()
    number = dialing.dialer.request(
        f"http://{service.address}", "GET", "/raft/stream/message/1", [], b""
    )
    dialing.until(lambda: not service.events.empty())
    call = service.next_event(EdgeEventKind.HTTP_OPENED).call
    service.remote.respond(call, 200, [("x-server-version", "3.7.1")], None)
    kind, _, (status, headers) = dialing.next(number)
    assert (kind, status) == (RESPONDED, 200)
    assert ("x-server-version", "3.7.1") in headers
    for piece in (b"a", b"b" * 100_000, b"c"):
        service.remote.send([(call, piece)])
        got = b""
        while len(got) < len(piece):
            event = dialing.next(number)
            assert event.kind == PIECE
            got += event.detail
        assert got == piece
    service.remote.finish(call, OK)
    assert dialing.next(number).kind == COMPLETED


def test_a_stream_that_breaks_off(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service()
    url = f"http://{service.address}"
    number = dialing.dialer.request(url, "GET", "/raft/stream/message/1", [], b"")
    dialing.until(lambda: not service.events.empty())
    call = service.next_event(EdgeEventKind.HTTP_OPENED).call
    service.remote.respond(call, 200, [], None)
    assert dialing.next(number).kind == RESPONDED
    service.stop_edge()
    assert dialing.failure(number).startswith(f"{url}: ")


def test_an_upload_is_held_back(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service(Limits(connection_queued_bytes_max=1 << 20))
    dialer = dialing.dialer
    number = dialer.request(f"http://{service.address}", "POST", "/raft/snapshot", [], None)
    assert dialer.pending_bytes(number) == 0
    piece = os.urandom(64 * 1024)
    total = 0
    while dialer.pending_bytes(number) < WRITABLE_BYTES:
        dialer.send(number, piece)
        total += len(piece)
    while total < 50 << 20:
        assert dialing.next(number) == DialEvent(WRITABLE, number, None)
        assert dialer.pending_bytes(number) < WRITABLE_BYTES
        while dialer.pending_bytes(number) < WRITABLE_BYTES:
            dialer.send(number, piece)
            total += len(piece)
    dialer.finish(number)
    call = service.next_event(EdgeEventKind.HTTP_OPENED).call
    received = 0
    while (event := take(dialing, service)).kind == EdgeEventKind.MESSAGE:
        received += len(event.detail)
    assert event.kind == EdgeEventKind.HALF_CLOSED
    assert received == total
    service.remote.respond(call, 204, [], b"")
    assert dialing.answer(number)[0] == 204
    assert dialer.pending_bytes(number) == 0


def take(dialing: Dialing, service: Service) -> Any:
    dialing.until(lambda: not service.events.empty())
    return service.events.get()


def test_an_upload_that_is_refused_halfway(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service()
    dialer = dialing.dialer
    number = dialer.request(f"http://{service.address}", "POST", "/raft/snapshot", [], None)
    dialer.send(number, b"abc")
    call = take(dialing, service).call
    assert take(dialing, service).detail == b"abc"
    service.remote.respond(call, 412, [], b"no")
    status, _, body = dialing.answer(number)
    assert (status, body) == (412, b"no")
    # An event that comes later does no harm.
    dialer.send(number, b"def")
    dialer.finish(number)
    service.until(lambda edge: edge.counters()["connections_open"] == 0)


def test_what_is_not_polled_is_not_read(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service()
    dialer = dialing.dialer
    number = dialer.request(f"http://{service.address}", "GET", "/much", [], b"")
    call = take(dialing, service).call
    service.remote.respond(call, 200, [], None)
    assert dialing.next(number).kind == RESPONDED
    size = 40 << 20
    service.remote.send([(call, bytes(size))])
    dialing.until(lambda: len(dialer._held) > 0)
    # Another answer arrives whole meanwhile; had the edge read on, it would have read this one,
    # too.
    other = dialer.request(f"http://{service.address}", "GET", "/echo", [], b"")
    dialing.until(lambda: (COMPLETED, other) in [event[:2] for event in dialer._events])
    pieces = [event for event in dialer._events if event.kind == PIECE and event.number == number]
    waiting = sum(len(event.detail) for event in pieces)
    assert links.UNPOLLED_BYTES_MAX < waiting < 2 * links.UNPOLLED_BYTES_MAX
    service.remote.finish(call, OK)
    received = 0
    while (event := dialing.next(number)).kind == PIECE:
        received += len(event.detail)
    assert event.kind == COMPLETED and received == size


# Connections that are kept.


def test_kept_connections_are_bounded_and_closed_in_time(
    dialing: Dialing, open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE_SECONDS_MAX", WAIT_SECONDS_MAX)
    service = open_service()
    dialer = dialing.dialer
    numbers = [
        dialer.request(f"http://{service.address}", "GET", f"/{index}", [], b"")
        for index in range(10)
    ]
    for _ in range(20):
        event = take(dialing, service)
        if event.kind == EdgeEventKind.HTTP_OPENED:
            service.remote.respond(event.call, 200, [], b"")
    for number in numbers:
        assert dialing.answer(number)[0] == 200
    service.until(lambda edge: edge.counters()["connections_open"] <= 4)
    assert counter(service, "connections_accepted") == 10
    # Those that are kept are used again, all at once, and then kept for a moment only.
    monkeypatch.setattr(links, "IDLE_SECONDS_MAX", 0.0)
    numbers = [
        dialer.request(f"http://{service.address}", "GET", "/echo", [], b"") for _ in range(4)
    ]
    for number in numbers:
        assert dialing.answer(number)[0] == 200
    assert counter(service, "connections_accepted") == 10
    dialing.until(lambda: not dialer._idle)
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    assert dialing.get(f"http://{service.address}", "/echo")[0] == 200
    assert counter(service, "connections_accepted") == 11


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_a_get_on_a_connection_that_was_closed_is_sent_again(dialing: Dialing) -> None:
    with scripted([ANSWER, b""], [ANSWER]) as (url, read):
        assert dialing.get(url, "/first")[2] == b"ok"
        assert dialing.get(url, "/second")[2] == b"ok"
    assert [line.split()[1] for line in read] == [b"/first", b"/second", b"/second"]


def test_a_post_on_a_connection_that_was_closed_is_not(dialing: Dialing) -> None:
    with scripted([ANSWER, b""]) as (url, read):
        assert dialing.get(url, "/first")[2] == b"ok"
        number = dialing.dialer.request(url, "POST", "/second", [], b"raft")
        assert dialing.failure(number) == f"{url}: the connection was closed"
    assert [line.split()[1] for line in read] == [b"/first", b"/second"]


def test_a_get_is_not_sent_a_third_time(dialing: Dialing) -> None:
    with scripted([ANSWER, b""], [b""]) as (url, read):
        assert dialing.get(url, "/first")[2] == b"ok"
        number = dialing.dialer.request(url, "GET", "/second", [], b"")
        assert dialing.failure(number) == f"{url}: the connection was closed"
    assert len(read) == 3


# What goes wrong.


def test_nobody_there(dialing: Dialing, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        number = dialing.dialer.request(url, "GET", "/", [], b"")
        assert dialing.next(number) == (REFUSED, number, f"{url}: connection refused")
    url = f"unix://{tmp_path}/missing"
    number = dialing.dialer.request(url, "POST", "/", [], None)
    dialing.dialer.send(number, b"x")
    assert dialing.dialer.pending_bytes(number) == 6
    assert dialing.failure(number) == f"{url}: no such file or directory"
    dialing.dialer.send(number, b"x")
    dialing.dialer.finish(number)
    url = "http://no.such.host.invalid:1"
    assert dialing.failure(dialing.dialer.request(url, "GET", "/", [], b"")).startswith(f"{url}: ")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "127.0.0.1:1",
            "http://127.0.0.1",
            "http://127.0.0.1:99999",
            "ftp://a:1",
            "https://:0",
        ),
        # What data of members may hold, and nobody can dial.
        *("http://\u00e9:1", "http://%C3%A9:1", "http://%ff:1", "http://\ud800:1", "http://a\0b:1"),
        *("http://a b:1", "http://a\r\nb:1", "http://[:1", "http://[é]:1", "http://a:\u0661"),
        *("http://a:" + "9" * 5000, "unix://\u00e9", "unix://a%00b", "unix://" + "a" * 500),
        *("http://" + "a" * 300 + ":1", "http://a..b:1", "https://\u00e9:1", "http://a:1?\u00e9"),
    ],
)
def test_what_is_no_url(dialing: Dialing, url: str) -> None:
    assert dialing.failure(dialing.dialer.request(url, "GET", "/", [], b"")), url
    assert not dialing.errors


def test_an_error_that_nobody_foresaw_ends_one_request(
    dialing: Dialing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slips(*_: object) -> None:
        raise KeyError("unforeseen")

    with scripted([b"HTTP/1.1 200 OK\r\n\r\n"], [b"HTTP/1.1 204 No Content\r\n\r\n"]) as (url, _):
        for target in ("feed", "write"):
            with monkeypatch.context() as planted:
                planted.setattr(f"kvorum.network.dialer.links.Head.{target}", slips)
                number = dialing.dialer.request(url, "GET", "/", [], b"")
                assert "unforeseen KeyError" in dialing.failure(number)
            if target == "feed":
                number = dialing.dialer.request(url, "GET", "/", [], b"")
                assert dialing.next(number).kind == RESPONDED
    with monkeypatch.context() as planted:
        planted.setattr("kvorum.network.dialer.dialer.address_of", slips)
        number = dialing.dialer.request("http://127.0.0.1:1", "GET", "/", [], b"")
        assert "unforeseen KeyError" in dialing.failure(number)
    assert not dialing.errors


def test_a_connection_takes_too_long(open_dialing: OpenDialing) -> None:
    dialing = open_dialing(DialSettings(insecure=True), 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        # It takes the connection and never answers the handshake.
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        number = dialing.dialer.request(url, "GET", "/", [], b"")
        assert dialing.failure(number) == f"{url}: no connection within 0.05 s"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 200", "the connection was closed"),
        (b"SSH-2.0-x\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\na: " + b"x" * (1 << 20), "buffer too long"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n", "is no size of a chunk"),
    ],
)
def test_bad_answers(dialing: Dialing, answer: bytes, text: str) -> None:
    with scripted([answer]) as (url, _):
        number = dialing.dialer.request(url, "GET", "/", [], b"")
        while (event := dialing.next(number)).kind in (RESPONDED, PIECE):
            pass
        assert event.kind == FAILED
        assert event.detail.startswith(f"{url}: ")
        # How a connection that is closed with unread bytes ends depends on which side is faster.
        assert text in event.detail or "connection reset" in event.detail


def test_an_answer_until_the_connection_ends(dialing: Dialing) -> None:
    with scripted([b"HTTP/1.0 200 OK\r\n\r\nabc"]) as (url, _):
        assert dialing.get(url, "/")[2] == b"abc"
    assert not dialing.dialer._idle


def test_nothing_is_told_of_what_was_given_up(dialing: Dialing, open_service: OpenService) -> None:
    service = open_service()
    dialer = dialing.dialer
    url = f"http://{service.address}"
    # Before there is a connection, before the answer, and with an answer that nobody has polled.
    dialer.cancel(dialer.request(url, "GET", "/echo", [], b""))
    number = dialer.request(url, "GET", "/held", [], b"")
    assert take(dialing, service).kind == EdgeEventKind.HTTP_OPENED
    dialer.cancel(number)
    assert take(dialing, service).kind == EdgeEventKind.HALF_CLOSED
    assert take(dialing, service).kind == EdgeEventKind.ENDED
    number = dialer.request(url, "GET", "/echo", [], b"")
    dialing.until(lambda: len(dialer._events) >= 2)
    dialer.cancel(number)
    dialer.cancel(number)
    assert dialer.poll() == []
    assert dialing.get(url, "/echo")[0] == 200


# Other ways to a member.


def test_unix_sockets(dialing: Dialing, open_service: OpenService, tmp_path: Path) -> None:
    open_service(None, f"unix:{tmp_path}/socket")
    assert dialing.get(f"unix://{tmp_path}/socket", "/echo")[0] == 200


UNVERIFIED = "tls: failed to verify certificate: x509: "


class TlsFixture:
    """Certificates of a member and of an authority, and a stranger's."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.member = self.authority.issue("member")
        self.other = Authority(directory / "other", "other")

    def listener(self, pair: Pair | None = None, **more: Any) -> TlsSettings:
        pair = pair or self.member
        return TlsSettings(
            str(pair.cert), str(pair.key), client_ca_file=str(self.authority.cert), **more
        )

    def settings(self, pair: Pair | None = None, **more: Any) -> DialSettings:
        pair = pair or self.member
        return DialSettings(
            str(pair.cert), str(pair.key), **{"ca_file": str(self.authority.cert), **more}
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> TlsFixture:
    return TlsFixture(tmp_path_factory.mktemp("certificates"))


def test_a_member_with_the_name_of_its_authority(
    place: TlsFixture, open_dialing: OpenDialing, open_service: OpenService
) -> None:
    namesake = place.authority.issue("authority", file="namesake")
    service = open_service(tls=place.listener(namesake))
    url = f"https://{service.address}"
    one = open_dialing(place.settings(namesake))
    assert one.get(url, "/echo")[0] == 200
    assert counter(service, "tls_handshakes_failed") == 1
    # Then it is known.
    one.dialer.cancel(one.dialer.request(url, "GET", "/held", [], b""))
    assert one.get(url, "/echo")[0] == 200
    assert counter(service, "tls_handshakes_failed") == 1
    for settings in (
        place.settings(server_name="else"),
        place.settings(ca_file=str(place.other.cert)),
        place.settings(allowed_names=("x",)),
    ):
        other = open_dialing(settings)
        assert other.failure(other.dialer.request(url, "GET", "/echo", [], b""))
    impostor = Authority(place.authority.cert.parent / "impostor").issue("authority")
    foreign = open_service(tls=place.listener(impostor))
    said = one.failure(one.dialer.request(f"https://{foreign.address}", "GET", "/echo", [], b""))
    assert "tls: " in said


@pytest.mark.parametrize("version", ["TLS1.2", "TLS1.3"])
def test_certificates(
    place: TlsFixture, open_dialing: OpenDialing, open_service: OpenService, version: str
) -> None:
    service = open_service(tls=place.listener(version_max=version))
    url = f"https://{service.address}"
    stranger = place.other.issue("stranger")
    well = open_dialing(place.settings())
    assert well.get(url, "/echo")[0] == 200
    number = well.dialer.request(url, "POST", "/echo", [], bytes(1 << 20))
    assert well.answer(number)[2] == bytes(1 << 20)
    assert counter(service, "connections_accepted") == 1
    cases: dict[str, tuple[DialSettings, str]] = {
        "another authority": (
            place.settings(ca_file=str(place.other.cert)),
            f"{UNVERIFIED}certificate signed by unknown authority",
        ),
        "this machine's authorities": (
            place.settings(ca_file=""),
            f"{UNVERIFIED}certificate signed by unknown authority",
        ),
        "another name": (place.settings(server_name="else"), f"{UNVERIFIED}Hostname mismatch"),
        "a stranger": (
            place.settings(stranger),
            "remote error: tls: unknown certificate authority",
        ),
        "no certificate": (DialSettings(ca_file=str(place.authority.cert)), ""),
        "no file": (place.settings(ca_file="/missing"), "/missing: No such file"),
        "a name that is not allowed": (
            place.settings(allowed_names=("x",)),
            "client certificate authentication failed: the common name 'member' is not allowed",
        ),
        "a host that is not allowed": (
            place.settings(allowed_hostnames=("x",)),
            "client certificate authentication failed: it is for none of the allowed host names",
        ),
        "too new": (place.settings(version_min="TLS1.3"), ""),
    }
    if version == "TLS1.3":
        del cases["too new"]
    for case, (settings, text) in cases.items():
        one = open_dialing(settings)
        said = one.failure(one.dialer.request(url, "GET", "/echo", [], b""))
        assert said.startswith(f"{url}: {text}"), case
    for settings in (
        place.settings(server_name="localhost"),
        place.settings(allowed_names=("x", "member")),
        place.settings(allowed_hostnames=("x", "localhost")),
        place.settings(insecure=True, ca_file="", server_name="x"),
    ):
        assert open_dialing(settings).get(url, "/echo")[0] == 200


@pytest.mark.parametrize("version", ["TLS1.2", "TLS1.3"])
def test_two_members_that_refuse_each_other(
    place: TlsFixture,
    open_dialing: OpenDialing,
    open_service: OpenService,
    edge_kind: str,
    version: str,
) -> None:
    tls = place.listener(version_max=version, allowed_names=("somebody",))
    url = f"https://{open_service(tls=tls).address}"
    one = open_dialing(place.settings(allowed_names=("somebody else",)))
    said = one.failure(one.dialer.request(url, "GET", "/echo", [], b""))
    ours = "client certificate authentication failed: the common name 'member' is not allowed"
    theirs = "remote error: tls: bad certificate"
    if edge_kind == "python":
        # Python's ssl cannot send an alert for a name, so the server just closes.
        assert said == f"{url}: {ours}"
    elif version == "TLS1.2":
        # The server's verdict is a part of the handshake, and so comes first.
        assert said == f"{url}: {theirs}"
    else:
        assert said == f"{url}: {ours}; {theirs}"


def test_tls_over_unix_sockets(
    place: TlsFixture, open_dialing: OpenDialing, open_service: OpenService, tmp_path: Path
) -> None:
    open_service(None, f"unix:{tmp_path}/socket", tls=place.listener())
    settings = place.settings(server_name="localhost")
    assert open_dialing(settings).get(f"unixs://{tmp_path}/socket", "/echo")[0] == 200


def test_http2_is_not_offered(place: TlsFixture, open_dialing: OpenDialing) -> None:
    offered: list[Any] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place.member.cert, place.member.key)
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS_MAX)

        def serve() -> None:
            with context.wrap_socket(server.accept()[0], server_side=True) as connection:
                offered.append(connection.selected_alpn_protocol())
                connection.recv(65536)
                connection.sendall(ANSWER)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert open_dialing(place.settings()).get(url, "/")[2] == b"ok"
        thread.join(WAIT_SECONDS_MAX)
    assert offered == [None]


def test_files_are_read_again(
    open_dialing: OpenDialing, open_service: OpenService, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(links, "IDLE_SECONDS_MAX", 0.0)
    authority = Authority(tmp_path)
    member = authority.issue("member")
    first = authority.issue("first", file="dialer")
    listener = TlsSettings(
        str(member.cert),
        str(member.key),
        client_ca_file=str(authority.cert),
        allowed_names=("second",),
    )
    url = f"https://{open_service(tls=listener).address}"
    dialing = open_dialing(DialSettings(str(first.cert), str(first.key), str(authority.cert)))
    dialing.failure(dialing.dialer.request(url, "GET", "/echo", [], b""))
    authority.issue("second", file="dialer")
    assert dialing.get(url, "/echo")[0] == 200
    first.key.write_text("broken")
    for _ in range(2):
        dialing.until(lambda: not dialing.dialer._idle)
        assert dialing.get(url, "/echo")[0] == 200
    assert len(dialing.warnings) == 1 and str(first.key) in dialing.warnings[0]


# A real etcd.


@pytest.fixture
def peer_port() -> Iterator[int]:
    with held_port() as port:
        yield port


def peer_flags(url: str) -> list[str]:
    return [
        f"--listen-peer-urls={url}",
        f"--initial-advertise-peer-urls={url}",
        f"--initial-cluster=default={url}",
    ]


def check_etcd(dialing: Dialing, url: str) -> None:
    status, _, body = dialing.get(url, "/version")
    assert status == 200 and json.loads(body)["etcdserver"]
    status, headers, body = dialing.get(url, "/members")
    assert status == 200
    cluster = dict(headers)["x-etcd-cluster-id"]
    member = f"{json.loads(body)[0]['id']:x}"
    asked = [
        ("X-Server-From", "1"),
        ("X-Server-Version", "3.5.1"),
        ("X-Min-Cluster-Version", "3.0.0"),
        ("X-Etcd-Cluster-ID", cluster),
        ("X-Raft-To", member),
    ]
    # Nobody it knows, so it is refused; with another cluster, in other words.
    number = dialing.dialer.request(url, "GET", "/raft/stream/message/1", asked, b"")
    assert dialing.answer(number)[0] == 404
    asked[3] = ("X-Etcd-Cluster-ID", "1")
    number = dialing.dialer.request(url, "GET", "/raft/stream/message/1", asked, b"")
    assert dialing.answer(number)[::2] == (412, b"cluster ID mismatch\n")


def test_etcds_peer_port(dialing: Dialing, peer_port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{peer_port}"
    with running_etcd(tmp_path, *peer_flags(url)) as etcd:
        check_etcd(dialing, url)
        # A member that is added is served a stream, and link heartbeats come on it.
        added = etcd.ask("cluster/member/add", peerURLs=["http://127.0.0.1:1"])["member"]
        headers = dict(dialing.get(url, "/members")[1])
        member = int(etcd.ask("maintenance/status")["header"]["member_id"])
        asked = [
            ("X-Server-From", f"{int(added['ID']):x}"),
            ("X-Server-Version", "3.5.1"),
            ("X-Min-Cluster-Version", "3.0.0"),
            ("X-Etcd-Cluster-ID", headers["x-etcd-cluster-id"]),
            ("X-Raft-To", f"{member:x}"),
        ]
        target = f"/raft/stream/message/{int(added['ID']):x}"
        number = dialing.dialer.request(url, "GET", target, asked, b"")
        kind, _, (status, heard) = dialing.next(number)
        assert (kind, status) == (RESPONDED, 200)
        assert "x-server-version" in dict(heard)
        piece = dialing.next(number)
        assert piece.kind == PIECE and int.from_bytes(piece.detail[:8]) > 0
        dialing.dialer.cancel(number)
        # Without a quorum it takes long to end.
        etcd.process.kill()


def test_etcds_peer_port_with_certificates(
    place: TlsFixture, open_dialing: OpenDialing, peer_port: int, tmp_path: Path
) -> None:
    url = f"https://127.0.0.1:{peer_port}"
    flags = [
        f"--peer-cert-file={place.member.cert}",
        f"--peer-key-file={place.member.key}",
        f"--peer-trusted-ca-file={place.authority.cert}",
        "--peer-client-cert-auth",
    ]
    with running_etcd(tmp_path, *peer_flags(url), *flags):
        check_etcd(open_dialing(place.settings()), url)
        for settings in (
            place.settings(place.other.issue("stranger")),
            place.settings(ca_file=str(place.other.cert)),
            DialSettings(ca_file=str(place.authority.cert)),
        ):
            dialing = open_dialing(settings)
            number = dialing.dialer.request(url, "GET", "/version", [], b"")
            assert dialing.failure(number).startswith(f"{url}: ")
