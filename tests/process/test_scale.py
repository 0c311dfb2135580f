"""Many connections, watchers, leases and keys at once, on one server that runs for all of it.

The load comes from h2load, which holds thousands of streams open cheaply; a real client checks how
the server copes.
"""

import re
import resource
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseLeasesRequest,
    LeaseLeasesResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RangeStreamResponse,
    RequestOp,
    TxnRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from tests.kvorum import Kvorum, running_kvorum

pytestmark = pytest.mark.timeout(240)

CONNECTIONS = 10_000
STREAMS, WATCHERS_PER_STREAM = 1_000, 100
LEASES = 50_000
KEYS, VALUE = 100_000, b"v" * 512


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvorum]:
    with running_kvorum(tmp_path_factory.mktemp("scale") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: Kvorum) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as connection:
        yield connection


def put(channel: Any, key: bytes, value: bytes) -> PutResponse:
    call = channel.unary_unary("/etcdserverpb.KV/Put", None, PutResponse.FromString)
    request = PutRequest(key=key, value=value)
    return call(request.SerializeToString(), timeout=60)  # type: ignore[no-any-return]


def metric(server: Kvorum, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.address}/metrics") as page:
        found = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def anonymous_bytes(server: Kvorum) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@contextmanager
def h2load(server: Kvorum, path: str, body: Path, *arguments: str) -> Iterator[Any]:
    program = shutil.which("h2load")
    if program is None:
        pytest.skip("h2load is not installed")
    command = [program, "-t", "1", "-d", str(body), "-H", "content-type: application/grpc"]
    command += ["-H", "te: trailers", *arguments, f"http://{server.address}{path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        yield process
        process.kill()


def framed(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)


@pytest.mark.long
def test_ten_thousand_connections(server: Kvorum, channel: Any) -> None:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < CONNECTIONS + 500:
        pytest.skip(f"this process may open {limit} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    host, _, port = server.address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(preface)
        # The last one is served: its settings come back.
        assert connection.recv(9)[3:4] == b"\x04"
        assert put(channel, b"among many", b"").header.revision > 1


@pytest.mark.long
def test_a_hundred_thousand_watchers(server: Kvorum, channel: Any, tmp_path: Path) -> None:
    creates = [
        WatchRequest(create_request=WatchCreateRequest(key=b"watched/%d" % number))
        for number in range(WATCHERS_PER_STREAM)
    ]
    body = tmp_path / "creates"
    body.write_bytes(framed(*(create.SerializeToString() for create in creates)))
    watch = channel.stream_stream("/etcdserverpb.Watch/Watch", None, WatchResponse.FromString)
    streams = f"{STREAMS // 10}"
    with h2load(
        server, "/etcdserverpb.Watch/Watch", body, "-c", "10", "-m", streams, "-n", f"{STREAMS}"
    ):
        stream = watch(iter([creates[0].SerializeToString()]), timeout=200)
        assert next(stream).created
        while metric(server, "etcd_debugging_mvcc_watcher_total") <= STREAMS * WATCHERS_PER_STREAM:
            # Each put passes through the server, so this loop waits for it.
            put(channel, b"not watched", b"")
        revision = put(channel, b"watched/0", b"seen").header.revision
        event = next(stream)
        assert (event.header.revision, event.events[0].kv.value) == (revision, b"seen")
        stream.cancel()


@pytest.mark.long
def test_fifty_thousand_leases(server: Kvorum, channel: Any, tmp_path: Path) -> None:
    body = tmp_path / "grant"
    body.write_bytes(framed(LeaseGrantRequest(TTL=3600).SerializeToString()))
    path = "/etcdserverpb.Lease/LeaseGrant"
    with h2load(server, path, body, "-c", "10", "-m", "50", "-n", str(LEASES)) as process:
        output = process.stdout.read()
    assert f"{LEASES} succeeded" in output, output
    ask = channel.unary_unary("/etcdserverpb.Lease/LeaseLeases")
    answer = ask(LeaseLeasesRequest().SerializeToString(), timeout=60)
    leases = LeaseLeasesResponse.FromString(answer).leases
    assert len({lease.ID for lease in leases}) == LEASES


def test_a_value_of_a_mebibyte_and_a_half(channel: Any) -> None:
    # An entry of the log may have 1.5 MiB, including the key and a header.
    largest = bytes(1_572_864 - 64)
    put(channel, b"large", largest)
    ask = channel.unary_unary("/etcdserverpb.KV/Range", None, RangeResponse.FromString)
    found = ask(RangeRequest(key=b"large").SerializeToString(), timeout=60)
    assert found.kvs[0].value == largest
    with pytest.raises(grpc.RpcError) as refused:
        put(channel, b"large", bytes(1_572_864))
    assert refused.value.details() == "etcdserver: request is too large"


@pytest.mark.long
def test_a_long_range_is_streamed_without_being_held(server: Kvorum, channel: Any) -> None:
    txn = channel.unary_unary("/etcdserverpb.KV/Txn")
    for start in range(0, KEYS, 100):
        puts = [
            RequestOp(request_put=PutRequest(key=b"long/%06d" % number, value=VALUE))
            for number in range(start, start + 100)
        ]
        txn(TxnRequest(success=puts).SerializeToString(), timeout=60)
    before = anonymous_bytes(server)
    stream = channel.unary_stream("/etcdserverpb.KV/RangeStream")(
        RangeRequest(key=b"long/", range_end=b"long0").SerializeToString(), timeout=100
    )
    seen, most = 0, 0
    for chunk in stream:
        seen += len(RangeStreamResponse.FromString(chunk).range_response.kvs)
        most = max(most, anonymous_bytes(server))
    assert seen == KEYS
    # The range is 50 MiB; only a few pieces of it wait for the client.
    assert most - before < KEYS * len(VALUE) // 3, f"{before} -> {most}"
