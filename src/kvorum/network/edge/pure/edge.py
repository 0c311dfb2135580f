"""The pure-Python edge: listeners, one poller, and the methods of `Edge`."""

import os
import resource
import socket
import weakref
from collections.abc import Sequence

from kvorum.api.errors import Status
from kvorum.network.edge.interface import (
    COUNTERS,
    INCIDENTS,
    Event,
    Headers,
    Limits,
    ListenerKind,
    Request,
    Serves,
    TlsSettings,
)
from kvorum.network.edge.pure.call import CallKind, EdgeCall
from kvorum.network.edge.pure.connection import EdgeConnection, HttpProtocol
from kvorum.network.edge.pure.grpc import OK
from kvorum.network.edge.pure.http1 import Http1
from kvorum.network.edge.pure.http2 import Http2
from kvorum.network.edge.pure.listener import Listener, endpoint, open_tls
from kvorum.network.edge.pure.logfile import FileLogWriter
from kvorum.network.edge.pure.shared import EdgeState
from kvorum.storage.platform.readiness import FAILED, HUNG_UP, READABLE, WRITABLE

ACCEPTS_PER_PASS = 64
SOCKETS_PER_PASS = 1024

_open_edges: "weakref.WeakSet[PureEdge]" = weakref.WeakSet()


class PureEdge:
    """An edge that works in its caller's thread; see `kvorum.network.edge.interface.Edge`."""

    def __init__(
        self,
        methods: Sequence[tuple[str, bool]],
        metadata_keys: Sequence[str],
        limits: Limits,
        http_headers: Sequence[str],
    ) -> None:
        self._shared_open: EdgeState | None = EdgeState(
            methods, metadata_keys, limits, http_headers, Http1, Http2
        )
        self._log = FileLogWriter()
        self._listeners: dict[int, Listener] = {}
        self._listener_count = 0
        self._connection_count = 0
        self._odd = 0
        descriptors_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = limits.connections_by_kind(descriptors_max)
        self._paused: dict[ListenerKind, int] = {}
        """Kinds of listeners that accept no connections for now, each with the number of
        connections below which they resume."""
        self._shared.poller.register(self._shared.timers.fileno(), READABLE)
        _open_edges.add(self)

    @property
    def _shared(self) -> EdgeState:
        if self._shared_open is None:
            raise ValueError("edge is closed")
        return self._shared_open

    # Listening and sleeping.

    def check_tls(self, tls: TlsSettings) -> None:
        """Read the files of TLS settings."""
        assert self._shared
        open_tls(tls, http1_only=False)

    def listen(
        self,
        address: str,
        tls: TlsSettings | None = None,
        *,
        http1_only: bool = False,
        kind: ListenerKind = ListenerKind.CLIENT,
        serves: Serves = Serves.BOTH,
        reuse_port: bool = False,
    ) -> tuple[int, str]:
        """Accept connections at an address."""
        shared = self._shared
        number = self._listener_count
        listener = Listener(
            number,
            address,
            tls,
            http1_only=http1_only,
            kind=kind,
            serves=serves,
            reuse_port=reuse_port,
        )
        self._listener_count += 1
        self._listeners[listener.socket.fileno()] = listener
        if listener.kind not in self._paused:
            shared.poller.register(listener.socket.fileno(), READABLE)
        return listener.number, listener.address

    def fileno(self) -> int:
        """Return the poller's descriptor, which is readable when a watched descriptor is ready."""
        return self._shared.poller.fileno()

    def announce_sleep(self) -> bool:
        """Return whether the loop may wait for `fileno`."""
        shared = self._shared
        shared.flush()
        if shared.has_work or self._log:
            return False
        shared.timers.arm()
        return True

    def awake(self) -> None:
        """Do nothing: the poller needs no wake-up writes."""

    def poll(self, calls_max: int, bytes_max: int) -> tuple[list[Request], list[Event]]:
        """Do all I/O that is possible, then take complete requests and events."""
        shared = self._shared
        shared.unpacked_bytes = 0
        self._pump(shared)
        # While both kinds wait, each gets half; requests and events alternate for an odd one.
        self._odd ^= 1
        crowded = bool(shared.event_ring or shared.ended_before_wait)
        first = (calls_max + self._odd) // 2 if crowded else calls_max
        requests = shared.take_requests(first, max(1, bytes_max // 2) if crowded else bytes_max)
        bytes_max -= sum(len(request[2]) for request in requests)
        events = shared.take_events(calls_max - len(requests), max(1, bytes_max))
        room = calls_max - len(requests) - len(events)
        if crowded and room and shared.request_ring:
            bytes_max -= sum(len(event[2]) for event in events if isinstance(event[2], bytes))
            requests += shared.take_requests(room, bytes_max)
        shared.flush()
        return requests, events

    def _pump(self, shared: EdgeState) -> None:
        for descriptor, mask in shared.poller.poll(0, SOCKETS_PER_PASS):
            connection = shared.by_descriptor.get(descriptor)
            if connection is not None:
                if mask & WRITABLE:
                    connection.flush()
                if mask & READABLE:
                    connection.read()
                elif mask & (HUNG_UP | FAILED):
                    connection.lose()
            elif descriptor in self._listeners:
                self._accept(shared, self._listeners[descriptor])
        # Expire after reading, so that no call reaches the loop after its deadline.
        for number in shared.timers.due(shared.now()):
            shared.expire(number)
        if shared.room.is_scarce:
            for connection in shared.room.offenders(shared.connections.values(), shared.now()):
                if connection.dialect is not None:
                    connection.dialect.turn_away()
                    connection.flush()
        shared.flush()
        for kind, below in list(self._paused.items()):
            if shared.open_by_kind[kind] < below:
                self._resume(shared, kind)

    # Connections.

    def _accept(self, shared: EdgeState, listener: Listener) -> None:
        kind = listener.kind
        limit = self._connections_max[kind]
        for _ in range(ACCEPTS_PER_PASS):
            if shared.open_by_kind[kind] >= limit:
                text = f"{limit} connections are open; more wait to be accepted"
                shared.note("connections_delayed", listener.number, "", text)
                self._pause(shared, kind, limit)
                return
            try:
                sock, address = listener.socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError:
                # The process is out of descriptors: wait until a connection closes.
                self._pause(shared, kind, max(1, shared.open_by_kind[kind]))
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection_count += 1
            number = self._connection_count
            connection = EdgeConnection(shared, number, sock, endpoint(address), listener)
            shared.connections[number] = connection
            shared.by_descriptor[sock.fileno()] = connection
            shared.open_by_kind[kind] += 1
            shared.counters.connections_accepted += 1
            shared.counters.connections_open += 1

    def _pause(self, shared: EdgeState, kind: ListenerKind, below: int) -> None:
        """Accept no connections of a kind until it has fewer than `below`."""
        if kind not in self._paused:
            for descriptor, listener in self._listeners.items():
                if listener.kind == kind:
                    shared.poller.unregister(descriptor)
        self._paused[kind] = below

    def _resume(self, shared: EdgeState, kind: ListenerKind) -> None:
        del self._paused[kind]
        for descriptor, listener in self._listeners.items():
            if listener.kind == kind:
                shared.poller.register(descriptor, READABLE)

    def _close_listeners(self, shared: EdgeState) -> None:
        for kind in ListenerKind:
            self._pause(shared, kind, 0)
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    # Calls.

    def _answering(self, number: int) -> tuple[EdgeConnection, HttpProtocol, EdgeCall] | None:
        """Return a call that can still be answered, and mark its connection for flushing."""
        shared = self._shared
        found = shared.find(number)
        if found is None or found[1].finished:
            return None
        connection, call = found
        assert connection.dialect is not None
        shared.unflushed.add(connection)
        return connection, connection.dialect, call

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        for number, answer in batch:
            found = self._answering(number)
            if found is not None:
                _, dialect, call = found
                if isinstance(answer, Status):
                    dialect.finish(call, answer, ())
                else:
                    dialect.send(call, answer)
                    dialect.finish(call, OK, ())
        self._shared.flush()

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages and pieces of bodies."""
        for number, data in batch:
            found = self._answering(number)
            if found is not None:
                found[1].send(found[2], data)
        self._shared.flush()

    def start(self, call: int, metadata: Headers) -> None:
        """Send an RPC's initial metadata."""
        found = self._answering(call)
        if found is not None:
            found[1].start(found[2], metadata)
            self._shared.flush()

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a call after all queued data."""
        found = self._answering(call)
        if found is not None:
            found[1].finish(found[2], status, trailers)
            self._shared.flush()

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer an HTTP request."""
        found = self._answering(call)
        if found is not None and found[2].kind == CallKind.HTTP:
            found[1].respond(found[2], status, headers, body)
            self._shared.flush()

    def has_room(self, call: int, is_long: bool = False) -> bool:
        """Return whether the loop may answer a call."""
        connection = self._shared.connections.get(call >> 32)
        return connection is None or self._shared.room.has_room(connection.account, is_long)

    def pending_bytes(self, call: int) -> int:
        """Return the number of queued bytes that have not left."""
        found = self._shared.find(call)
        if found is None or found[0].dialect is None:
            return 0
        return found[0].dialect.pending_bytes(found[1])

    def pause(self, call: int) -> None:
        """Stop reading a request's body."""
        found = self._shared.find(call)
        if found is not None and found[0].dialect is not None:
            found[0].dialect.pause(found[1])

    def resume(self, call: int) -> None:
        """Resume reading a request's body."""
        found = self._shared.find(call)
        if found is not None and found[0].dialect is not None:
            found[0].dialect.resume(found[1])
            self._shared.unflushed.add(found[0])
            self._shared.flush()

    def mark_waiting(self, call: int) -> None:
        """Request ENDED if this unary call ends before its reply."""
        self._shared.mark_waiting(call)

    def peer(self, call: int) -> str:
        """Return the client's address."""
        connection = self._shared.connections.get(call >> 32)
        return "" if connection is None else connection.peer

    def peer_certificate(self, call: int) -> bytes | None:
        """Return the client's certificate."""
        connection = self._shared.connections.get(call >> 32)
        if connection is None or connection.tls is None:
            return None
        return connection.tls.certificate

    def counters(self) -> dict[str, int]:
        """Return the counters."""
        shared = self._shared
        counters = {name: getattr(shared.counters, name) for name in COUNTERS}
        counters |= {name: shared.incident_totals[name] for name in INCIDENTS}
        return counters | {"queued_bytes": shared.queued_bytes, "unread_bytes": shared.room.total}

    def incidents(self) -> list[tuple[str, int, str, str, int]]:
        """Take the incidents since the previous call."""
        recent, self._shared.recent = self._shared.recent, {}
        return list(recent.values())

    # The log.

    def write_log(self, descriptor: int, offset: int, data: bytes, sync: bool) -> int:
        """Write at once."""
        assert self._shared
        return self._log.write(descriptor, offset, data, sync)

    def written(self) -> list[tuple[int, int, float, float]]:
        """Return finished writes."""
        assert self._shared
        return self._log.take()

    # The end.

    def drain(self) -> None:
        """Take no new calls."""
        shared = self._shared
        self._close_listeners(shared)
        if not shared.draining:
            shared.draining = True
            for connection in list(shared.connections.values()):
                if connection.dialect is None:
                    connection.lose()
                elif not connection.closing:
                    connection.dialect.drain()
                    connection.flush()

    def is_quiet(self) -> bool:
        """Return whether no client can open a call any more."""
        shared = self._shared
        return shared.draining and not any(
            connection.requests or connection.events or connection.may_call()
            for connection in shared.connections.values()
        )

    def is_drained(self) -> bool:
        """Return whether the last connection is closed."""
        return self._shared.draining and not self._shared.connections

    def stop(self) -> None:
        """Close everything."""
        shared = self._shared_open
        if shared is None:
            return
        self._close_listeners(shared)
        for connection in list(shared.connections.values()):
            connection.lose()
        shared.timers.close()
        shared.poller.close()
        self._shared_open = None

    def _abandon(self) -> None:
        """Close a forked child's copies without changing anything shared with the parent."""
        shared = self._shared_open
        if shared is None:
            return
        for listener in self._listeners.values():
            listener.abandon()
        for connection in shared.connections.values():
            connection.socket.close()
        shared.timers.close()
        shared.poller.close()
        self._shared_open = None


def _abandon_edges() -> None:
    for edge in list(_open_edges):
        edge._abandon()


os.register_at_fork(after_in_child=_abandon_edges)
