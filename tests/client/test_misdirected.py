"""A client that was given a wrong endpoint, file or argument says so at once, and what to do.

The calls here may take an hour: what is reported is not reported because the time is over.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvorum.client import AsyncClient, Client, UnavailableError, create_revision, value
from tests.certificates import Authority
from tests.client.both import run_asyncio, run_threads
from tests.kvorum import running_kvorum

Run = Callable[..., None]
HOUR = 3600.0


@pytest.fixture(params=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return run_threads if request.param == "threads" else run_asyncio


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def refused(run: Run, *endpoints: str, **options: Any) -> str:
    """Return what a client says that is to write something there."""
    said: list[str] = []

    async def page(client: AsyncClient) -> None:
        with pytest.raises(UnavailableError, match="no endpoint could be reached") as caught:
            await client.put("a", "b")
        said.append(str(caught.value))

    run(page, list(endpoints), timeout=HOUR, **options)
    return said[0]


# Ports that speak something else.


class Web(BaseHTTPRequestHandler):
    """A server of HTTP/1, as the port of another program is."""

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Answering:
    """A server that answers whatever comes first with the same bytes, and closes then."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Answering":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(self._answer)


def test_a_port_of_http_1_does_not_speak_grpc(run: Run, web: str) -> None:
    assert "the port does not speak gRPC" in refused(run, web)


def test_what_a_port_answered_is_shown(run: Run) -> None:
    with Answering(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") as server:
        said = refused(run, server.address)
    assert "does not speak gRPC but HTTP/1: it answered 'HTTP/1.1 400 Bad Request'" in said
    with Answering(b"220 mail.example.com ESMTP\r\n") as server:
        said = refused(run, server.address)
    assert "but something else: it answered '220 mail.example.com ESMTP'" in said


def test_a_port_that_speaks_tls_wants_https(run: Run) -> None:
    # The alert that a server of TLS answers plain bytes with.
    with Answering(b"\x15\x03\x03\x00\x02\x02\x46") as server:
        said = refused(run, server.address)
    assert "the port speaks TLS" in said and "https://" in said and "ca=" in said


def test_a_port_that_speaks_no_tls_wants_http(run: Run) -> None:
    with Answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        said = refused(run, f"https://{server.address}")
    assert "the port does not speak TLS" in said and "http://" in said


def test_one_endpoint_that_can_be_used_is_enough(
    run: Run, web: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_kvorum(tmp_path_factory.mktemp("server")) as member:

        async def page(client: AsyncClient) -> None:
            for number in range(3):
                await client.put("a", str(number))

        run(page, [web, member.address], timeout=HOUR)


# Certificates.


def test_a_certificate_of_an_unknown_authority_wants_ca(run: Run, authority: Authority) -> None:
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        address = f"127.0.0.1:{plain.getsockname()[1]}"

        def serve() -> None:
            connection, _ = plain.accept()
            with suppress(OSError), context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        said = refused(run, f"https://{address}")
        thread.join()
    assert "the server's certificate is not accepted" in said and "ca=" in said


def test_a_file_that_is_of_no_use_is_named(run: Run, authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("client", purposes=("client",)), authority.issue("other")
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    ca, cert, key = str(authority.cert), str(pair.cert), str(pair.key)
    missing = str(tmp_path / "nosuch.pem")
    rows: list[tuple[dict[str, str], str]] = [
        ({"ca": missing}, f"ca={missing!r} cannot be read: No such file or directory"),
        ({"ca": str(tmp_path)}, f"ca={str(tmp_path)!r} cannot be read: Is a directory"),
        ({"ca": str(empty)}, f"ca={str(empty)!r} holds no certificates in PEM"),
        ({"ca": ca, "cert": missing, "key": key}, f"cert={missing!r} cannot be read"),
        ({"ca": ca, "cert": cert, "key": missing}, f"key={missing!r} cannot be read"),
        ({"ca": ca, "cert": key, "key": key}, f"cert={key!r} holds no certificate in PEM"),
        ({"ca": ca, "cert": cert, "key": cert}, f"key={cert!r} holds no private key in PEM"),
        (
            {"ca": ca, "cert": cert, "key": str(other.key)},
            f"key={str(other.key)!r} does not belong to the certificate in cert={cert!r}",
        ),
    ]
    for options, told in rows:
        assert told in refused(run, "127.0.0.1:1", **options)


# Arguments.


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda client: client.put("a", 5), "value is 5, of type int; expected bytes or str"),
        (lambda client: client.put(5, "a"), "key is 5, of type int"),
        (lambda client: client.get(None), "key is None, of type NoneType"),
        (lambda client: client.get("a", revision="1"), "revision is '1', of type str"),
        (lambda client: client.put("a", "b", lease=Held()), "expected its id: lease.id"),
        (lambda client: client.put("a", "b", lease=1.5), "lease is 1.5, of type float"),
        (lambda client: client.read(prefix=5), "prefix is 5"),
        (lambda client: client.read("a", end=5), "end is 5"),
        (lambda client: client.read(from_key=5), "from_key is 5"),
        (lambda client: client.read("a", limit="1"), "limit is '1'"),
        (lambda client: client.read("a", mod_revisions=(0, "1")), "mod_revisions is '1'"),
        (lambda client: client.delete(5), "key is 5"),
        (lambda client: client.put_if("a", 5, revision=0), "value is 5"),
        (lambda client: client.put_if("a", "b", revision="1"), "revision is '1'"),
        (lambda client: client.watch(5), "key is 5"),
        (lambda client: client.watch("a", revision="1"), "revision is '1'"),
        (lambda client: client.lease(2.5), "ttl is 2.5, of type float"),
        (lambda client: client.lease("2"), "ttl is '2', of type str"),
        (lambda client: client.compact("2"), "revision is '2', of type str"),
        (lambda client: client.lock(5), "name is 5"),
        (lambda client: client.election(5), "name is 5"),
        (lambda _: create_revision(5), "key is 5"),  # type: ignore[arg-type]
        (lambda _: value("a", end=5), "end is 5"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_type_is_named(
    run: Run, call: Callable[[Any], Any], told: str
) -> None:
    async def page(client: AsyncClient) -> None:
        with pytest.raises(TypeError) as caught:
            await call(client)
        assert told in str(caught.value)

    run(page, "127.0.0.1:1", timeout=HOUR)


class Held:
    """What `client.lease` returns, given where its id belongs."""

    id = 7


def test_what_holds_bytes_is_taken_for_them() -> None:
    with Client("127.0.0.1:1", timeout=HOUR) as client:
        assert client.namespace(bytearray(b"a")).key_prefix == b"a"  # type: ignore[arg-type]


# Loops.


def test_a_client_of_another_loop_says_so() -> None:
    async def make() -> AsyncClient:
        return AsyncClient("127.0.0.1:1", timeout=HOUR)

    client = asyncio.run(make())

    async def use() -> None:
        with pytest.raises(RuntimeError, match="in which it was made, which is closed"):
            await client.get("a")
        with pytest.raises(RuntimeError, match="make an AsyncClient in each loop"):
            client.watch("a")

    asyncio.run(use())
