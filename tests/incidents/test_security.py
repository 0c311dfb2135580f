"""Advisories of the field, over every listener: limits of time and size, revocation, cost.

A server listens for clients, for metrics and for members, each with TLS and without. Its limits
of time are longer than the usual ones, which a busy machine may exceed; those of the one that lets
silent clients go are short.
"""

import http.client
import signal
import socket
import ssl
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.peer_requests import BODY_BYTES_MAX
from kvorum.network.edge import Limits, edge_name
from tests.certificates import Authority, Pair, trusting
from tests.kvorum import READY
from tests.ports import held_ports
from tests.server.rpc.harness import Harness
from tests.waiting import WAIT_SECONDS_MAX, until

T = TypeVar("T")
Listener = tuple[str, str]
Enter = Callable[[Listener], socket.socket]
SHORT_SECONDS = 2.0
TIMES = [each for each in Limits.__dataclass_fields__ if each.endswith("_seconds_max")]
SERVER = f"""
import sys
from functools import partial
from kvorum.process import main
from kvorum.server import settings
seconds = float(sys.argv[1])
settings.Limits = partial(settings.Limits, **dict.fromkeys({TIMES}, seconds))
sys.exit(main.run(sys.argv[2:]))
"""
PATHS = {"client": "/health", "metrics": "/metrics", "peer": "/version"}
LISTENERS = [(kind, scheme) for kind in PATHS for scheme in ("http", "https")]
SECURE = [kind for kind, scheme in LISTENERS if scheme == "https"]
QUESTIONS = {"/leases": "POST", "/leases/internal": "POST", "/members/hashkv": "GET"}
# A connection that is closed while something is still being sent may lose the answer.
BROKEN_OFF = suppress(ConnectionError, http.client.HTTPException)


def in_time(what: str, work: Callable[[], T]) -> T:
    """Do something at a listener whose time is short: again, if it was given up meanwhile."""

    def tried() -> list[T]:
        with suppress(ConnectionError, http.client.HTTPException, ssl.SSLError):
            return [work()]
        return []

    return until(what, tried)[0]


class Server:
    """A process with six listeners, and who may come to it."""

    def __init__(self, directory: Path, seconds: float) -> None:
        """Clients have so many seconds for each thing whose time is limited."""
        authority = Authority(directory)
        self.known = authority.issue("known")
        self.revoked = authority.issue("revoked")
        self._authority = authority.cert
        crl = authority.revoke(self.revoked)
        self._held = ExitStack()
        ports = self._held.enter_context(held_ports(len(LISTENERS)))
        self.ports = dict(zip(LISTENERS, ports, strict=True))
        urls = {
            kind: ",".join(
                f"{scheme}://127.0.0.1:{self.ports[kind, scheme]}" for scheme in ("https", "http")
            )
            for kind in PATHS
        }
        flags = [
            f"--data-dir={directory / 'data'}",
            f"--listen-client-urls={urls['client']}",
            f"--advertise-client-urls={urls['client'].split(',')[0]}",
            f"--listen-metrics-urls={urls['metrics']}",
            f"--listen-peer-urls={urls['peer']}",
            f"--initial-advertise-peer-urls={urls['peer'].split(',')[0]}",
            f"--initial-cluster=default={urls['peer'].split(',')[0]}",
            "--client-cert-auth",
            "--peer-client-cert-auth",
            f"--client-crl-file={crl}",
            f"--peer-crl-file={crl}",
        ]
        for prefix in ("", "peer-"):
            flags += [
                f"--{prefix}cert-file={self.known.cert}",
                f"--{prefix}key-file={self.known.key}",
                f"--{prefix}trusted-ca-file={self._authority}",
            ]
        self._log = (directory / "log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(seconds), *flags], stderr=self._log, text=True
        )

    def wait(self) -> None:
        """Wait until it listens everywhere; the client's listeners come last."""

        def is_ready() -> bool:
            assert self._process.poll() is None, self.log()
            return READY in self.log()

        until("the server is ready", is_ready)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._held.close()

    def context(self, pair: Pair | None) -> ssl.SSLContext:
        context = trusting(self._authority)
        # In TLS 1.3 who is refused hears of it only after the handshake.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context

    def connect(self, listener: Listener) -> socket.socket:
        """Open a connection that has said nothing yet."""
        found = socket.create_connection(("127.0.0.1", self.ports[listener]))
        found.settimeout(WAIT_SECONDS_MAX)
        return found

    def enter(self, listener: Listener) -> socket.socket:
        """Open a connection that is ready for a request."""
        if listener[1] == "http":
            return self.connect(listener)
        context = self.context(self.known)
        return context.wrap_socket(self.connect(listener), server_hostname="127.0.0.1")

    def ask(
        self,
        listener: Listener,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> int:
        """Make a request; return the status of its answer."""

        connection = http.client.HTTPConnection("127.0.0.1", timeout=WAIT_SECONDS_MAX)
        connection.sock = self.enter(listener)
        try:
            connection.request(method, path, body, headers or {})
            return connection.getresponse().status
        finally:
            connection.close()

    def get(self, listener: Listener, headers: dict[str, str] | None = None) -> int:
        return self.ask(listener, "GET", PATHS[listener[0]], headers)


@contextmanager
def running_server(directory: Path, seconds: float) -> Iterator[Server]:
    made = Server(directory, seconds)
    try:
        made.wait()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("listeners"), WAIT_SECONDS_MAX) as made:
        yield made


@pytest.fixture
def strict_server(tmp_path: Path) -> Iterator[Server]:
    """Return one that lets clients go that take longer than a moment."""
    with running_server(tmp_path, SHORT_SECONDS) as made:
        yield made


def hello() -> bytes:
    """Return how a TLS handshake begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def until_closed(connection: socket.socket) -> bytes:
    """Read until the server closes the connection; it may have something to say before."""
    said = b""
    with suppress(ConnectionError, ssl.SSLError):
        while piece := connection.recv(65536):
            said += piece
    return said


BEGINNINGS = {
    "nothing": b"",
    "a letter": b"G",
    "a part of a head": b"GET / HTTP/1.1\r\nHost: x\r\nX-Part",
    "a part of a preface": b"PRI * HTTP/2.0\r\n",
}


@pytest.mark.long
def test_who_says_only_a_part_is_let_go_at_every_listener(strict_server: Server) -> None:
    """GHSA-6vch and 3.7.1's time for headers: nobody holds a connection by being silent."""
    server = strict_server
    with ExitStack() as stack:
        begun = []

        def begin(listener: Listener, what: str, words: bytes, enter: Enter = server.enter) -> None:
            """Say something at a connection, by default at one that is ready for a request."""

            def said() -> socket.socket:
                connection = stack.enter_context(enter(listener))
                connection.sendall(words)
                return connection

            begun.append((listener, what, in_time(f"{listener} hears {what}", said)))

        for listener in LISTENERS:
            for name, words in BEGINNINGS.items():
                begin(listener, f"{name}, then silence", words)
        for kind in SECURE:
            for part in (0, 1, 50, -1):
                what = f"{part} bytes of a handshake"
                begin((kind, "https"), what, hello()[:part], server.connect)
        for scheme in ("http", "https"):
            for method, path in (
                ("POST", "/raft"),
                ("POST", "/leases"),
                ("GET", "/members/hashkv"),
            ):
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\npart"
                begin(("peer", scheme), f"a part of a body for {path}", head.encode())
        # Meanwhile who says everything is served.
        for listener in LISTENERS:
            served = in_time(f"{listener} answers", partial(server.get, listener))
            assert served == 200, listener
        for listener, what, connection in begun:
            try:
                until_closed(connection)
            except TimeoutError:
                pytest.fail(f"{listener} waits for ever: {what}")
    # What was made short is limited in production, too.
    usual = Limits()
    assert all(0 < getattr(usual, each) <= 30 for each in TIMES), usual


@pytest.mark.parametrize("listener", LISTENERS, ids="-".join)
def test_heads_are_limited_at_every_listener(server: Server, listener: Listener) -> None:
    limit = Limits().http_header_bytes_max
    # The native edge refuses heads from about half the limit on; a quarter is served by both.
    assert server.get(listener, {"X-Long": "x" * (limit // 4)}) == 200
    with BROKEN_OFF:
        assert server.get(listener, {"X-Long": "x" * limit}) == 431
    assert server.get(listener) == 200


@pytest.mark.parametrize(("path", "method"), (QUESTIONS | {"/members/promote/1": "POST"}).items())
def test_bodies_of_questions_are_limited(server: Server, path: str, method: str) -> None:
    """3.7.1: a question of another member was read to its end, however long it was.

    Bodies of `/raft` and `/raft/snapshot` have limits of their own: `tests/cluster/test_bad_peers`.
    """
    for scheme in ("http", "https"):
        listener = "peer", scheme
        assert server.ask(listener, method, path, body=b"\xff" * BODY_BYTES_MAX) != 413
        with BROKEN_OFF:
            assert server.ask(listener, method, path, body=b"\xff" * (BODY_BYTES_MAX + 1)) == 413


@pytest.mark.parametrize("kind", SECURE)
def test_revoked_certificates_are_refused_at_every_listener(server: Server, kind: str) -> None:
    """GHSA-3wh4: one listener had no revocation list, and a resumed session escaped it."""

    def enter(
        context: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> ssl.SSLSession | None:
        plain = server.connect((kind, "https"))
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as found:
            found.sendall(f"GET {PATHS[kind]} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = found.recv(12)
            if not answer:
                # The pure edge can refuse a certificate only after the handshake.
                raise ConnectionError("the server closed the connection")
            assert answer == b"HTTP/1.1 200"
            # The pure edge may resume a session, but checks its certificate again each time.
            assert not found.session_reused or edge_name() == "python"
            return found.session

    for pair in (server.revoked, None):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            enter(server.context(pair))
    # Nor does a session outlive the revocation of its certificate.
    known = server.context(server.known)
    session = enter(known)
    enter(known, session)


@pytest.mark.parametrize("kind", ["metrics", "peer"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_only_clients_are_served_calls(server: Server, kind: str, scheme: str) -> None:
    """CVE-2026-33413: calls at a listener that nobody guards, as those of metrics often are."""
    with server.enter((kind, scheme)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
        assert until_closed(connection).startswith(b"HTTP/1.1 400")
    with server.enter(("client", scheme)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
        assert connection.recv(9)[3] == 4, "settings"


# The cost of transactions.


def nested(put: pb.PutRequest, depth: int, *, is_failure: bool) -> pb.TxnRequest:
    """Return a transaction with a put so deep in it, at last in a branch that does not run."""
    operation = pb.RequestOp(request_put=put)
    for _ in range(depth):
        operation = pb.RequestOp(request_txn=pb.TxnRequest(success=[operation]))
    if is_failure:
        return pb.TxnRequest(failure=[operation])
    return pb.TxnRequest(success=[operation])


def room(harness: Harness) -> int:
    """Return the highest cost that fits."""
    fits = harness.member.state.fits_quota
    return bisect_left(range(1 << 30), True, key=lambda cost: not fits(cost)) - 1


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("is_failure", [False, True])
def test_nested_puts_count_against_the_quota(depth: int, is_failure: bool) -> None:
    """3.7.1: a put within a transaction within a transaction cost nothing."""
    used = (1 << 29) - room(Harness(quota_bytes=1 << 29))
    for excess in (0, 1):
        harness = Harness(quota_bytes=used + 50_000)
        value = bytes(room(harness) - 256 - len(b"key") + excess)
        request = nested(pb.PutRequest(key=b"key", value=value), depth, is_failure=is_failure)
        answer = harness.ask("KV/Txn", request)
        assert (answer == errors.NO_SPACE) == bool(excess)
        assert isinstance(answer, Status) == bool(excess)
