"""Traces of calls: etcd's spans, with the steps of a request inside.

The server traces a call if the client's W3C `traceparent` asks for it or, without a valid
`traceparent`, if the sampling rate picks the call. The spans of a unary call are made when it has
ended, from its times and the milestones; until then a traced call costs one small object, and any
other call nothing.
"""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Final, TypeVar, cast

from google.protobuf.message import DecodeError
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Span, SpanKind, get_current_span, set_span_in_context
from opentelemetry.trace import Status as SpanStatus
from opentelemetry.trace import StatusCode as SpanCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvorum.api.boundary import Boundary
from kvorum.api.errors import REQUEST_TOO_LARGE, REQUEST_TOO_MANY_REQUESTS, Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.interface import Metadata, Request
from kvorum.process.settings.checks import SAMPLING_RATE_MAX
from kvorum.server.rpc.table import RPCS, TRACE_KEYS
from kvorum.server.telemetry import operations
from kvorum.server.telemetry.counting import PROPOSAL_FAILURES
from kvorum.server.telemetry.milestones import Milestones, Step, Way
from kvorum.server.telemetry.operations import Attributes, TracedOperation

CALLS_SCOPE: Final = "kvorum"
OPERATIONS_SCOPE: Final = "go.etcd.io/etcd"
"""Instrumentation scopes of spans. Operations use etcd's, because dashboards made for etcd look
for it."""

FAULTS: Final = frozenset(
    {
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.UNIMPLEMENTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
        Code.DATA_LOSS,
    }
)
"""Codes that are the server's fault; they mark its span as an error."""
UNPROPOSED: Final = frozenset({REQUEST_TOO_LARGE, REQUEST_TOO_MANY_REQUESTS})

_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
_WATCH: Final = "/etcdserverpb.Watch/Watch"
_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"

Part = tuple[TracedOperation, int]
"""An operation of a stream, and its start in nanoseconds of Unix time."""


SAMPLER: Final = ParentBased(ALWAYS_ON)
"""The library samples every span, because `CallTracing` makes spans only for calls it picked."""


class SampledIds(RandomIdGenerator):
    """Generates trace ids that any trace-id ratio sampler with at least this rate picks too."""

    def __init__(self, rate: int) -> None:
        self._limit = max(1, (rate << 64) // SAMPLING_RATE_MAX)

    def generate_trace_id(self) -> int:
        """Return an id whose last eight bytes are below the rate's limit."""
        trace_id = 0
        while not trace_id:
            below = random.randrange(self._limit)  # noqa: S311 (nobody gains by guessing it)
            trace_id = random.getrandbits(64) << 64 | below
        return trace_id


class Traced:
    """A unary call that is traced, until it ends."""

    __slots__ = ("began", "operation", "parent", "path")

    def __init__(
        self, parent: Context, path: str, began: float, operation: TracedOperation | None
    ) -> None:
        self.parent = parent
        self.path = path
        self.began = began
        self.operation = operation


class TracedStream:
    """A stream that is traced, until it ends."""

    __slots__ = ("parts", "path", "span", "watches")

    def __init__(self, span: Span, path: str) -> None:
        self.span = span
        self.path = path
        # Operations that the server has not answered yet, in order; created watchers by id.
        self.parts: deque[Part] = deque()
        self.watches: dict[int, Part] = {}


_Method = TypeVar("_Method", bound=Callable[..., None])


def _bounded(method: _Method) -> _Method:
    """Contain the errors of a tracing method: they may lose a trace, but end no call."""

    @wraps(method)
    def observe(self: "CallTracing", *arguments: object) -> None:
        try:
            method(self, *arguments)
        except Exception as error:
            self.boundary.take(error, "trace", "the trace of a call")

    return cast("_Method", observe)


class CallTracing:
    """Traces the calls of one server. See `kvorum.server.telemetry.interface.Tracing`."""

    def __init__(
        self,
        provider: TracerProvider,
        milestones: Milestones,
        clock: Callable[[], float],
        boundary: Boundary,
        rate: int,
        server: Attributes,
        chance: random.Random,
    ) -> None:
        """Trace `rate` of `SAMPLING_RATE_MAX` calls; `server` holds the server's attributes."""
        self._calls = provider.get_tracer(CALLS_SCOPE)
        self._operations = provider.get_tracer(OPERATIONS_SCOPE)
        self._milestones = milestones
        self._clock = clock
        self.boundary = boundary
        self._rate = rate
        self._server = server
        self._chance = chance
        self._propagator = TraceContextTextMapPropagator()
        self._unary: dict[int, Traced] = {}
        self._streams: dict[int, TracedStream] = {}
        # How many calls without a parent to skip before tracing the next one.
        self._passed_over = self._gap()

    def _gap(self) -> int:
        if self._rate >= SAMPLING_RATE_MAX or not self._rate:
            return 0
        return int(
            math.log(1.0 - self._chance.random()) / math.log1p(-self._rate / SAMPLING_RATE_MAX)
        )

    def _parent(self, metadata: Metadata | None) -> Context | None:
        """Return the parent context of a traced call; None if the call is not traced."""
        if metadata is not None and TRACE_KEYS[0] in metadata:
            carrier = {key: metadata.get(key, b"").decode("latin-1") for key in TRACE_KEYS}
            found = self._propagator.extract(carrier, Context())
            given = get_current_span(found).get_span_context()
            if given.is_valid:
                return found if given.trace_flags.sampled else None
        if not self._rate:
            return None
        if self._passed_over:
            self._passed_over -= 1
            return None
        self._passed_over = self._gap()
        return Context()

    # Unary calls.

    @_bounded
    def note_calls(self, requests: Sequence[Request], now: float) -> None:
        """Record the unary calls to trace among those that arrived."""
        for call, method, payload, metadata in requests:
            parent = self._parent(metadata)
            if parent is not None:
                path = RPCS[method].path
                found = operations.operation(path, payload)
                self._unary[call] = Traced(parent, path, now, found)

    @_bounded
    def note_replies(self, batch: Sequence[tuple[int, bytes | Status]], is_delivered: bool) -> None:
        """Make the spans of answered unary calls; `is_delivered`: the member made the answers."""
        if self._unary:
            for call, result in batch:
                traced = self._unary.pop(call, None)
                if traced is not None:
                    self._end_unary(traced, result, is_delivered)

    def _end_unary(self, traced: Traced, result: bytes | Status, is_delivered: bool) -> None:
        now = self._clock()
        moments = Moments(now)
        span = self._call_span(traced.parent, traced.path, moments.at(traced.began))
        # A call refused before the member has no operation.
        if is_delivered:
            self._add_operation(span, traced, result, now, moments)
        code, text = Code.OK, ""
        if isinstance(result, Status):
            code, text = result.code, result.text
        _end_call(span, code, text, moments.at(now))

    def _add_operation(
        self, span: Span, traced: Traced, result: bytes | Status, now: float, moments: "Moments"
    ) -> None:
        """Add the span of a call's operation, and those of its steps."""
        operation = traced.operation
        way = Way.OTHER if operation is None else operation.way
        is_proposed, failure = way is Way.WRITE, None
        if isinstance(result, Status) and (result in UNPROPOSED or result in PROPOSAL_FAILURES):
            is_proposed, failure = is_proposed and result not in UNPROPOSED, result
        steps = self._milestones.steps(way, traced.began, now, is_done=failure is None)
        if operation is None:
            self._add_steps(steps, span, moments)
            return
        # The operation begins where the queue ends.
        queue, *steps = steps
        self._add_steps([queue], span, moments)
        part = self._part_span(span, operation, moments.at(queue[2]))
        if traced.path == _GRANT and isinstance(result, bytes):
            # The request has no id if the server chose it.
            part.set_attribute("id", pb.LeaseGrantResponse.FromString(result).ID)
        if is_proposed:
            part.add_event("Send raft proposal", timestamp=moments.at(queue[2]))
        if failure is not None:
            error = {"exception.type": failure.code.name, "exception.message": failure.text}
            part.add_event("exception", error, moments.at(now))
        elif is_proposed:
            part.add_event("Receive raft result", timestamp=moments.at(steps[-1][1]))
        self._add_steps(steps, part, moments)
        part.end(moments.at(now))

    def _add_steps(self, steps: Iterable[Step], span: Span, moments: "Moments") -> None:
        within = set_span_in_context(span, Context())
        for name, began, ended in steps:
            step = self._calls.start_span(name, within, start_time=moments.at(began))
            step.end(moments.at(ended))

    # Streams.

    @_bounded
    def note_stream(self, call: int, method: int, metadata: Metadata | None) -> None:
        """Start the span of a stream, if it is to be traced."""
        parent = self._parent(metadata)
        if parent is not None:
            path = RPCS[method].path
            span = self._call_span(parent, path, time.time_ns())
            self._streams[call] = TracedStream(span, path)

    @_bounded
    def note_message(self, call: int, message: bytes) -> None:
        """Record an operation that a stream's client requests; end a cancelled watcher's span."""
        stream = self._streams.get(call)
        if stream is None:
            return
        try:
            if stream.path == _WATCH:
                request = pb.WatchRequest.FromString(message)
                if request.HasField("create_request"):
                    part = operations.watch(request.create_request)
                    stream.parts.append((part, time.time_ns()))
                elif request.HasField("cancel_request"):
                    watcher = stream.watches.pop(request.cancel_request.watch_id, None)
                    self._end_parts(stream, [] if watcher is None else [watcher])
            elif stream.path == _KEEP_ALIVE:
                stream.parts.append((operations.lease_renew(message), time.time_ns()))
            elif (found := operations.operation(stream.path, message)) is not None:
                stream.parts.append((found, time.time_ns()))
        except DecodeError:
            return  # the services end a stream with a malformed message

    @_bounded
    def note_sent(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Match answers on streams with the operations that the clients requested."""
        if not self._streams:
            return
        for call, message in batch:
            stream = self._streams.get(call)
            if stream is None or not stream.parts:
                continue
            if stream.path == _KEEP_ALIVE:
                self._end_parts(stream, [stream.parts.popleft()])
            elif stream.path == _WATCH:
                response = pb.WatchResponse.FromString(message)
                if response.created:
                    part = stream.parts.popleft()
                    if not response.canceled:
                        stream.watches[response.watch_id] = part

    @_bounded
    def note_end(self, call: int, code: Code, text: str) -> None:
        """End the spans of a stream, or of a unary call whose client left."""
        traced = self._unary.pop(call, None)
        if traced is not None:
            moments = Moments(self._clock())
            span = self._call_span(traced.parent, traced.path, moments.at(traced.began))
            _end_call(span, code, text, time.time_ns())
        stream = self._streams.pop(call, None)
        if stream is not None:
            # Watchers that were never created have no span.
            left = stream.watches.values() if stream.path == _WATCH else stream.parts
            self._end_parts(stream, left)
            _end_call(stream.span, code, text, time.time_ns())

    def _end_parts(self, stream: TracedStream, parts: Iterable[Part]) -> None:
        for operation, began in parts:
            self._part_span(stream.span, operation, began).end()

    # Spans.

    def _call_span(self, parent: Context, path: str, began: int) -> Span:
        name = path[1:]
        attributes = {"rpc.method": name, "rpc.system.name": "grpc", **self._server}
        return self._calls.start_span(name, parent, SpanKind.SERVER, attributes, start_time=began)

    def _part_span(self, span: Span, operation: TracedOperation, began: int) -> Span:
        within = set_span_in_context(span, Context())
        name, attributes, _ = operation
        return self._operations.start_span(name, within, attributes=attributes, start_time=began)


class Moments:
    """Converts moments of the server's clock to Unix time in nanoseconds."""

    __slots__ = ("_now", "_unix")

    def __init__(self, now: float) -> None:
        self._now = now
        self._unix = time.time_ns()

    def at(self, moment: float) -> int:
        """Return the Unix time of a moment."""
        return self._unix - round((self._now - moment) * 1e9)


def _end_call(span: Span, code: Code, text: str, ended: int) -> None:
    if code in FAULTS:
        span.set_status(SpanStatus(SpanCode.ERROR, text))
    span.set_attribute("rpc.response.status_code", code.name)
    span.end(ended)
