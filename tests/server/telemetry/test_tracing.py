"""Traces as a collector gets them: from us as from a real etcd, and the steps that only we have."""

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import binary, is_target, running_etcd
from tests.kvorum import command, running_kvorum
from tests.ports import held_port
from tests.server.telemetry.collector import Collector, Span, running_collector
from tests.waiting import WAIT_SECONDS_MAX

STEPS = {"queue", "propose", "durable", "commit", "apply", "wait", "confirm", "read", "serve"}
STEPS |= {"reply"}
FLAGS = (
    "--enable-distributed-tracing",
    "--distributed-tracing-service-name=store",
    "--distributed-tracing-instance-id=one",
)
LEASE_SECONDS = 100_000
"""No lease is to end in these tests: both servers would not end it at the same moment."""
CALLER = "00f067aa0ba902b7"
"""The span in which clients make their calls."""

TRACES = count(1)


def trace_id() -> str:
    """Return an id that no other call has."""
    return f"{next(TRACES):032x}"


def parent(trace: str, flags: str = "01") -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{trace}-{CALLER}-{flags}"), ("tracestate", "vendor=1"))


class Traced(NamedTuple):
    """A server, and the collector that it sends its spans to."""

    address: str
    collector: Collector
    channel: grpc.Channel

    def ask(self, path: str, request: Message, metadata: Any = ()) -> grpc.StatusCode:
        """Make a unary call; return how it ended."""
        call = self.channel.unary_unary(
            path, request_serializer=type(request).SerializeToString
        ).with_call
        try:
            _, ended = call(request, metadata=metadata, timeout=WAIT_SECONDS_MAX)
        except grpc.RpcError as error:
            ended = error
        code: grpc.StatusCode = ended.code()
        return code

    def stream(self, path: str, requests: Iterator[Message], metadata: Any) -> Any:
        """Open a stream; return its answers, as bytes."""
        call = self.channel.stream_stream(
            path, request_serializer=lambda request: request.SerializeToString()
        )
        return call(requests, metadata=metadata, timeout=WAIT_SECONDS_MAX)

    def spans(self, trace: str) -> list[Span]:
        """Wait for a trace; the span of a call comes last."""

        def of_trace(spans: list[Span]) -> list[Span]:
            return [span for span in spans if span.trace == trace]

        def is_whole(spans: list[Span]) -> bool:
            return any(span.kind == 2 for span in of_trace(spans))

        return of_trace(self.collector.wait(is_whole))


Start = Callable[..., Any]


def started(
    stack: ExitStack, start: Start, directory: Path, rate: int, collector: Collector | None = None
) -> Traced:
    if collector is None:
        collector = stack.enter_context(running_collector())
    address = f"--distributed-tracing-address={collector.address}"
    sampling = f"--distributed-tracing-sampling-rate={rate}"
    server = stack.enter_context(start(directory, *FLAGS, address, sampling))
    channel = stack.enter_context(grpc.insecure_channel(server.address))
    return Traced(server.address, collector, channel)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traced")


@pytest.fixture(scope="module", autouse=True)
def prompt() -> Iterator[None]:
    """Let both servers send what they have at once: the libraries of both read this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        # Milliseconds to etcd's library, and seconds to ours.
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{WAIT_SECONDS_MAX * 1000:.0f}")
        yield


@pytest.fixture(scope="module")
def ours(directory: Path, prompt: None) -> Iterator[Traced]:
    del prompt
    with ExitStack() as stack:
        yield started(stack, running_kvorum, directory / "ours", 0)


@pytest.fixture(scope="module")
def both(directory: Path, ours: Traced) -> Iterator[tuple[Traced, Traced]]:
    if not is_target():
        pytest.skip("this etcd has other spans")
    with ExitStack() as stack:
        yield ours, started(stack, running_etcd, directory / "etcd", 0)


def shape(spans: list[Span]) -> list[Any]:
    """Return what both must have in common, in order of the names."""
    names = {span.id: span.name for span in spans}
    shapes = [
        (
            span.name,
            names.get(span.parent, span.parent),
            span.kind,
            {name: value for name, value in span.attributes.items() if name != "server.port"},
            span.events,
            span.status,
            span.state,
            span.resource,
        )
        for span in spans
        if span.name not in STEPS
    ]
    return sorted(shapes, key=lambda each: (each[0], sorted(each[3].items())))


def compare(both: tuple[Traced, Traced], act: Callable[[Traced, Any], object]) -> list[Span]:
    """Do the same to both; return our spans."""
    trace = trace_id()
    answers = [act(traced, parent(trace)) for traced in both]
    assert answers[0] == answers[1]
    ours, theirs = (traced.spans(trace) for traced in both)
    assert shape(ours) == shape(theirs)
    return ours


KEY = st.sampled_from([b"", b"a", b"b", "ключ".encode(), b"a/long/key"])
RANGE_END = st.sampled_from([b"", b"\0", b"b", b"z"])
LEASE = st.sampled_from([0, 0, 7])
REVISION = st.sampled_from([0, 0, 1, 10**9])
PUTS = st.builds(pb.PutRequest, key=KEY, value=st.just(b"v"), lease=LEASE)
RANGES = st.builds(
    pb.RangeRequest,
    key=KEY,
    range_end=RANGE_END,
    revision=REVISION,
    limit=st.integers(0, 2),
    serializable=st.booleans(),
    keys_only=st.booleans(),
    count_only=st.booleans(),
)
DELETES = st.builds(pb.DeleteRangeRequest, key=KEY, range_end=RANGE_END)
OPERATIONS = st.lists(
    st.one_of(
        st.builds(pb.RequestOp, request_put=PUTS),
        st.builds(pb.RequestOp, request_range=RANGES),
        st.builds(pb.RequestOp, request_delete_range=DELETES),
    ),
    max_size=2,
)
COMPARES = st.lists(st.builds(pb.Compare, key=KEY, version=st.just(0)), max_size=2)
TXNS = st.builds(pb.TxnRequest, compare=COMPARES, success=OPERATIONS, failure=OPERATIONS)
LEASE_IDS = st.integers(0, 9)
REQUESTS = st.one_of(
    st.tuples(st.just("/etcdserverpb.KV/Put"), PUTS),
    st.tuples(st.just("/etcdserverpb.KV/Range"), RANGES),
    st.tuples(st.just("/etcdserverpb.KV/DeleteRange"), DELETES),
    st.tuples(st.just("/etcdserverpb.KV/Txn"), TXNS),
    st.tuples(
        st.just("/etcdserverpb.KV/Compact"),
        st.builds(pb.CompactionRequest, revision=st.sampled_from([0, 1, 10**9])),
    ),
    st.tuples(
        st.just("/etcdserverpb.Lease/LeaseGrant"),
        st.builds(
            pb.LeaseGrantRequest, ID=st.integers(1, 9), TTL=st.sampled_from([LEASE_SECONDS, 10**12])
        ),
    ),
    st.tuples(
        st.just("/etcdserverpb.Lease/LeaseRevoke"), st.builds(pb.LeaseRevokeRequest, ID=LEASE_IDS)
    ),
    st.tuples(
        st.just("/etcdserverpb.Lease/LeaseTimeToLive"),
        st.builds(pb.LeaseTimeToLiveRequest, ID=LEASE_IDS),
    ),
    st.tuples(st.just("/etcdserverpb.Maintenance/Status"), st.just(pb.StatusRequest())),
    st.tuples(st.just("/etcdserverpb.Cluster/MemberList"), st.just(pb.MemberListRequest())),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(request=REQUESTS)
def test_unary_calls_have_the_spans_of_a_real_etcd(
    both: tuple[Traced, Traced], request: tuple[str, Message]
) -> None:
    path, message = request
    spans = compare(both, lambda traced, metadata: traced.ask(path, message, metadata))
    call = next(span for span in spans if span.kind == 2)
    by_id = {span.id: span for span in spans}
    for span in spans:
        # Every span lies within its parent, and steps do not overlap.
        assert call.began <= span.began <= span.ended <= call.ended
        assert span is call or span.parent in by_id
    steps = sorted((span.began, span.ended) for span in spans if span.name in STEPS)
    assert all(one[1] <= other[0] for one, other in pairwise(steps))
    assert not steps or sum(ended - began for began, ended in steps) == call.ended - call.began


def keep_alive(traced: Traced, metadata: Any) -> int:
    traced.ask("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest(ID=70, TTL=LEASE_SECONDS))
    requests = [pb.LeaseKeepAliveRequest(ID=number) for number in (70, 71)]
    path = "/etcdserverpb.Lease/LeaseKeepAlive"
    return len(list(traced.stream(path, iter(requests), metadata)))


def range_stream(traced: Traced, metadata: Any) -> int:
    requests = iter([pb.RangeRequest(key=b"a", range_end=b"\0", limit=1)])
    return len(list(traced.stream("/etcdserverpb.KV/RangeStream", requests, metadata)))


def watch(traced: Traced, metadata: Any) -> list[Any]:
    requests: SimpleQueue[pb.WatchRequest | None] = SimpleQueue()
    answers = traced.stream("/etcdserverpb.Watch/Watch", iter(requests.get, None), metadata)
    told = []
    for request in (
        pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"w", range_end=b"\0")),
        pb.WatchRequest(create_request=pb.WatchCreateRequest(start_revision=1, prev_kv=True)),
        # Its range is empty: it is refused, and there is no span of it.
        pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"b", range_end=b"a")),
        pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=0)),
    ):
        requests.put(request)
        response = pb.WatchResponse.FromString(next(answers))
        told.append((response.watch_id, response.created, response.canceled))
    answers.cancel()
    requests.put(None)
    return told


@pytest.mark.parametrize("act", [keep_alive, range_stream, watch])
def test_streams_have_the_spans_of_a_real_etcd(
    both: tuple[Traced, Traced], act: Callable[[Traced, Any], object]
) -> None:
    compare(both, act)


def post(traced: Traced, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(traced.address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("POST", "/v3/kv/put", json.dumps({"key": "YQ=="}), headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_calls_in_json_are_traced_alike(both: tuple[Traced, Traced]) -> None:
    def act(traced: Traced, metadata: Any) -> int:
        return post(traced, {f"Grpc-Metadata-{name}": value for name, value in metadata})

    compare(both, act)


def test_calls_that_their_client_does_not_trace_are_not_traced(ours: Traced) -> None:
    put = "/etcdserverpb.KV/Put"
    others = [trace_id() for _ in range(3)]
    ours.ask(put, pb.PutRequest(key=b"k"))
    ours.ask(put, pb.PutRequest(key=b"k"), parent(others[0], "00"))
    ours.ask(put, pb.PutRequest(key=b"k"), (("traceparent", f"00-{others[1]}-nonsense-01"),))
    ours.ask(put, pb.PutRequest(key=b"k"), (("tracestate", "a=b"),))
    last = trace_id()
    ours.ask(put, pb.PutRequest(key=b"k"), parent(last))
    ours.spans(last)
    known = {span.trace for span in ours.collector.spans}
    assert not known & set(others)
    # Calls without a valid parent would have traces of their own.
    assert all(int(trace, 16) <= int(last, 16) for trace in known)


def test_keys_that_are_no_text(ours: Traced) -> None:
    """Such an attribute would cost etcd the whole batch."""
    trace = trace_id()
    ours.ask("/etcdserverpb.KV/Put", pb.PutRequest(key=b"a\xff" * 1000), parent(trace))
    (put,) = [span for span in ours.spans(trace) if span.name == "put"]
    assert put.attributes["key"].startswith(r"a\xffa\xff") and len(put.attributes["key"]) < 4096


@pytest.mark.parametrize("edge", ["", "python"])
def test_every_call_is_traced_at_the_highest_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge: str
) -> None:
    """And the end of the process sends what is left."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    if edge:
        monkeypatch.setenv("KVORUM_EDGE", edge)
    with ExitStack() as outer:
        with ExitStack() as inner:
            collector = outer.enter_context(running_collector())
            traced = started(inner, running_kvorum, tmp_path / "data", 1_000_000, collector)
            for number in range(50):
                traced.ask("/etcdserverpb.KV/Put", pb.PutRequest(key=b"%d" % number))
            assert not collector.spans
        puts = [span for span in collector.spans if span.name == "put"]
    assert {span.attributes["key"] for span in puts} == {str(number) for number in range(50)}
    assert len({span.trace for span in puts}) == 50
    roots = [span for span in collector.spans if not span.parent]
    assert len(roots) == 50 and {span.name for span in roots} == {"etcdserverpb.KV/Put"}


@pytest.mark.long
def test_a_collector_that_is_gone_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here it is the library's own, for which the end of the server waits.
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT")
    rate = "--distributed-tracing-sampling-rate=1000000"
    with held_port() as port, ExitStack() as stack:
        address = f"--distributed-tracing-address=127.0.0.1:{port}"
        server = stack.enter_context(running_kvorum(tmp_path / "data", *FLAGS, address, rate))
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        traced = Traced(server.address, Collector(), channel)
        for number in range(100):
            request = pb.PutRequest(key=b"%d" % number)
            assert traced.ask("/etcdserverpb.KV/Put", request) is grpc.StatusCode.OK
        server.process.terminate()
        server.process.wait(WAIT_SECONDS_MAX)
    lines = [json.loads(line) for line in server.lines]
    assert any(line["msg"] == "closed etcd server" for line in lines)
    told = {"distributed tracing", "the last spans were not sent: the collector does not answer"}
    assert any(line["msg"].startswith(tuple(told)) for line in lines)


def test_without_the_library_the_flag_says_what_to_install(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    program = "import sys; sys.modules['opentelemetry'] = None\n"
    program += "from kvorum.process.main import run; sys.exit(run(sys.argv[1:]))"
    arguments = command(directory, "127.0.0.1:0", *FLAGS)[1:]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'kvorum[tracing]'" in done.stderr and "Traceback" not in done.stderr
    assert not directory.exists()


@pytest.mark.parametrize("rate", [-1, 1_000_001])
def test_a_rate_that_cannot_be_is_refused_in_etcds_words(tmp_path: Path, rate: int) -> None:
    flags = ("--enable-distributed-tracing", f"--distributed-tracing-sampling-rate={rate}")
    programs = [command(tmp_path / "ours", "127.0.0.1:0", *flags)]
    if is_target():
        programs.append([str(binary("etcd")), f"--data-dir={tmp_path / 'etcd'}", *flags])
    texts = []
    for program in programs:
        done = subprocess.run(
            program, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False
        )
        assert done.returncode == 1
        line = next(line for line in done.stderr.splitlines() if "failed to verify" in line)
        texts.append(json.loads(line)["error"])
    assert len(set(texts)) == 1 and "distributed tracing configurition" in texts[0]
