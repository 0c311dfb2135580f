"""Which calls are traced, and what their spans say where a real etcd cannot be asked."""

import logging
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from kvorum.api.boundary import Boundary
from kvorum.api.errors import REQUEST_TOO_LARGE, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.interface import Request
from kvorum.process.settings.checks import SAMPLING_RATE_MAX
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.telemetry.milestones import Milestones
from kvorum.server.telemetry.tracing import SAMPLER, CallTracing, SampledIds
from tests.member.harness import Machine
from tests.server.fronts import Fronts

PUT = NUMBERS["/etcdserverpb.KV/Put"]


class Spans:
    """Tracing whose spans stay in memory."""

    def __init__(self, machine: Machine, rate: int = SAMPLING_RATE_MAX) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(SAMPLER, id_generator=SampledIds(rate))
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        member, milestones = machine.running, machine.server.milestones
        self.tracing = CallTracing(
            provider, milestones, member.clock, member.boundary, rate, {}, Random(1)
        )
        machine.server.calls.tracing = self.tracing

    def taken(self) -> dict[str, ReadableSpan]:
        """Return the spans so far by their names, and forget them."""
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return {span.name: span for span in spans}

    def ids(self) -> list[int]:
        contexts = [span.context for span in self._exporter.get_finished_spans()]
        return [context.trace_id for context in contexts if context is not None]


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def test_a_proposal_without_an_outcome_is_recorded() -> None:
    cluster = Fronts(3)
    machine = cluster.leader()
    spans = Spans(machine)
    cluster.isolate(machine)
    cluster.pass_time(0.01)
    cluster.call(machine, "KV/Put", pb.PutRequest(key=b"k"))
    taken = spans.taken()
    assert set(taken) == {"etcdserverpb.KV/Put", "put", "queue", "propose", "durable", "commit"}
    assert events(taken["put"]) == ["Send raft proposal", "exception"]
    (_, failure) = taken["put"].events
    assert failure.attributes is not None
    assert failure.attributes["exception.message"] == "etcdserver: request timed out"
    call = taken["etcdserverpb.KV/Put"]
    assert call.status.status_code is StatusCode.ERROR
    assert call.status.description == "etcdserver: request timed out"
    assert call.attributes is not None
    assert call.attributes["rpc.response.status_code"] == "UNAVAILABLE"


def test_a_proposal_that_raft_never_got() -> None:
    cluster = Fronts(1, request_bytes_max=100)
    machine = cluster.leader()
    spans = Spans(machine)
    answer = cluster.call(machine, "KV/Put", pb.PutRequest(key=b"k", value=b"v" * 200))
    assert answer == REQUEST_TOO_LARGE
    taken = spans.taken()
    assert events(taken["put"]) == ["exception"]
    # Whose fault it is: the client's.
    assert taken["etcdserverpb.KV/Put"].status.status_code is StatusCode.UNSET


def test_the_lease_that_the_server_chose_is_told() -> None:
    cluster = Fronts(1)
    machine = cluster.leader()
    spans = Spans(machine)
    granted = cluster.call(machine, "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=60))
    assert spans.taken()["lease_grant"].attributes == {"id": granted.ID, "ttl": 60}


def test_an_error_in_a_trace_concerns_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Fronts(1)
    machine = cluster.leader()
    spans = Spans(machine)
    monkeypatch.setattr(spans.tracing, "_clock", None)
    assert not isinstance(cluster.call(machine, "KV/Put", pb.PutRequest(key=b"k")), Status)
    assert machine.running.boundary.counts == {"trace": 1}


@pytest.mark.parametrize(
    ("rate", "calls"), [(0, 1000), (1_000, 50_000), (100_000, 10_000), (SAMPLING_RATE_MAX, 1000)]
)
def test_so_many_of_a_million_are_traced(rate: int, calls: int) -> None:
    machine = Fronts(1).leader()
    spans = Spans(machine, rate)
    for call in range(calls):
        spans.tracing.note_calls([(call, PUT, b"", None)], 0.0)
        spans.tracing.note_replies([(call, b"")], False)
    traced = spans.ids()
    expected = calls * rate / SAMPLING_RATE_MAX
    is_all = rate == SAMPLING_RATE_MAX
    assert abs(len(traced) - expected) <= (0 if is_all else 5 * expected**0.5)
    # Whoever samples by the same rate, as other services of a trace may, picks them as well.
    sampler = TraceIdRatioBased(rate / SAMPLING_RATE_MAX)
    for trace in traced:
        assert sampler.should_sample(None, trace, "").decision is Decision.RECORD_AND_SAMPLE


PARENTS = st.from_regex(rb"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?\Z")
STATES = st.from_regex(rb"\A([a-z]{1,3}=[ -~]{0,5},?){0,4}\Z")


@given(st.one_of(PARENTS, st.binary(max_size=60)), st.one_of(STATES, st.binary(max_size=60)))
def test_whatever_clients_send_harms_nobody(traceparent: bytes, tracestate: bytes) -> None:
    boundary = Boundary(logging.getLogger("traces"), lambda: 0.0)
    tracing = CallTracing(
        TracerProvider(SAMPLER), Milestones(), lambda: 0.0, boundary, 0, {}, Random(1)
    )
    metadata = {"traceparent": traceparent, "tracestate": tracestate}
    request: Request = (1, PUT, b"", metadata)
    tracing.note_calls([request], 0.0)
    tracing.note_replies([(1, b"")], True)
    assert not boundary.counts
