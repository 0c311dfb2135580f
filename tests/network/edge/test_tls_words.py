"""What is said of a handshake that fails: what a real etcd logs for the same client."""

import contextlib
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from pathlib import Path

import pytest

from kvorum.network.edge import TlsSettings
from tests.certificates import Authority, Pair, trusting
from tests.etcd import is_target, running_etcd
from tests.network.edge.conftest import OpenService
from tests.network.edge.wire import connect
from tests.waiting import until

ALERTS = [10, 20, 40, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 70, 71, 80]
ASK = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
Client = Callable[[socket.socket], None]


class Place:
    """Certificates, and the settings of a server with them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.issue("server")
        self.allowed = self.authority.issue("allowed")
        self.revoked = self.authority.issue("allowed", file="revoked")
        self.crl = self.authority.revoke(self.revoked)
        self.settings = TlsSettings(
            str(self.server.cert),
            str(self.server.key),
            client_ca_file=str(self.authority.cert),
            client_crl_file=str(self.crl),
        )
        self.flags = [
            f"--cert-file={self.server.cert}",
            f"--key-file={self.server.key}",
            f"--trusted-ca-file={self.authority.cert}",
            f"--client-crl-file={self.crl}",
            "--client-cert-auth",
        ]

    def clients(self) -> dict[str, Client]:
        issue = self.authority.issue
        other = Authority(self.authority.cert.parent / "other", "other")
        impostor = Authority(self.authority.cert.parent / "impostor")
        shown = {
            "no certificate": None,
            "another authority": other.issue("allowed"),
            "another authority of that name": impostor.issue("allowed"),
            "expired": issue("allowed", file="expired", days=-1),
            "another purpose": issue("allowed", file="purpose", purposes=["server"]),
            "revoked": self.revoked,
        }
        clients: dict[str, Client] = {
            name: showing(self.context(pair)) for name, pair in shown.items()
        }
        clients["no TLS"] = lambda connection: connection.sendall(ASK)
        for number in ALERTS:
            clients[f"alert {number}"] = alerting(self.context(None), number)
        return clients

    def context(self, pair: Pair | None) -> ssl.SSLContext:
        made = trusting(self.authority.cert)
        made.maximum_version = ssl.TLSVersion.TLSv1_2
        if pair is not None:
            made.load_cert_chain(pair.cert, pair.key)
        return made


def showing(context: ssl.SSLContext) -> Client:
    def speak(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_hostname="localhost") as secure:
            secure.sendall(ASK)
            secure.recv(1)

    return speak


def alerting(context: ssl.SSLContext, number: int) -> Client:
    """Return a client that begins a handshake, and breaks it off with this alert."""

    def speak(connection: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        connection.sendall(outgoing.read())
        connection.recv(4096)
        connection.sendall(bytes([0x15, 3, 3, 0, 2, 2, number]))
        connection.recv(65_536)

    return speak


def come(address: str, client: Client) -> str:
    """Be a client until the server closes; return its own address."""
    with connect(address) as connection:
        host, port = connection.getsockname()
        with contextlib.suppress(OSError):
            client(connection)
            while connection.recv(4096):
                pass
        return f"{host}:{port}"


class Log:
    """What a real etcd logs of clients that it rejects."""

    def __init__(self, address: str, path: Path) -> None:
        self.address = address
        self._path = path

    def error(self, peer: str) -> str:
        """Wait for the line about a client."""

        def line_about_it() -> str | None:
            # The last line may not be whole yet.
            lines = self._path.read_text().split("\n")[:-1]
            return next((line for line in lines if f'"{peer}"' in line), None)

        said = json.loads(until(f"{peer} is in the log", line_about_it))
        assert said["msg"] == "rejected connection on client endpoint"
        return str(said["error"])


@pytest.fixture(autouse=True, scope="module")
def _newest() -> None:
    if not is_target():
        pytest.skip("an older Go has other words")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def logging_etcd(directory: Path, place: Place, *more: str) -> Iterator[Log]:
    path = directory / "log"
    flags = [*place.flags, f"--log-outputs=stderr,{path}", *more]
    with running_etcd(directory / "data", *flags, scheme="https") as etcd:
        yield Log(etcd.address, path)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Iterator[dict[str, str]]:
    """What a real etcd says of each client."""
    with logging_etcd(tmp_path_factory.mktemp("etcd"), place) as log:
        yield {
            name: log.error(come(log.address, client)) for name, client in place.clients().items()
        }


def gist(text: str) -> str:
    """Return a text without moments, numbers of certificates, and guesses."""
    text = re.sub(r": current time \S+ is after \S+", "", text)
    return re.sub(r" serial [0-9a-f]+| \(possibly because of .*\)", "", text)


def said(open_service: OpenService, settings: TlsSettings, client: Client) -> str:
    service = open_service(tls=settings)
    come(service.address, client)
    service.until(lambda edge: edge.counters()["tls_handshakes_failed"] == 1)
    ((_, _, _, text, _),) = service.remote.incidents()
    return str(text)


def test_handshakes_that_fail(
    open_service: OpenService, place: Place, theirs: dict[str, str]
) -> None:
    clients = place.clients()
    ours = {name: said(open_service, place.settings, one) for name, one in clients.items()}
    assert {name: gist(text) for name, text in ours.items()} == {
        name: gist(text) for name, text in theirs.items()
    }
    assert ours["alert 42"] == "remote error: tls: bad certificate"


def test_names_that_are_not_allowed(
    open_service: OpenService, place: Place, tmp_path: Path
) -> None:
    client = showing(place.context(place.allowed))
    settings = changed(place.settings, client_crl_file="", allowed_hostnames=("else",))
    with logging_etcd(tmp_path, place, "--client-cert-allowed-hostname=else") as log:
        theirs = log.error(come(log.address, client))
    for one in (settings, changed(settings, allowed_hostnames=(), allowed_names=("else",))):
        assert said(open_service, one, client) == theirs
    assert theirs == "client certificate authentication failed"
