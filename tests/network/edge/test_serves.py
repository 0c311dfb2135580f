"""Listeners for gRPC alone and for plain HTTP alone, beside a real etcd with such listeners."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvorum.network.edge import EdgeEventKind, Serves, TlsSettings
from tests import etcd
from tests.certificates import Authority, trusting
from tests.network.edge.client import connect as connect_client
from tests.network.edge.conftest import OpenService
from tests.network.edge.plain import body, opened, plain
from tests.network.edge.service import ECHO, ECHO_STREAM, RANGE, WAIT_SECONDS, Service
from tests.network.edge.wire import HeaderList, Wire, connect, grpc_headers, message
from tests.ports import held_port

PLAIN = [(":method", "GET"), (":scheme", "http"), (":path", "/echo"), (":authority", "x")]


@pytest.fixture(scope="module")
def etcd_of_grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run an etcd with a listener for gRPC alone; returns its address."""
    if not etcd.is_target():
        pytest.skip("etcd 3.5.1 has no --listen-client-http-urls")
    directory = tmp_path_factory.mktemp("etcd")
    with held_port() as port:
        flag = f"--listen-client-http-urls=http://127.0.0.1:{port}"
        with etcd.running_etcd(directory, flag) as running:
            yield running.address


# gRPC alone.


@pytest.fixture
def of_grpc(open_service: OpenService) -> Service:
    return open_service(serves=Serves.GRPC)


KINDS = [None, "application/json", "application/grpcx", "text/plain; charset=utf-8", 'a"b\\c']


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("end", [True, False])
def test_plain_http2_is_answered_as_by_a_real_etcd(
    of_grpc: Service, etcd_of_grpc: str, kind: str | None, method: str, *, end: bool
) -> None:
    headers: HeaderList = [(":method", method), *PLAIN[1:]]
    if kind is not None:
        headers.append(("content-type", kind))
    gists = []
    for address in (of_grpc.address, etcd_of_grpc):
        with Wire(address) as wire:
            answer = wire.answer(wire.open(headers, end=end))
            assert answer.headers[":status"] == "415"
            gists.append((answer.gist, answer.headers["content-type"]))
    assert gists[0] == gists[1]
    assert of_grpc.events.empty()
    assert of_grpc.remote.counters()["requests_refused"] == 1


def test_calls_are_served_as_ever(of_grpc: Service) -> None:
    with connect_client(of_grpc.address) as client:
        assert client.unary(ECHO, b"x") == b"x"
        assert list(client.stream(ECHO_STREAM, [b"a", b"b"])) == [b"a", b"b"]


@pytest.mark.parametrize("request_line", [b"GET /version HTTP/1.1", b"POST /v3/kv/put HTTP/1.0"])
def test_http1_gets_settings_and_the_end(
    of_grpc: Service, etcd_of_grpc: str, request_line: bytes
) -> None:
    for address in (of_grpc.address, etcd_of_grpc):
        answer = b""
        with connect(address) as connection:
            connection.sendall(request_line + b"\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            try:
                while piece := connection.recv(4096):
                    answer += piece
            except ConnectionError:
                pass
        # The server's settings, if they were not lost with a reset connection.
        assert answer[3:4] in (b"\4", b"")
    assert of_grpc.events.empty()


def test_http1_over_tls_is_not_served(open_service: OpenService, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    service = open_service(tls=TlsSettings(str(pair.cert), str(pair.key)), serves=Serves.GRPC)
    context = trusting(authority.cert)
    context.set_alpn_protocols(["http/1.1"])
    with plain(service, context) as client:
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.file.read(4)[3:] in (b"\4", b"")
    assert service.events.empty()


# Plain HTTP alone.


@pytest.fixture
def of_http(open_service: OpenService) -> Service:
    return open_service(serves=Serves.HTTP)


def test_plain_requests_are_served_as_ever(of_http: Service) -> None:
    with plain(of_http) as client, Wire(of_http.address) as wire:
        client.send(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
        assert client.reply().body == b"abc"
        assert wire.answer(wire.open(PLAIN, end=True)).headers[":status"] == "200"


def test_a_call_is_a_plain_request(of_http: Service) -> None:
    with Wire(of_http.address) as wire:
        stream = wire.open(grpc_headers(RANGE))
        wire.data(stream, message(b"x"), end=True)
        call, _, method, target, _ = opened(of_http)
        assert (method, target) == ("POST", RANGE)
        assert body(of_http, call) == message(b"x")
        of_http.remote.respond(call, 404, [], b"404 page not found\n")
        answer = wire.answer(stream)
        assert (answer.headers[":status"], answer.data) == ("404", b"404 page not found\n")


@pytest.mark.parametrize("path", [ECHO, ECHO_STREAM])
def test_the_client_library_gets_an_error(of_http: Service, path: str) -> None:
    with connect_client(of_http.address) as client:
        future = client.stream(path, iter([b"x"]))
        call = opened(of_http)[0]
        of_http.remote.respond(call, 404, [("content-type", "text/plain")], b"not found\n")
        with pytest.raises(grpc.RpcError) as failed:
            next(future)
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_etcdctl_gets_an_error(of_http: Service) -> None:
    command = [str(etcd.binary("etcdctl")), f"--endpoints={of_http.address}", "get", "a"]
    command += [f"--{name}-timeout={WAIT_SECONDS:g}s" for name in ("dial", "command")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    event = of_http.next_event(EdgeEventKind.HTTP_OPENED)
    of_http.remote.respond(event.call, 404, [], b"404 page not found\n")
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode != 0
    assert "rpc error" in errors
