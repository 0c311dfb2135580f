"""The gRPC proxy as a plain object: it forwards clients' calls to members and returns the answers.

The proxy has no clock, thread or socket: its shell passes the time and the events of both sides to
`turn`, and asks `wake_at` for the time of the next turn. The proxy forwards nearly every call
without parsing it; an upstream with a relay forwards such calls without the proxy. `__init__`
builds the table of methods that need their own handling.

An unforeseen error ends only the call that caused it (see `kvorum.api.boundary`).
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from math import inf
from typing import Any, Final

from kvorum.api.boundary import Boundary
from kvorum.api.errors import INTERNAL, REQUEST_TOO_MANY_REQUESTS, STOPPED, Code, Status
from kvorum.client import rpcs
from kvorum.network.edge.interface import EdgeEventKind, Event, Metadata, Request
from kvorum.network.edge.relay import RelayedMethod, RelayRules
from kvorum.network.edge.upstream import Upstream, UpstreamEvent
from kvorum.proxy.cache import Cache
from kvorum.proxy.cluster import MemberLists
from kvorum.proxy.counters import CountedEdge, ProxyCounters
from kvorum.proxy.downstream import Downstream
from kvorum.proxy.forwarding import Forwarding
from kvorum.proxy.freshness import Freshness
from kvorum.proxy.http import Fetch, HttpEndpoints
from kvorum.proxy.interface import Logger, ProxyEdge
from kvorum.proxy.kv import CREDENTIALS, SERIALIZABLE, ProxiedKeyValues
from kvorum.proxy.leases import SharedKeepAlives
from kvorum.proxy.metrics import families
from kvorum.proxy.namespace import COVERED, Namespace
from kvorum.proxy.registration import Registration
from kvorum.proxy.routes import Routes
from kvorum.proxy.settings import (
    BYTES_IN_FLIGHT_MAX,
    CALLS_IN_FLIGHT_MAX,
    ProxySettings,
)
from kvorum.proxy.watch import WatchService
from kvorum.server.http.http import HttpFront
from kvorum.server.rpc.table import NUMBERS, RPCS
from kvorum.server.telemetry.exposition import Family

QUIET_SECONDS_MAX: Final = 1.0
"""Time for clients to learn that the proxy drains, and again to read their last answers."""
DRAIN_SECONDS_MAX: Final = 5.0
"""Time for calls in flight to finish once the proxy drains."""

Handler = Callable[[int, bytes, Metadata | None], None]
"""Serves a unary call, given its number, message and metadata."""

_PATHS: Final = tuple(rpc.path for rpc in RPCS)
_RANGE: Final = NUMBERS[rpcs.RANGE.path]
_WATCH: Final = NUMBERS[rpcs.WATCH.path]
_KEEP_ALIVE: Final = NUMBERS[rpcs.LEASE_KEEP_ALIVE.path]
_RANGE_STREAM: Final = NUMBERS[rpcs.RANGE_STREAM.path]


class ProxyPhase(Enum):
    """The stages of a proxy's shutdown."""

    SERVING = "takes calls"
    DRAINING = "finishes the calls in flight"
    CLOSING = "lets clients take their last answers"
    ENDED = "has no connection any more"


class Proxy:
    """Serves the clients of one edge until `drain`."""

    def __init__(
        self,
        edge: ProxyEdge,
        upstream: Upstream,
        settings: ProxySettings,
        random_below: Callable[[int], int],
        logger: Logger,
        *,
        fetch: Fetch | None = None,
        process_families: Callable[[], Iterator[Family]] | None = None,
    ) -> None:
        """Serve an edge that was opened with `EDGE_METHODS` and `EDGE_METADATA_KEYS`.

        `fetch` fetches pages from members; `process_families` returns the process's metrics.
        """
        self.settings = settings
        self.counters = ProxyCounters()
        self.phase = ProxyPhase.SERVING
        self.is_busy = True
        """Whether the next turn is due at once, even if nothing arrives."""
        self._edge = CountedEdge(edge, self.counters)
        self._wake_at = 0.0
        self._until = self._quiet_by = inf
        self._process_families = process_families
        self.routes = Routes(
            upstream,
            settings.endpoints,
            settings.upstream_tls,
            logger,
            Boundary(logger, lambda: self.routes.now),
            edge.mark_waiting,
            first=random_below(len(settings.endpoints)),
            sync_seconds=settings.sync_seconds,
        )
        self._boundary = self.routes.boundary
        namespace = Namespace(settings.namespace)
        self._namespace = namespace
        self.freshness: Freshness | None = None
        self.cache: Cache | None = None
        if settings.cache_bytes_max:
            self.cache = Cache(settings.cache_bytes_max)
            self.freshness = self.cache.freshness = Freshness(self.cache, self.routes)
        self._downstream = Downstream(self._edge)
        self._forwarding = Forwarding(self.routes, self._downstream)
        self._keep_alives = SharedKeepAlives(self.routes, self._downstream)
        self._key_values = ProxiedKeyValues(
            self.routes, namespace, self.cache, is_ordering=settings.is_ordering
        )
        self._registration = Registration(self.routes, settings, logger)
        self._watches = WatchService(self._edge, self.routes, settings.namespace, self.counters)
        self.front = HttpFront(self._edge, (), ("*",), self._boundary)
        self._http = HttpEndpoints(
            self.front,
            self.routes,
            namespace,
            self._families,
            fetch,
            is_advertised=bool(settings.advertise_client_url),
        )
        self._handlers: list[Handler | None] = [None] * len(RPCS)
        if settings.namespace:
            for path in COVERED:
                self._handlers[NUMBERS[path]] = self._make_namespaced_handler(path)
        self._handlers[_RANGE] = self._key_values.serve_range
        if settings.advertise_client_url:
            member_lists = MemberLists(self.routes, settings)
            self._handlers[NUMBERS[rpcs.MEMBER_LIST.path]] = member_lists.serve
        if self.freshness is not None:
            self._handlers[NUMBERS[rpcs.AUTH_ENABLE.path]] = self._enable_auth
            self.routes.taps[rpcs.AUTH_ENABLE.path] = self._note_auth_enabled
        relay = self.routes.relay = upstream.relay(self._relay_rules())
        if relay is not None:
            self._key_values.floor.take_relayed = relay.take_revision

    def _relay_rules(self) -> RelayRules:
        """Return which calls the relay may forward without the proxy."""
        noted_paths = self._key_values.noted_paths
        methods = [
            RelayedMethod(number, rpc.path, b"", rpc.path in noted_paths)
            for number, rpc in enumerate(RPCS)
            if not rpc.is_stream and self._handlers[number] is None
        ]
        if not self.settings.namespace:
            path = rpcs.RANGE.path
            methods.append(RelayedMethod(_RANGE, path, SERIALIZABLE, path in noted_paths))
        return RelayRules(
            methods=methods,
            request_bytes_max=self.settings.send_bytes_max,
            calls_max=CALLS_IN_FLIGHT_MAX,
            bytes_max=BYTES_IN_FLIGHT_MAX,
        )

    # The interface to the loop.

    @property
    def is_ended(self) -> bool:
        """Whether the proxy has drained, so that the shell may stop both sides."""
        return self.phase is ProxyPhase.ENDED

    def wake_at(self, now: float) -> float:
        """Return when the next turn is due if nothing arrives earlier."""
        return now if self.is_busy else self._wake_at

    def drain(self, now: float) -> None:
        """Stop accepting calls, finish those in flight, then end."""
        if self.phase is ProxyPhase.SERVING:
            self.phase = ProxyPhase.DRAINING
            self._quiet_by = now + QUIET_SECONDS_MAX
            self._until = now + DRAIN_SECONDS_MAX
            self._registration.stop()
            self._edge.drain()
            self.is_busy = True

    # Turns.

    def turn(
        self,
        now: float,
        requests: Sequence[Request],
        events: Sequence[Event],
        upstream_events: Sequence[UpstreamEvent],
    ) -> None:
        """Process the input of both sides, and send the resulting output.

        The loop passes at most `CALLS_PER_TURN` and about `BYTES_PER_TURN` from each side.
        """
        routes = self.routes
        routes.now = now
        if upstream_events:
            rest = routes.take_answers(upstream_events)
            if rest:
                # Send unary replies before fanning out watch events.
                self._reply()
                routes.take_rest(rest)
        if requests:
            if routes.is_full:
                self._refuse(requests)
            else:
                self._serve(requests)
        for kind, call, detail in events:
            self._take_event(kind, call, detail, now)
        if events or routes.has_news or now >= self._wake_at:
            self._pass_time(now)
        else:
            # The turn only forwarded calls and answers: no timer but the age check can have moved.
            self._wake_at = min(self._wake_at, routes.check_age(now))
        self._reply()
        routes.flush()
        if self.phase is not ProxyPhase.SERVING:
            self._advance(now)

    def _reply(self) -> None:
        replies = self.routes.replies
        if replies:
            self._edge.reply(replies)
            replies.clear()

    def _serve(self, requests: Sequence[Request]) -> None:
        handlers, forward, started = self._handlers, self.routes.forward, self.counters.started
        bytes_max = self.settings.send_bytes_max
        found, replies, hits = self._key_values.cached_answers, self.routes.replies, 0
        found.clear()
        for call, method, message, metadata in requests:
            started[method] += 1
            if (
                method == _RANGE
                and message in found
                and (metadata is None or CREDENTIALS.isdisjoint(metadata))
            ):
                # The cache has answered the same request earlier in this batch.
                replies.append((call, found[message]))
                hits += 1
                continue
            handler = handlers[method]
            try:
                if len(message) > bytes_max:
                    text = (
                        f"trying to send message larger than max ({len(message)} vs. {bytes_max})"
                    )
                    status = Status(Code.RESOURCE_EXHAUSTED, text)
                    self.routes.refuse(call, _PATHS[method], status)
                elif handler is None:
                    sent = () if metadata is None else list(metadata.items())
                    forward(call, _PATHS[method], message, sent)
                else:
                    handler(call, message, metadata)
            except Exception as error:
                secret = RPCS[method].is_secret
                what = f"{_PATHS[method]} of {self._edge.peer(call)}"
                self._boundary.take(error, "call", what, b"" if secret else message)
                self.routes.refuse(call, _PATHS[method], INTERNAL)
        if self.cache is not None:
            self.cache.hits += hits

    def _refuse(self, requests: Sequence[Request]) -> None:
        for call, method, _, _ in requests:
            self.counters.started[method] += 1
            self.routes.refuse(call, _PATHS[method], REQUEST_TOO_MANY_REQUESTS)

    def _take_event(self, kind: int, call: int, detail: Any, now: float) -> None:
        try:
            if kind == EdgeEventKind.HTTP_OPENED or call in self.front.open:
                self.front.handle(kind, call, detail)
            elif kind == EdgeEventKind.OPENED:
                method, metadata = detail
                self._open_stream(call, method, metadata, now)
            elif kind == EdgeEventKind.ENDED:
                self._take_end(call)
            elif call in self._watches:
                self._take_watch_event(kind, call, detail, now)
            elif call in self._keep_alives:
                if kind == EdgeEventKind.MESSAGE:
                    self._keep_alives.take_message(call, detail)
                elif kind == EdgeEventKind.HALF_CLOSED:
                    self._keep_alives.take_half_close(call)
            elif call in self._forwarding:
                if kind == EdgeEventKind.MESSAGE:
                    self._forwarding.take_message(call, detail)
                elif kind == EdgeEventKind.HALF_CLOSED:
                    self._forwarding.take_half_close(call)
                elif kind == EdgeEventKind.WRITABLE:
                    self._forwarding.take_writable(call)
        except Exception as error:
            sent = detail if isinstance(detail, bytes) else str(detail)
            self._boundary.take(error, "call", f"a stream of {self._edge.peer(call)}", sent)
            if call in self.counters.streams:
                self._forget(call)
                self._edge.finish(call, INTERNAL)

    def _open_stream(self, call: int, method: int, metadata: Metadata | None, now: float) -> None:
        self.counters.started[method] += 1
        self.counters.streams[call] = method
        if method == _WATCH:
            self._watches.open(call, metadata, now)
        elif method == _KEEP_ALIVE:
            self._keep_alives.open(call, metadata)
        elif method == _RANGE_STREAM and self.settings.namespace:
            path, namespace = _PATHS[method], self._namespace
            self._forwarding.open(
                call,
                path,
                metadata,
                lambda message: namespace.request(path, message),
                lambda answer: namespace.answer(path, answer),
            )
        else:
            self._forwarding.open(call, _PATHS[method], metadata)

    def _take_watch_event(self, kind: int, call: int, detail: Any, now: float) -> None:
        if kind == EdgeEventKind.MESSAGE:
            self._watches.take_message(call, detail, now)
        elif kind == EdgeEventKind.HALF_CLOSED:
            self._watches.take_half_close(call)
        elif kind == EdgeEventKind.WRITABLE:
            self._watches.take_writable(call)

    def _take_end(self, call: int) -> None:
        """Forget a call whose client has left."""
        if call in self.counters.streams:
            self._forget(call)
            self._edge.count_end(call, Code.CANCELLED)
        else:
            self.routes.cancel(call)

    def _forget(self, call: int) -> None:
        if call in self._watches:
            self._watches.take_end(call)
        elif call in self._keep_alives:
            self._keep_alives.take_end(call)
        elif call in self._forwarding:
            self._forwarding.take_end(call)

    def _pass_time(self, now: float) -> None:
        self.routes.has_news = False
        self._watches.pass_time(now)
        self._watches.flush()
        moment = min(
            self._watches.pass_time(now),
            self._keep_alives.pass_time(now),
            self._registration.pass_time(now),
            self._http.pass_time(now),
            inf if self.freshness is None else self.freshness.pass_time(now),
            self.routes.pass_time(now),
        )
        self._downstream.flush()
        self.is_busy = moment <= now
        self._wake_at = moment

    # Methods with their own handling.

    def _make_namespaced_handler(self, path: str) -> Handler:
        def serve(call: int, message: bytes, metadata: Metadata | None) -> None:
            self._key_values.forward_namespaced(call, path, message, metadata)

        return serve

    def _enable_auth(self, call: int, message: bytes, metadata: Metadata | None) -> None:
        assert self.freshness is not None
        self.freshness.invalidate()
        sent = () if metadata is None else list(metadata.items())
        self.routes.forward(call, rpcs.AUTH_ENABLE.path, message, sent)

    def _note_auth_enabled(self, _answer: bytes) -> None:
        assert self.freshness is not None
        self.freshness.invalidate()

    def _families(self) -> Iterator[Family]:
        yield from families(self.counters, self.routes, self.cache)
        if self._process_families is not None:
            yield from self._process_families()

    # The end.

    def _advance(self, now: float) -> None:
        """Enter the next stages of the shutdown as far as possible."""
        edge, routes = self._edge, self.routes
        if self.phase is ProxyPhase.DRAINING:
            # Test this before counting calls: no more calls are relayed from a quiet edge.
            is_quiet = edge.is_quiet()
            in_flight = routes.calls_in_flight + len(self.front.open)
            if (in_flight or not is_quiet) and now < self._quiet_by:
                self._schedule_turn(self._quiet_by)
                return
            if in_flight and now < self._until:
                self._schedule_turn(self._until)
                return
            self._watches.stop(STOPPED)
            self._keep_alives.stop(STOPPED)
            self._forwarding.stop(STOPPED)
            self.phase = ProxyPhase.CLOSING
            self._until = now + QUIET_SECONDS_MAX
        if self.phase is ProxyPhase.CLOSING:
            if not edge.is_drained() and now < self._until:
                self._schedule_turn(self._until)
                return
            routes.close()
            self.phase = ProxyPhase.ENDED
            self.is_busy = False

    def _schedule_turn(self, until: float) -> None:
        self._wake_at = min(self._wake_at, until)
