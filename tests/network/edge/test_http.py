"""Plain HTTP on the port that also serves gRPC: HTTP/1.1 and HTTP/2, curl and bytes by hand."""

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from kvorum.api.errors import Code, Status
from kvorum.network.edge import EdgeEventKind, Limits
from tests.network.edge.conftest import OpenService
from tests.network.edge.plain import body, opened, plain
from tests.network.edge.service import ECHO, OK, WAIT_SECONDS, Service
from tests.network.edge.wire import Reply, Wire, connect

BROKEN = Status(Code.INTERNAL, "the source of the body failed")
PROTOCOLS = ["--http1.1", "--http2-prior-knowledge"]
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(service: Service, path: str, *options: str, **more: object) -> subprocess.Popen[bytes]:
    command = ["curl", "--silent", "--show-error", "--max-time", f"{WAIT_SECONDS:g}", *options]
    return subprocess.Popen(
        [*command, f"http://{service.address}{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE if more.get("stdin") else subprocess.DEVNULL,
    )


@needs_curl
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_curl_gets(service: Service, protocol: str) -> None:
    process = curl(service, "/held?a=b&c=%2F", protocol, "-i", "-H", "X-Mixed: Case Value")
    call, listener, method, target, headers = opened(service)
    assert (listener, method, target) == (0, "GET", "/held?a=b&c=%2F")
    assert headers["x-mixed"] == "Case Value"
    assert headers["host"] == service.address
    assert not [name for name in headers if name.startswith(":") or name != name.lower()]
    assert body(service, call) == b""
    answer = [("Content-Type", "text/plain"), ("X-Answer", "a"), ("X-Answer", "b")]
    service.remote.respond(call, 200, answer, b"hello")
    output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, errors
    head, _, content = output.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b" 200" in lines[0]
    assert b"content-type: text/plain" in lines
    assert b"content-length: 5" in lines
    assert lines.count(b"x-answer: a") == lines.count(b"x-answer: b") == 1
    assert content == b"hello"


@needs_curl
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_curl_posts(service: Service, tmp_path: Path, protocol: str, size: int) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    process = curl(service, "/echo", protocol, "--data-binary", f"@{sent}")
    output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, errors) == (0, b"")
    assert output == sent.read_bytes()


@needs_curl
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_curl_uploads_a_stream(service: Service, protocol: str) -> None:
    process = curl(service, "/held", protocol, "-T", "-", stdin=True)
    assert process.stdin is not None
    process.stdin.write(b"one")
    process.stdin.flush()
    call, _, method, _, _ = opened(service)
    assert method == "PUT"
    # A piece is here while the body is still being written.
    assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"one"
    process.stdin.write(b"two")
    process.stdin.close()
    process.stdin = None
    assert body(service, call) == b"two"
    service.remote.respond(call, 201, [], b"done")
    assert process.communicate(timeout=WAIT_SECONDS)[0] == b"done"
    assert process.returncode == 0


@needs_curl
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_curl_reads_a_stream(service: Service, protocol: str) -> None:
    process = curl(service, "/held", protocol, "--no-buffer")
    call = opened(service)[0]
    assert body(service, call) == b""
    service.remote.respond(call, 200, [], None)
    assert process.stdout is not None
    for piece in (b"first\n", b"second\n"):
        service.remote.send([(call, piece)])
        assert process.stdout.readline() == piece
    service.remote.finish(call, OK)
    assert process.communicate(timeout=WAIT_SECONDS)[0] == b""
    assert process.returncode == 0


@needs_curl
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_body_broken_off_is_not_taken_for_complete(service: Service, protocol: str) -> None:
    process = curl(service, "/held", protocol)
    call = opened(service)[0]
    assert body(service, call) == b""
    service.remote.respond(call, 200, [], None)
    service.remote.send([(call, b"half")])
    service.remote.finish(call, BROKEN)
    assert process.communicate(timeout=WAIT_SECONDS)[0] in (b"half", b"")
    # A partial file, nothing, failure to receive, an HTTP/2 stream that was not closed cleanly.
    assert process.returncode in (18, 52, 56, 92)


@needs_curl
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_head_and_not_found(service: Service, protocol: str) -> None:
    process = curl(service, "/held", protocol, "--head")
    call, _, method, _, _ = opened(service)
    assert method == "HEAD"
    assert body(service, call) == b""
    service.remote.respond(call, 404, [("content-type", "text/plain")], b"nothing")
    output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, errors
    assert b" 404" in output.split(b"\r\n")[0]
    assert b"nothing" not in output


@needs_curl
def test_an_upgrade_to_h2c_is_ignored_as_a_real_etcd_does(service: Service, etcd: str) -> None:
    for address in (etcd, service.address):
        command = ["curl", "--silent", "--http2", "--write-out", "%{http_version} %{http_code}"]
        path = "/health" if address == etcd else "/echo"
        done = subprocess.run(
            [*command, "--output", "/dev/null", f"http://{address}{path}"],
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert done.stdout == b"1.1 200"


def test_keep_alive_and_pipelining(service: Service) -> None:
    with plain(service) as client:
        for number in range(3):
            client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.reply().status == 200, number
        requests = b"".join(
            b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n%03d" % number
            for number in range(100)
        )
        client.send(requests)
        assert [client.reply().body for _ in range(100)] == [b"%03d" % n for n in range(100)]
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert client.reply().status == 200
        assert client.file.read() == b""
    assert service.remote.counters()["connections_accepted"] == 1


def test_http10_closes_after_the_answer(service: Service) -> None:
    with plain(service) as client:
        client.send(b"GET /echo HTTP/1.0\r\n\r\n")
        head, _, content = client.file.read().partition(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0]
        assert content == b""


def test_chunked_bodies_both_ways(service: Service) -> None:
    with plain(service) as client:
        client.send(b"POST /held HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        call = opened(service)[0]
        client.send(b"3\r\nabc\r\n")
        assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"abc"
        client.send(b"a;extension=1\r\n0123456789\r\n0\r\ntrailer: x\r\n\r\n")
        assert body(service, call) == b"0123456789"
        service.remote.respond(call, 200, [], None)
        service.remote.send([(call, b"x" * 70_000), (call, b"y")])
        service.remote.finish(call, OK)
        reply = client.reply()
        assert reply.headers["transfer-encoding"] == "chunked"
        assert reply.body == b"x" * 70_000 + b"y"
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.reply().status == 200


def test_a_given_content_length_is_kept(service: Service) -> None:
    with plain(service) as client:
        client.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        call = opened(service)[0]
        assert body(service, call) == b""
        service.remote.respond(call, 200, [("content-length", "6")], None)
        service.remote.send([(call, b"abc"), (call, b"def")])
        service.remote.finish(call, OK)
        reply = client.reply()
        assert (reply.headers["content-length"], reply.body) == ("6", b"abcdef")
        assert "transfer-encoding" not in reply.headers


def test_an_answer_before_the_body_is_read(service: Service) -> None:
    with plain(service) as client:
        client.send(b"POST /held HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nab")
        call = opened(service)[0]
        service.remote.respond(call, 413, [], b"too much")
        reply = client.reply()
        assert (reply.status, reply.body) == (413, b"too much")
    with plain(service) as client:
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.reply().status == 200


def test_expect_100_continue(service: Service) -> None:
    with plain(service) as client:
        client.send(
            b"POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"
        )
        assert client.reply().status == 100
        client.send(b"body")
        reply = client.reply()
        assert (reply.status, reply.body) == (200, b"body")


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_a_slow_reader_holds_the_sender_back(service: Service, protocol: str) -> None:
    size, total = 100_000, 400
    with connect(service.address) as connection, Wire(service.address) as other:
        wire = None
        if protocol == "http1":
            connection.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        else:
            wire = Wire(service.address, credit=False)
            request = {":method": "GET", ":scheme": "http", ":path": "/held", ":authority": "x"}
            stream = wire.open(list(request.items()), end=True)
        call = opened(service)[0]
        assert body(service, call) == b""
        service.remote.respond(call, 200, [], None)
        sent = 0
        limit = Limits().stream_writable_bytes
        # The sender stops where it sees that the network takes no more; what it has taken shows
        # when it has answered somebody else.
        while service.remote.pending_bytes(call) < 4 * limit:
            service.remote.send([(call, b"x" * size)])
            sent += size
            assert sent < size * total, "pending bytes never grew"
            assert other.unary(ECHO, b"").status == (0, "")
        while not service.events.empty():
            service.next_event(EdgeEventKind.WRITABLE, call)
        if wire is None:
            with connection.makefile("rb") as file:
                while file.readline() != b"\r\n":
                    pass
                read = 0
                while read < sent:
                    line = file.readline()
                    read += len(file.read(int(line, 16)))
                    file.readline()
        else:
            wire.credit = True
            # Credit for everything held back until now.
            wire.give_credit(0, sent)
            wire.give_credit(stream, sent)
            while len(wire.answers[stream].data) < sent:
                wire.pump()
        service.next_event(EdgeEventKind.WRITABLE, call)
        service.until(lambda edge: edge.pending_bytes(call) == 0)
        service.remote.finish(call, OK)
        if wire is not None:
            wire.socket.close()


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_a_body_larger_than_every_queue(open_service: OpenService, protocol: str) -> None:
    limits = Limits(stream_queued_bytes_max=64 * 1024, connection_queued_bytes_max=256 * 1024)
    service = open_service(limits)
    content = bytes(range(256)) * 8192
    if protocol == "http1":
        with plain(service) as client:
            head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            client.send(head % len(content) + content)
            assert client.reply().body == content
    else:
        command = ["curl", "--silent", "--http2-prior-knowledge", "--data-binary", "@-"]
        done = subprocess.run(
            [*command, f"http://{service.address}/echo"],
            input=content,
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert done.stdout == content


def test_headers_past_the_limit(open_service: OpenService) -> None:
    service = open_service(Limits(http_header_bytes_max=8192))
    with plain(service) as client:
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\nlong: %s\r\n\r\n" % (b"x" * 7000))
        assert client.reply().status == 200
    with plain(service) as client:
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\nlong: %s\r\n\r\n" % (b"x" * 20_000))
        assert client.reply().status == 431
        assert client.file.read() == b""
    assert service.events.empty()


MALFORMED = {
    "not HTTP": b"BOGUS\r\n\r\n",
    "a header without a colon": b"GET /nope HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
    "a space before the colon": b"GET /nope HTTP/1.1\r\nhost: x\r\na : b\r\n\r\n",
    "a length that is no number": b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
    "a negative length": b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    "a method that is no token": b"GE(T /nope HTTP/1.1\r\nhost: x\r\n\r\n",
    "an encoding nobody knows": b"POST /nope HTTP/1.1\r\nhost: x\r\ntransfer-encoding: y\r\n\r\n",
    "a later version": b"GET /nope HTTP/3.0\r\nhost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60) + b"\r\n\r\n",
    "nothing but zeros": bytes(100) + b"\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_requests(service: Service, etcd: str, case: str) -> None:
    """Both refuse it: with a status of 4xx or 501, or by closing."""
    for address in (service.address, etcd):
        with connect(address) as connection:
            connection.sendall(MALFORMED[case])
            answer = b""
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(4096):
                    answer += piece
            if answer:
                assert answer.split()[1] in (b"400", b"501", b"505"), answer
                assert b"connection: close" in answer.lower()
    assert service.events.empty(), "nobody is asked to serve it"
    with plain(service) as client:
        client.send(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.reply().status == 200


def test_a_malformed_request_gets_400(service: Service, etcd: str) -> None:
    for address in (service.address, etcd):
        with connect(address) as connection, connection.makefile("rb") as file:
            connection.sendall(MALFORMED["a header without a colon"])
            assert Reply(file).status == 400
            assert file.read() == b""


def test_a_chunk_that_is_none_breaks_the_request(service: Service) -> None:
    with plain(service) as client:
        client.send(b"POST /held HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        call = opened(service)[0]
        client.send(b"zz\r\n")
        service.next_event(EdgeEventKind.ENDED, call)
        answer = client.file.read()
        assert not answer or answer.split()[1] == b"400"


def test_http_over_http2_beside_grpc(service: Service) -> None:
    with Wire(service.address) as wire:
        request = {":method": "GET", ":scheme": "http", ":path": "/echo", ":authority": "x"}
        plain_stream = wire.open(list(request.items()), end=True)
        assert wire.unary("/test.Echo/Unary", b"rpc").status == (0, "")
        answer = wire.answer(plain_stream)
        assert answer.headers[":status"] == "200"
        assert answer.ended
        assert answer.trailers == {}
