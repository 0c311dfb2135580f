"""Plain HTTP at a proxy: health and metrics, of the cluster and of the proxy itself.

`/metrics` serves a member's metrics, `/health` reports whether the cluster answers a read;
`/proxy/metrics` serves the proxy's metrics, and `/proxy/health` reports whether a read and a watch
get through. Every other path is 404. The texts are etcd's.
"""

import json
from collections.abc import Callable, Iterator
from typing import Final

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.writing import get_request
from kvorum.client import rpcs
from kvorum.network.edge.upstream import End
from kvorum.proxy.namespace import Namespace
from kvorum.proxy.routes import Routes
from kvorum.server.http.http import TEXT, HttpEndpoint, HttpFront, HttpRequest
from kvorum.server.telemetry.exposition import Family, content_type, text

READ_SECONDS_MAX: Final = 1.0
WATCH_SECONDS_MAX: Final = 3.0
HEALTH_KEY: Final = b"a"
METRICS_TYPE: Final = ("content-type", "text/plain; version=0.0.4")

Fetch = Callable[[str, Callable[[bytes | None], None]], None]
"""Fetches a path from one of the members by plain HTTP, and passes the body, or None if there is
none, to the callback. The callback runs later, between two turns."""


class _Watch:
    """A health check's watch: it tests whether a member accepts one, then cancels itself."""

    def __init__(self, routes: Routes, namespace: Namespace, report: Callable[[str], None]) -> None:
        self._routes = routes
        self._report: Callable[[str], None] | None = report
        create = pb.WatchCreateRequest(key=namespace.prefix + HEALTH_KEY)
        self._stream = routes.open_stream(rpcs.WATCH.path, (), self)
        request = pb.WatchRequest(create_request=create)
        routes.send(self._stream, request.SerializeToString())
        self.until = routes.now + WATCH_SECONDS_MAX

    def take_message(self, _data: bytes) -> None:
        self.report_once("")

    def take_end(self, end: End) -> None:
        self.report_once(f"WATCH ERROR:{end[1]}")

    def take_writable(self) -> None:
        """Do nothing: the watch sends only one short request."""

    def report_once(self, problem: str) -> None:
        """Cancel the watch and report its problem ("" for none), once."""
        report, self._report = self._report, None
        if report is not None:
            self._routes.cancel(self._stream)
            report(problem)


class HttpEndpoints:
    """Serves the paths of plain HTTP."""

    def __init__(
        self,
        front: HttpFront,
        routes: Routes,
        namespace: Namespace,
        families: Callable[[], Iterator[Family]],
        fetch: Fetch | None,
        *,
        is_advertised: bool,
    ) -> None:
        self._front = front
        self._routes = routes
        self._namespace = namespace
        self._families = families
        self._fetch = fetch
        self._is_advertised = is_advertised
        self._watches: dict[int, _Watch] = {}
        front.add("/metrics", HttpEndpoint(self._metrics, on_metrics=True))
        front.add("/health", HttpEndpoint(self._health, on_metrics=True))
        front.add("/proxy/metrics", HttpEndpoint(self._own_metrics, on_metrics=True))
        front.add("/proxy/health", HttpEndpoint(self._own_health, on_metrics=True))

    def pass_time(self, now: float) -> float:
        """End watches that take too long; return when the next one will."""
        for watch in [each for each in self._watches.values() if each.until <= now]:
            watch.report_once("WATCH TIMEOUT")
        return min((each.until for each in self._watches.values()), default=float("inf"))

    # Metrics.

    def _metrics(self, request: HttpRequest) -> None:
        call, front = request.call, self._front
        if self._fetch is None:
            front.refuse(call, 500, "Internal server error")
            return
        front.keep_open(call, lambda: None)

        def fetched(body: bytes | None) -> None:
            if call not in front.open:
                return
            if body is None:
                front.refuse(call, 500, "Internal server error")
            else:
                front.respond(call, 200, [METRICS_TYPE], body)

        self._fetch("/metrics", fetched)

    def _own_metrics(self, request: HttpRequest) -> None:
        kind = content_type(request.headers.get("accept", ""))
        self._front.respond(request.call, 200, [("content-type", kind)], text(self._families()))

    # Health.

    def _health(self, request: HttpRequest) -> None:
        call = request.call
        self._front.keep_open(call, lambda: None)
        self._read(lambda problem: self._answer(call, problem))

    def _own_health(self, request: HttpRequest) -> None:
        call = request.call
        if not self._is_advertised:
            self._answer(call, "no connection to proxy")
            return
        self._front.keep_open(call, lambda: self._forget(call))

        def read(problem: str) -> None:
            if problem or call not in self._front.open:
                self._answer(call, problem)
            else:
                self._watches[call] = _Watch(self._routes, self._namespace, watched)

        def watched(problem: str) -> None:
            self._watches.pop(call, None)
            self._answer(call, problem)

        self._read(read)

    def _forget(self, call: int) -> None:
        watch = self._watches.pop(call, None)
        if watch is not None:
            watch.report_once("")

    def _read(self, report: Callable[[str], None]) -> None:
        """Read the health key, and report why the read failed, or "" for success."""
        request = get_request(self._namespace.prefix + HEALTH_KEY, 0, serializable=False)

        def take_answer(answer: bytes | End) -> None:
            is_well = isinstance(answer, bytes) or answer[0] == Code.PERMISSION_DENIED
            report("" if is_well else f"GET ERROR:{answer[1]!s}")

        self._routes.start_unary(rpcs.RANGE.path, request, (), take_answer, READ_SECONDS_MAX)

    def _answer(self, call: int, problem: str) -> None:
        health = {"health": "false" if problem else "true", "reason": problem}
        body = json.dumps(health, separators=(",", ":"))
        if problem:
            self._front.refuse(call, 503, body)
        else:
            self._front.respond(call, 200, [TEXT], body.encode())
