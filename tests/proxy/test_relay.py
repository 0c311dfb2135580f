"""Unary calls that pass the proxy, between a real client and a member that does as the test says.

With the native edge the network thread relays them, otherwise the loop: both do the same.
"""

import http.client
import select
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame, RstStreamFrame

from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge import make_upstream, open_edge
from kvorum.network.edge.upstream import UpstreamEvent, UpstreamEventKind
from kvorum.proxy import proxy as proxy_module
from kvorum.proxy.kv import LINEARIZABLE
from kvorum.proxy.proxy import ProxyPhase
from tests.network.edge.conftest import edge_kind
from tests.network.edge.raw_server import OK_HEADERS, RawServer
from tests.network.edge.wire import SECONDS, message
from tests.proxy.running import Running, running_proxy
from tests.waiting import WAIT_SECONDS_MAX, until

__all__ = ["edge_kind"]

PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
REFUSED_STREAM = 7
REQUEST_BYTES_MAX = 10_000


@pytest.fixture
def member() -> Iterator[RawServer]:
    with RawServer() as server:
        yield server


@pytest.fixture
def proxy(edge_kind: str, member: RawServer) -> Iterator[Running]:
    with running_proxy(member.address, send_bytes_max=REQUEST_BYTES_MAX) as running:
        assert (running.proxy.routes.relay is not None) == (edge_kind == "native")
        member.accept()
        yield running


@pytest.fixture
def channel(proxy: Running) -> Iterator[Any]:
    with grpc.insecure_channel(proxy.address) as channel:
        yield channel


def begin(channel: Any, path: str, request: bytes, **metadata: str) -> Any:
    """Make a call, which is answered later."""
    return channel.unary_unary(path).future(
        request, timeout=SECONDS, metadata=tuple(metadata.items())
    )


def expect(member: RawServer, path: str, request: bytes) -> tuple[int, dict[str, str]]:
    """Wait for a call at the member; return its stream and its headers.

    What the proxy asks by itself, whenever it does, is passed over and not answered.
    """
    calls: dict[int, dict[str, str]] = {}
    bodies: defaultdict[int, bytes] = defaultdict(bytes)
    while True:
        frame = member.expect(Frame)
        stream = frame.stream_id
        if isinstance(frame, HeadersFrame):
            calls[stream] = {str(k): str(v) for k, v in member._decoder.decode(frame.data)}
        elif isinstance(frame, DataFrame):
            bodies[stream] += frame.data
        is_asked = stream in calls and calls[stream][":path"] == path
        if is_asked and bodies[stream] == message(request):
            return stream, calls[stream]


def header(revision: int) -> pb.ResponseHeader:
    return pb.ResponseHeader(cluster_id=1, member_id=2, revision=revision, raft_term=3)


def counters(proxy: Running) -> set[str]:
    """Return what is shown of calls of Put and Range."""
    connection = http.client.HTTPConnection(proxy.address, timeout=SECONDS)
    try:
        connection.request("GET", "/proxy/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    found = [line for line in lines if 'grpc_method="Put"' in line or 'grpc_method="Range"' in line]
    keys = ("grpc_code", "grpc_method")
    shown = set()
    for line in found:
        name, _, rest = line.partition("{")
        labels = dict(each.split("=") for each in rest.partition("}")[0].split(","))
        shown.add(" ".join([name, *(labels.get(key, "") for key in keys), line.split()[-1]]))
    return shown


def test_what_is_said_passes_as_it_is(proxy: Running, channel: Any, member: RawServer) -> None:
    call = begin(channel, PUT, b"question", token="t", hasleader="true", other="not passed on")
    stream, headers = expect(member, PUT, b"question")
    assert (headers["token"], headers["hasleader"]) == ("t", "true")
    assert "other" not in headers
    member.answer(stream, b"answer")
    assert call.result() == b"answer"
    for status, shown in (("5", "NOT_FOUND"), ("99", "UNKNOWN")):
        call = begin(channel, PUT, b"")
        stream, headers = expect(member, PUT, b"")
        assert "token" not in headers
        end = (("grpc-status", status), ("grpc-message", "why"))
        member.send(member.headers(stream, *OK_HEADERS, *end, ends=True))
        assert (call.code().name, call.details()) == (shown, "why")
    assert counters(proxy) == {
        'grpc_server_started_total  "Put" 3',
        'grpc_server_handled_total "OK" "Put" 1',
        'grpc_server_handled_total "NotFound" "Put" 1',
        'grpc_server_handled_total "Unknown" "Put" 1',
    }


def test_what_no_member_has_looked_at_is_asked_again(
    proxy: Running, channel: Any, member: RawServer
) -> None:
    call = begin(channel, PUT, b"question")
    stream, _ = expect(member, PUT, b"question")
    assert counters(proxy) == {'grpc_server_started_total  "Put" 1'}
    member.reset(stream, REFUSED_STREAM)
    again, _ = expect(member, PUT, b"question")
    assert again != stream
    member.answer(again, b"answer")
    assert call.result() == b"answer"
    assert counters(proxy) == {
        'grpc_server_started_total  "Put" 1',
        'grpc_server_handled_total "OK" "Put" 1',
    }


def test_what_a_member_may_have_looked_at_is_not(
    proxy: Running, channel: Any, member: RawServer
) -> None:
    call = begin(channel, PUT, b"question")
    expect(member, PUT, b"question")
    member.close()
    assert call.code() is grpc.StatusCode.UNAVAILABLE
    call = begin(channel, PUT, b"another")
    member.accept()
    stream, _ = expect(member, PUT, b"another")
    member.answer(stream, b"")
    assert call.result() == b""
    assert 'grpc_server_handled_total "Unavailable" "Put" 1' in counters(proxy)


def test_a_client_that_goes_takes_its_call_with_it(channel: Any, member: RawServer) -> None:
    call = begin(channel, PUT, b"question")
    stream, _ = expect(member, PUT, b"question")
    call.cancel()
    # The proxy may cancel questions of its own meanwhile, which nobody answers here.
    while member.expect(RstStreamFrame).stream_id != stream:
        pass


def test_a_call_that_is_too_large_is_refused(channel: Any, member: RawServer) -> None:
    call = begin(channel, PUT, bytes(REQUEST_BYTES_MAX + 1))
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    call = begin(channel, PUT, bytes(REQUEST_BYTES_MAX))
    member.answer(expect(member, PUT, bytes(REQUEST_BYTES_MAX))[0], b"")
    assert call.result() == b""


def test_a_read_sees_acknowledged_writes(channel: Any, member: RawServer) -> None:
    call = begin(channel, PUT, b"question")
    written = pb.PutResponse(header=header(10)).SerializeToString()
    member.answer(expect(member, PUT, b"question")[0], written)
    assert call.result() == written
    request = pb.RangeRequest(key=b"k", serializable=True).SerializeToString()
    call = begin(channel, RANGE, request)
    old = pb.RangeResponse(header=header(9)).SerializeToString()
    member.answer(expect(member, RANGE, request)[0], old)
    new = pb.RangeResponse(header=header(10)).SerializeToString()
    member.answer(expect(member, RANGE, request + LINEARIZABLE)[0], new)
    assert call.result() == new


def test_the_end_waits_for_calls(
    proxy: Running, channel: Any, member: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise it waits for some seconds, in which this test may stand still.
    monkeypatch.setattr(proxy_module, "DRAIN_SECONDS_MAX", WAIT_SECONDS_MAX)
    call = begin(channel, PUT, b"question")
    stream, _ = expect(member, PUT, b"question")
    proxy.begin_to_drain()
    assert proxy.has_begun_to_drain.wait(SECONDS)
    assert proxy.proxy.phase is not ProxyPhase.SERVING
    assert not call.done()
    member.answer(stream, b"answer")
    assert call.result() == b"answer"


@pytest.mark.parametrize("is_edge_first", [True, False])
def test_both_sides_of_a_thread_can_be_stopped_first(
    edge_kind: str, member: RawServer, is_edge_first: bool
) -> None:
    assert edge_kind
    edge = open_edge([(PUT, False)])
    upstream = make_upstream(edge=edge)
    upstream.connect(1, member.address, member.address)
    accepting = member.accept_later()

    def poll() -> list[UpstreamEvent]:
        events = upstream.poll(1, 1)
        if not events and upstream.announce_sleep():
            select.select([upstream.fileno()], [], [], WAIT_SECONDS_MAX)
        upstream.awake()
        return events

    events = until("it is told that it is connected", poll)
    accepting.join()
    assert events == [(UpstreamEventKind.CONNECTED, 1, None)]
    for each in (edge, upstream) if is_edge_first else (upstream, edge):
        each.stop()
    upstream.stop()
    with pytest.raises((EOFError, ConnectionError)):
        member.expect(DataFrame)
