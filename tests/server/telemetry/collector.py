"""A collector of spans for tests: the OTLP service over gRPC, which keeps what it is sent."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

from tests.waiting import WAIT_SECONDS_MAX


class Span(NamedTuple):
    """A span as it was received, with its resource and scope."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    scope: str
    attributes: dict[str, Any]
    events: list[str]
    status: tuple[int, str]
    state: str
    began: int
    ended: int
    resource: dict[str, Any]


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Collector(services.TraceServiceServicer):
    """Keeps spans, and lets a test wait for them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.address = ""
        self._arrived = threading.Condition()

    def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802 (the service's name)
        with self._arrived:
            for group in request.resource_spans:
                resource = _values(group.resource.attributes)
                for scoped in group.scope_spans:
                    for span in scoped.spans:
                        self.spans.append(
                            Span(
                                span.name,
                                span.trace_id.hex(),
                                span.span_id.hex(),
                                span.parent_span_id.hex(),
                                span.kind,
                                scoped.scope.name,
                                _values(span.attributes),
                                [event.name for event in span.events],
                                (span.status.code, span.status.message),
                                span.trace_state,
                                span.start_time_unix_nano,
                                span.end_time_unix_nano,
                                resource,
                            )
                        )
            self._arrived.notify_all()
        return messages.ExportTraceServiceResponse()

    def wait(self, is_enough: Callable[[list[Span]], bool]) -> list[Span]:
        """Return the spans as soon as they are enough."""
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: is_enough(self.spans), WAIT_SECONDS_MAX)
            assert arrived, f"only {[span.name for span in self.spans]} arrived"
            return list(self.spans)


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector for as long as the block takes."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
