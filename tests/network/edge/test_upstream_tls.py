"""TLS towards a server: whom we trust, what we show, files that are read again."""

from dataclasses import replace as changed
from pathlib import Path

import pytest

from kvorum.network.edge import TlsSettings
from kvorum.network.edge.upstream import UpstreamTls
from tests.certificates import Authority, replace
from tests.network.edge.caller import Caller
from tests.network.edge.conftest import OpenService
from tests.network.edge.service import ECHO, ECHO_STREAM, Service


class Place:
    """An authority, a server's certificate, and settings of both sides."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ca")
        server = self.authority.issue("server")
        self.plain = TlsSettings(str(server.cert), str(server.key))
        self.mutual = changed(self.plain, client_ca_file=str(self.authority.cert))
        self.trusting = UpstreamTls("127.0.0.1", str(self.authority.cert))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def secured(open_service: OpenService, place: Place) -> Service:
    return open_service(tls=place.plain)


def test_a_server_that_is_who_it_should_be(secured: Service, caller: Caller, place: Place) -> None:
    for name in ("127.0.0.1", "localhost"):
        endpoint = caller.connect(secured.address, changed(place.trusting, server_name=name))
        assert caller.ask(endpoint, ECHO, b"secret") == b"secret"
        long = b"s" * 500_000
        call = caller.open(endpoint, ECHO_STREAM)
        caller.upstream.send([(call, long), (call, long)])
        caller.upstream.half_close(call)
        assert caller.end(call) == (0, "", False)
        assert caller.messages(call) == [long, long]


def test_a_server_of_another_name(secured: Service, caller: Caller, place: Place) -> None:
    other = changed(place.trusting, server_name="other.example")
    assert "certificate" in caller.failure(caller.dial(secured.address, other))
    unverified = changed(other, verify=False)
    assert caller.ask(caller.connect(secured.address, unverified), ECHO, b"x") == b"x"


def test_a_server_of_an_unknown_authority(
    secured: Service, caller: Caller, place: Place, tmp_path: Path
) -> None:
    others = Authority(tmp_path / "others", "others")
    strange = changed(place.trusting, ca_file=str(others.cert))
    assert "certificate" in caller.failure(caller.dial(secured.address, strange))


def test_the_system_s_authorities(
    secured: Service, caller: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(place.authority.cert))
    system = UpstreamTls("localhost")
    assert caller.ask(caller.connect(secured.address, system), ECHO, b"x") == b"x"
    monkeypatch.undo()


def test_a_server_that_asks_for_a_certificate(
    open_service: OpenService, caller: Caller, place: Place
) -> None:
    service = open_service(tls=place.mutual)
    client = place.authority.issue("client")
    shown = changed(place.trusting, cert_file=str(client.cert), key_file=str(client.key))
    assert caller.ask(caller.connect(service.address, shown), ECHO, b"x") == b"x"
    assert caller.failure(caller.dial(service.address, place.trusting))


def test_files_are_read_for_every_connection(
    open_service: OpenService, caller: Caller, place: Place, tmp_path: Path
) -> None:
    service = open_service(tls=place.mutual)
    client = place.authority.issue("client")
    good = client.cert.read_bytes()
    shown = changed(place.trusting, cert_file=str(client.cert), key_file=str(client.key))
    replace(client.cert, b"nothing of use")
    assert str(client.cert) in caller.failure(caller.dial(service.address, shown))
    replace(client.cert, good)
    assert caller.ask(caller.connect(service.address, shown), ECHO, b"x") == b"x"
    missing = changed(place.trusting, ca_file=str(tmp_path / "none.pem"))
    assert "none.pem" in caller.failure(caller.dial(service.address, missing))


def test_one_side_speaks_tls_and_the_other_does_not(
    open_service: OpenService, caller: Caller, place: Place
) -> None:
    plain, secured = open_service(), open_service(tls=place.plain)
    assert caller.failure(caller.dial(plain.address, place.trusting))
    assert caller.failure(caller.dial(secured.address))
