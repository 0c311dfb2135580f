"""Home-made certificates of every kind: who is believed is who etcd believes, never anybody else.

A real etcd judges those that clients show, etcdctl those that servers show.
"""

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvorum.client.credentials import TlsOptions, contexts
from kvorum.client.endpoints import parse_endpoint
from kvorum.network.edge import Limits, TlsSettings
from kvorum.network.edge.upstream import UpstreamTls
from kvorum.network.tls.credentials import DialSettings
from tests.certificates import Authority
from tests.etcd import binary, is_target, running_etcd
from tests.home_made import Shelf, shelve
from tests.network.dialer.dialing import Dialing
from tests.network.edge.caller import Caller
from tests.network.edge.conftest import OpenCaller, OpenService
from tests.network.edge.service import WAIT_SECONDS

pytestmark = pytest.mark.long

# What etcd believes and we do not; docs/divergence.md has the reasons.
WEAK = {"issued with RSA 1024", "of an authority with RSA 1024"}
UNKNOWN_TO_RING = {"issued with P-521", "of an authority with P-521", "issued with SHA-512"}
NAMESAKES = {
    "with the authority's name, for signing",
    "with the authority's name, an authority",
    "with the authority's name, of version 1",
    "of one with the authority's name",
    "of one with the authority's name, none",
}
UNKNOWN_TO_OPENSSL = NAMESAKES | {
    "self-signed authority for anything",
    "issued for anything",
    "self-signed, saying nothing, for signing",
}
STRICTER = {"native": WEAK | UNKNOWN_TO_RING, "python": WEAK | UNKNOWN_TO_OPENSSL}
Verdicts = dict[str, bool]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return shelve(tmp_path_factory.mktemp("kinds"))


def is_let_in(address: str, cert: Path, key: Path) -> bool:
    """Return whether a server answers a client that shows a certificate, however weak."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_ciphers("DEFAULT:@SECLEVEL=0")
    tls.load_cert_chain(cert, key)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_SECONDS) as raw:
        try:
            with tls.wrap_socket(raw) as secure:
                secure.sendall(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
                return secure.recv(8) == b"HTTP/1.1"
        except (ssl.SSLError, ConnectionError):
            return False


def let_in(address: str, shelf: Shelf) -> Verdicts:
    return {kind: is_let_in(address, *files) for kind, files in shelf.files.items()}


@pytest.fixture(scope="module")
def clients_of_etcd(shelf: Shelf, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """Which clients a real etcd lets in."""
    if not is_target():
        pytest.skip("an older Go judges differently")
    directory = tmp_path_factory.mktemp("etcd")
    server = Authority(directory / "server").issue("server")
    flags = [
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={shelf.bundle}",
        "--client-cert-auth",
    ]
    with running_etcd(directory / "data", *flags, scheme="https") as etcd:
        return let_in(etcd.address, shelf)


def check(ours: Verdicts, theirs: Verdicts, stricter: set[str]) -> None:
    """Check that we believe whom etcd believes, but for some that etcd may believe."""
    assert {kind for kind in ours if ours[kind] and not theirs[kind]} == set(), "weaker than etcd"
    assert {kind for kind in ours if theirs[kind] and not ours[kind]} <= stricter
    assert len(set(ours.values())) == 2


def test_which_clients_are_let_in(
    open_service: OpenService,
    edge_kind: str,
    shelf: Shelf,
    clients_of_etcd: Verdicts,
    tmp_path: Path,
) -> None:
    server = Authority(tmp_path).issue("server")
    tls = TlsSettings(str(server.cert), str(server.key), client_ca_file=str(shelf.bundle))
    # However slow the machine is, no client is refused for being late.
    service = open_service(Limits(handshake_seconds_max=WAIT_SECONDS), tls=tls)
    check(let_in(service.address, shelf), clients_of_etcd, STRICTER[edge_kind])


class Shower:
    """A server that shows a certificate, and notes who believed it."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.set_ciphers("DEFAULT:@SECLEVEL=0")
        self._tls.load_cert_chain(cert, key)
        self._tls.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.verdicts: list[bool] = []
        self.judged = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            raw.settimeout(WAIT_SECONDS)
            try:
                with self._tls.wrap_socket(raw, server_side=True):
                    self.verdicts.append(True)
            except OSError:
                self.verdicts.append(False)
            self.judged.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def shown(shelf: Shelf) -> Iterator[dict[str, Shower]]:
    with ExitStack() as stack:
        showers = {}
        for kind, files in shelf.files.items():
            showers[kind] = Shower(*files)
            stack.callback(showers[kind].close)
        yield showers


def verdicts(showers: dict[str, Shower]) -> Verdicts:
    for kind, shower in showers.items():
        assert shower.judged.wait(WAIT_SECONDS), kind
    return {kind: any(shower.verdicts) for kind, shower in showers.items()}


@pytest.fixture(scope="module")
def servers_of_etcdctl(shelf: Shelf) -> Verdicts:
    """Which servers etcdctl believes."""
    if not is_target():
        pytest.skip("an older Go judges differently")
    with shown(shelf) as showers:
        endpoints = [f"https://{shelf.kinds[kind].host}:{showers[kind].port}" for kind in showers]
        seconds = f"{WAIT_SECONDS:g}s"
        command = [str(binary("etcdctl")), "endpoint", "health", f"--cacert={shelf.bundle}"]
        command += [f"--endpoints={','.join(endpoints)}", f"--dial-timeout={seconds}"]
        asking = subprocess.Popen(
            [*command, f"--command-timeout={seconds}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return verdicts(showers)
        finally:
            asking.kill()
            asking.wait()


def ask_with_the_client(shelf: Shelf, showers: dict[str, Shower]) -> None:
    for kind, shower in showers.items():
        tls = contexts(TlsOptions(ca=str(shelf.bundles[kind])))(parse_endpoint("https://x:1"))
        assert tls is not None
        with socket.create_connection(("127.0.0.1", shower.port), WAIT_SECONDS) as raw:
            try:
                with tls.wrap_socket(raw, server_hostname=shelf.kinds[kind].host) as secure:
                    secure.recv(1)
            except (ssl.SSLError, ConnectionError):
                pass


def ask_as_a_member(shelf: Shelf, showers: dict[str, Shower]) -> None:
    for kind, shower in showers.items():
        dialing = Dialing(DialSettings(ca_file=str(shelf.bundles[kind])), WAIT_SECONDS)
        try:
            url = f"https://{shelf.kinds[kind].host}:{shower.port}"
            dialing.failure(dialing.dialer.request(url, "GET", "/", [], b""))
        finally:
            dialing.close()


@pytest.mark.parametrize("ask", [ask_with_the_client, ask_as_a_member])
def test_which_servers_are_believed(
    shelf: Shelf,
    servers_of_etcdctl: Verdicts,
    ask: Callable[[Shelf, dict[str, Shower]], None],
) -> None:
    with shown(shelf) as showers:
        ask(shelf, showers)
        check(verdicts(showers), servers_of_etcdctl, STRICTER["python"])


def test_which_servers_the_calling_side_believes(
    open_caller: OpenCaller, edge_kind: str, shelf: Shelf, servers_of_etcdctl: Verdicts
) -> None:
    caller: Caller = open_caller()
    with shown(shelf) as showers:
        for kind, shower in showers.items():
            host = shelf.kinds[kind].host
            tls = UpstreamTls(host, str(shelf.bundles[kind]))
            caller.dial(f"{host}:{shower.port}", tls)
        caller.until(lambda: all(shower.judged.is_set() for shower in showers.values()))
        caller.upstream.stop()
        check(verdicts(showers), servers_of_etcdctl, STRICTER[edge_kind])


def test_no_kind_is_left_out(shelf: Shelf) -> None:
    """Every kind that is excused exists."""
    assert all(kinds <= set(shelf.kinds) for kinds in STRICTER.values())
