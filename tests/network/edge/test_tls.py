"""TLS at the edge: which clients may connect, which may not, and files that change."""

import contextlib
import os
import re
import ssl
import subprocess
import threading
from dataclasses import replace as changed
from pathlib import Path

import grpc
import pytest

from kvorum.network.edge import CIPHER_SUITES, Limits, TlsSettings, open_edge
from kvorum.network.edge.subject import Subject, is_for, subject_of
from kvorum.server.rpc.interface import Clients
from kvorum.state.apply.callers import Caller, Front
from tests.certificates import Authority, Pair, replace, trusting
from tests.home_made import make
from tests.network.edge.client import connect as connect_client
from tests.network.edge.conftest import OpenService
from tests.network.edge.service import ECHO, HELD, HELD_STREAM, METHODS, OK, WAIT_SECONDS, Service
from tests.network.edge.wire import Wire, connect, greeted, message
from tests.waiting import until


class Place:
    """An authority, the server's certificate, and settings with both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "ca")
        self.server = self.authority.issue("server")
        self.plain = TlsSettings(str(self.server.cert), str(self.server.key))
        self.mutual = changed(self.plain, client_ca_file=str(self.authority.cert))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


def context(
    place: Place, client: Pair | None = None, alpn: tuple[str, ...] = ("h2",)
) -> ssl.SSLContext:
    made = trusting(place.authority.cert)
    if alpn:
        made.set_alpn_protocols(list(alpn))
    if client is not None:
        made.load_cert_chain(client.cert, client.key)
    return made


def asked(address: str, tls: ssl.SSLContext) -> bytes:
    with Wire(address, tls=tls) as wire:
        return wire.unary(ECHO, b"hello").data


def refusal(address: str, tls: ssl.SSLContext) -> str:
    """Return how the client library reports that it was refused."""
    try:
        with Wire(address, tls=tls) as wire:
            wire.socket.recv(1)
            while wire.socket.recv(4096):
                pass
            return "closed"
    except ssl.SSLError as error:
        return (error.reason or str(error)).lower()
    except ConnectionError:
        return "closed"


def count(service: Service, name: str) -> int:
    counters: dict[str, int] = service.remote.counters()
    return counters[name]


def test_calls_and_requests(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=place.plain)
    assert asked(service.address, context(place)) == message(b"hello")
    with Wire(service.address, tls=context(place)) as wire:
        wire.ping()
        assert wire.unary(ECHO, bytes(1_000_000)).data == message(bytes(1_000_000))
        tls_socket = wire.socket
        assert isinstance(tls_socket, ssl.SSLSocket)
        assert tls_socket.selected_alpn_protocol() == "h2"
        assert tls_socket.version() == "TLSv1.3"
    credentials = grpc.ssl_channel_credentials(place.authority.cert.read_bytes())
    port = service.address.rpartition(":")[2]
    with connect_client(f"localhost:{port}", credentials) as client:
        assert client.unary(ECHO, b"x" * 300_000) == b"x" * 300_000
        assert list(client.stream("/test.Echo/Stream", [b"a", b"b"])) == [b"a", b"b"]
    assert count(service, "tls_handshakes") == 3


@pytest.mark.parametrize("alpn", [(), ("http/1.1",), ("h2",), ("h2", "http/1.1")])
@pytest.mark.parametrize("speaks", ["h2", "http/1.1"])
def test_whatever_alpn_says_the_bytes_decide(
    open_service: OpenService, place: Place, alpn: tuple[str, ...], speaks: str
) -> None:
    service = open_service(tls=place.plain)
    tls = context(place, alpn=alpn)
    if speaks == "h2":
        assert asked(service.address, tls) == message(b"hello")
        return
    with (
        connect(service.address) as raw,
        tls.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi")
        answer = secure.recv(4096)
        while b"\r\n\r\nhi" not in answer:
            answer += secure.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_curl(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=place.plain)
    for protocol in ("--http1.1", "--http2"):
        command = ["curl", "-sS", protocol, "--cacert", str(place.authority.cert), "-d", "body"]
        done = subprocess.run(
            [*command, f"https://{service.address}/echo"],
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=True,
        )
        assert done.stdout == b"body"


def test_a_unix_socket(open_service: OpenService, place: Place, tmp_path: Path) -> None:
    service = open_service(None, f"unix:{tmp_path}/edge.sock", tls=place.plain)
    assert asked(service.address, context(place)) == message(b"hello")


def test_a_client_that_shows_its_certificate(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=place.mutual)
    client = place.authority.issue("root", ["host.example", "10.0.0.7"], purposes=["client"])
    with Wire(service.address, tls=context(place, client)) as wire:
        wire.call(HELD, message(b""))
        call = service.next_request()[0]
        certificate = service.remote.peer_certificate(call)
        assert certificate is not None
        assert subject_of(certificate) == Subject("root", ("host.example",), ("10.0.0.7",))
        caller = Caller(Front.GRPC, origin=Clients(service.remote))
        assert caller.certificate_name(call) == "root"
        host, port = wire.socket.getsockname()[:2]
        assert caller.remote(call) == f"{host}:{port}"
        service.remote.reply([(call, b"")])
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    assert service.remote.peer_certificate(call) is None
    assert (caller.remote(call), caller.certificate_name(call)) == ("", "")


def test_no_certificate_is_known_where_none_is_asked_for(
    open_service: OpenService, place: Place
) -> None:
    for tls, settings in ((context(place), place.plain), (None, None)):
        service = open_service(tls=settings)
        with Wire(service.address, tls=tls) as wire:
            wire.call(HELD, message(b""))
            assert service.remote.peer_certificate(service.next_request()[0]) is None


def test_clients_that_are_not_let_in(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=place.mutual)
    stranger = Authority(place.directory / "other", "other").issue("root")
    expired = place.authority.issue("late", days=-1)
    server_only = place.authority.issue("server-only", purposes=["server"])
    expected = {
        None: r"certificate required|peer did not return a certificate",
        stranger: r"unknown ca",
        expired: r"certificate expired",
        server_only: r"bad certificate|unsupported certificate",
    }
    for client, text in expected.items():
        reason = refusal(service.address, context(place, client)).replace("_", " ")
        assert re.search(text, reason), (client, reason)
    service.until(lambda edge: edge.counters()["tls_handshakes_failed"] == 4)
    ((name, listener, peer, text, times),) = service.remote.incidents()
    assert (name, listener, times) == ("tls_handshakes_failed", 0, 4)
    assert peer.startswith("127.0.0.1:") and text.startswith("tls: ")
    assert service.remote.incidents() == []
    assert asked(service.address, context(place, place.server)) == message(b"hello")


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_client_with_the_name_of_its_authority(
    open_service: OpenService, place: Place, version: str
) -> None:
    service = open_service(tls=place.mutual)
    issue = place.authority.issue
    for use_rsa in (False, True):
        namesake = issue("authority", file=f"namesake{use_rsa}", use_rsa=use_rsa)
        tls = context(place, namesake)
        tls.maximum_version = ssl.TLSVersion[version]
        assert asked(service.address, tls) == message(b"hello")
    impostor = Authority(place.directory / "impostor")
    refused = [
        issue("authority", file="late-namesake", days=-1),
        issue("authority", file="namesake-server", purposes=["server"]),
        impostor.issue("authority", file="foreign-namesake"),
    ]
    for client in refused:
        assert refusal(service.address, context(place, client)) != "closed"
    # A client may hear of it before it is counted.
    service.until(lambda edge: edge.counters()["tls_handshakes_failed"] == len(refused))


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_clients_with_home_made_certificates(
    open_service: OpenService, place: Place, tmp_path: Path, version: str
) -> None:
    """What `openssl req -x509` makes, what an old `openssl x509 -req` makes; see test_tls_kinds."""
    own, root = make("own", ca=True, key="rsa2048", country="USA"), make("root", ca=True)
    late = make("late", ca=True, days=(-9, -1))
    believed = [own, root, late]
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"".join(one.pem for one in believed))
    service = open_service(tls=changed(place.plain, client_ca_file=str(bundle)))
    shown = {
        own: True,
        make("old", root, version=1): True,
        make("authority", root, ca=True): True,
        make("root", root, signs=False, has_key_identifier=True): True,
        make("stranger", ca=True): False,
        late: False,
        make("of late", late): False,
    }
    for client, is_let_in in shown.items():
        files = tmp_path / "client.pem", tmp_path / "client.key"
        files[0].write_bytes(client.pem)
        files[1].write_bytes(client.key_pem)
        tls = context(place)
        tls.maximum_version = ssl.TLSVersion[version]
        tls.load_cert_chain(*files)
        if is_let_in:
            assert asked(service.address, tls) == message(b"hello")
        else:
            assert refusal(service.address, tls) != "closed"


@pytest.mark.parametrize("pem", [False, True])
def test_revoked(open_service: OpenService, place: Place, tmp_path: Path, *, pem: bool) -> None:
    authority = Authority(tmp_path)
    good, bad = authority.issue("good"), authority.issue("bad")
    namesake = authority.issue("authority", file="namesake")
    revoked = authority.revoke(pem=pem)
    settings = changed(
        place.plain, client_ca_file=str(authority.cert), client_crl_file=str(revoked)
    )
    service = open_service(tls=settings)
    for client in (bad, namesake):
        assert asked(service.address, context(place, client)) == message(b"hello")
    authority.revoke(bad, namesake, pem=pem)
    for client in (bad, namesake):
        assert refusal(service.address, context(place, client))
    assert asked(service.address, context(place, good)) == message(b"hello")
    service.until(lambda edge: edge.counters()["tls_handshakes_failed"] == 2)


def test_names_that_are_allowed(open_service: OpenService, place: Place) -> None:
    right = place.authority.issue("right", ["node.site.example", "10.0.0.7"])
    wild = place.authority.issue("wild", ["*.site.example"])
    wrong = place.authority.issue("wrong", ["node.elsewhere"])
    nameless = place.authority.issue("", [])
    for settings, allowed in (
        (changed(place.mutual, allowed_names=("right", "other")), [right]),
        (changed(place.mutual, allowed_hostnames=("x.y", "node.site.example")), [right, wild]),
        (changed(place.mutual, allowed_hostnames=("10.0.0.7",)), [right]),
    ):
        service = open_service(tls=settings)
        for client in (right, wild, wrong, nameless):
            tls = context(place, client)
            if client in allowed:
                assert asked(service.address, tls) == message(b"hello")
            else:
                assert refusal(service.address, tls)


def test_host_names_of_a_subject() -> None:
    subject = Subject("x", ("a.example", "*.Wild.example"), ("10.0.0.7", "::1"))
    for name in ("a.example", "A.EXAMPLE.", "b.wild.example", "10.0.0.7", "::1"):
        assert is_for(subject, name), name
    for name in ("example", "b.a.example", "c.b.wild.example", "wild.example", "10.0.0.8", "x"):
        assert not is_for(subject, name), name


@pytest.mark.parametrize(
    ("least", "most", "offered", "expected"),
    [
        ("TLS1.2", "", "TLSv1_2", "TLSv1.2"),
        ("TLS1.2", "TLS1.2", "TLSv1_3", ""),
        ("TLS1.2", "TLS1.2", "MAXIMUM_SUPPORTED", "TLSv1.2"),
        ("TLS1.3", "", "MAXIMUM_SUPPORTED", "TLSv1.3"),
        ("TLS1.3", "", "TLSv1_2", ""),
    ],
)
def test_versions(
    open_service: OpenService, place: Place, least: str, most: str, offered: str, expected: str
) -> None:
    service = open_service(tls=changed(place.plain, version_min=least, version_max=most))
    tls = context(place)
    version = ssl.TLSVersion[offered]
    if version != ssl.TLSVersion.MAXIMUM_SUPPORTED:
        tls.minimum_version = tls.maximum_version = version
    if not expected:
        assert "version" in refusal(service.address, tls)
        return
    with Wire(service.address, tls=tls) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        assert wire.socket.version() == expected


@pytest.mark.parametrize("suite", [suite for suite in CIPHER_SUITES if "ECDSA" in suite])
def test_cipher_suites(open_service: OpenService, place: Place, suite: str) -> None:
    service = open_service(tls=changed(place.plain, cipher_suites=(suite,)))
    tls = context(place)
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    with Wire(service.address, tls=tls) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        cipher = wire.socket.cipher()
        assert cipher is not None
        name = suite.removeprefix("TLS_").replace("_WITH", "").replace("AES_", "AES")
        assert cipher[0] == name.replace("POLY1305_SHA256", "POLY1305").replace("_", "-")
    # TLS 1.3 has suites of its own, which are not chosen by this.
    assert asked(service.address, context(place)) == message(b"hello")


def test_a_server_with_an_rsa_key(open_service: OpenService, place: Place) -> None:
    pair = place.authority.issue("rsa", use_rsa=True)
    service = open_service(tls=TlsSettings(str(pair.cert), str(pair.key)))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        tls = context(place)
        tls.minimum_version = tls.maximum_version = version
        assert asked(service.address, tls) == message(b"hello")


@pytest.mark.usefixtures("edge_kind")
def test_files_that_cannot_be_used_are_named(place: Place, tmp_path: Path) -> None:
    other = Authority(tmp_path).issue("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing of the kind")
    missing = str(tmp_path / "missing.pem")
    edge = open_edge(METHODS)
    try:
        for settings, name in (
            (changed(place.plain, cert_file=missing), missing),
            (changed(place.plain, key_file=missing), missing),
            (changed(place.plain, key_file=str(other.key)), str(other.key)),
            (changed(place.plain, cert_file=str(nonsense)), str(nonsense)),
            (changed(place.mutual, client_ca_file=missing), missing),
            (changed(place.mutual, client_ca_file=str(nonsense)), str(nonsense)),
            (changed(place.mutual, client_crl_file=str(nonsense)), str(nonsense)),
        ):
            with pytest.raises(OSError, match=re.escape(name)) as raised:
                edge.listen("127.0.0.1:0", settings)
            assert "127.0.0.1:0" in str(raised.value)
            with pytest.raises(OSError, match=re.escape(name)):
                edge.check_tls(settings)
        for settings in (place.plain, place.mutual):
            edge.check_tls(settings)
    finally:
        edge.stop()


def test_plain_text_at_a_tls_port(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=place.plain)
    for said in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 9):
        with connect(service.address) as plain:
            plain.sendall(said)
            assert plain.recv(100) == b""
    service.until(lambda edge: edge.counters()["tls_handshakes_failed"] == 2)
    ((name, _, _, text, times),) = service.remote.incidents()
    assert (name, times) == ("tls_handshakes_failed", 2)
    assert text == "tls: first record does not look like a TLS handshake"


def test_tls_at_a_plain_port(service: Service, place: Place) -> None:
    assert refusal(service.address, context(place)) in ("closed", "unexpected_eof_while_reading")
    with Wire(service.address) as wire:
        assert wire.unary(ECHO, b"x").data == message(b"x")


def test_both_at_one_port(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=changed(place.plain, plain_too=True))
    assert asked(service.address, context(place)) == message(b"hello")
    with Wire(service.address) as wire:
        assert wire.unary(ECHO, b"x").data == message(b"x")
    assert count(service, "tls_handshakes") == 1


def test_a_handshake_that_is_not_finished(open_service: OpenService, place: Place) -> None:
    service = open_service(Limits(handshake_seconds_max=0.2), tls=place.plain)
    for said in (b"", b"\x16\x03\x01\x02\x00\x01"):
        with connect(service.address) as silent:
            silent.sendall(said)
            with contextlib.suppress(ConnectionError):
                assert silent.recv(100) == b""
    service.until(lambda edge: edge.counters()["tls_handshakes_timed_out"] == 2)
    # What has shaken hands may be silent.
    with greeted(service.address, context(place)) as wire:
        stream = wire.call(HELD_STREAM, message(b""), end=False)
        with connect(service.address) as silent, contextlib.suppress(ConnectionError):
            silent.recv(100)
        wire.ping()
        assert not wire.answers[stream].ended


def test_renewed_files_are_used_at_once(open_service: OpenService, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("first")
    settings = TlsSettings(str(pair.cert), str(pair.key), client_ca_file=str(authority.cert))
    service = open_service(tls=settings)
    tls = trusting(authority.cert)
    tls.load_cert_chain(pair.cert, pair.key)

    def served() -> str:
        with (
            connect(service.address) as raw,
            tls.wrap_socket(raw, server_hostname="localhost") as secure,
        ):
            certificate = secure.getpeercert(binary_form=True)
            assert certificate is not None
            return subject_of(certificate).common_name

    with Wire(service.address, tls=tls) as before:
        assert served() == "first"
        authority.issue("second", file="first")
        assert served() == "second"
        # A certificate whose key is not there yet is not used, and nobody is refused.
        key = pair.key.read_bytes()
        authority.issue("third", file="first")
        third = pair.key.read_bytes()
        replace(pair.key, key)
        assert served() == "second"
        assert count(service, "tls_reloads_failed") == 1
        replace(pair.key, third)
        assert served() == "third"
        # So are authorities: another one is trusted, and the one before is not.
        other = Authority(tmp_path / "other", "other")
        bundle = authority.cert.read_bytes()
        replace(authority.cert, other.cert.read_bytes())
        assert refusal(service.address, tls)
        replace(authority.cert, other.cert.read_bytes() + bundle)
        assert served() == "third"
        assert before.unary(ECHO, b"still").data == message(b"still")


def test_renewal_under_load_drops_nothing(
    open_service: OpenService, edge_kind: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    service = open_service(tls=TlsSettings(str(pair.cert), str(pair.key)))
    tls = trusting(authority.cert)
    tls.set_alpn_protocols(["h2"])
    failures: list[BaseException] = []
    rounds = 60 if edge_kind == "native" else 20
    renewals, renewals_min = [0], 3
    handshakes: list[int] = []

    def ask() -> None:
        made = 1
        try:
            with Wire(service.address, tls=tls) as kept:
                while made <= rounds or renewals[0] < renewals_min:
                    assert asked(service.address, tls) == message(b"hello")
                    assert kept.unary(ECHO, b"kept").data == message(b"kept")
                    made += 1
            handshakes.append(made)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            authority.issue("server")
            renewals[0] += 1
    finally:
        # Nobody waits for more.
        renewals[0] += renewals_min
    assert not failures
    assert count(service, "tls_handshakes") == sum(handshakes)
    assert count(service, "tls_handshakes_failed") == 0


def test_a_slow_reader_behind_tls(open_service: OpenService, place: Place) -> None:
    service = open_service(tls=place.plain)
    size = 8 * 1024 * 1024
    with Wire(service.address, {4: 2**31 - 1}, tls=context(place)) as wire:
        wire.give_credit(0, 2**30)
        stream = wire.call(HELD_STREAM, message(b""))
        call = service.events.get(timeout=WAIT_SECONDS).call
        for _ in range(size // 65_536):
            service.remote.send([(call, bytes(65_536))])
        service.until(lambda edge: edge.pending_bytes(call) > 0)
        service.remote.finish(call, OK)
        assert len(wire.answer(stream).data) == size + 5 * (size // 65_536)


def test_keep_alive_of_the_system_is_on(service: Service) -> None:
    with connect(service.address) as client:
        client.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        service.events.get(timeout=WAIT_SECONDS)
        port, peer = int(service.address.rpartition(":")[2]), client.getsockname()[1]

        def timers() -> str | None:
            lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
            # The table is read in pieces, while others change it: a line may come twice, or not.
            found = (
                fields[5]
                for fields in map(str.split, lines)
                if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{peer:04X}")
            )
            return next(found, None)

        kind, when = until("the table has the connection", timers).split(":")
        assert kind == "02", "the timer that runs is keep-alive's"
        assert 0 < int(when, 16) <= 30 * os.sysconf("SC_CLK_TCK")
