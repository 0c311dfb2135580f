"""Keep-alives: clients of the same identity share one stream to a member.

The proxy renews a lease only on a client's request. A request that arrives while one for the same
lease is in flight cannot use that answer, because the member may already have renewed the lease;
one further request serves all clients that ask meanwhile. Once no client waits for a lease, the
proxy stops renewing it. Each answer thus belongs to a renewal sent after the client's request, and
a client may count the lease's time from its own request.

Clients have the same identity if all their metadata that members see is equal. A member that
refuses one request ends the whole stream; the refused request is the oldest, because members answer
in order. The proxy passes the refusal only to the clients of that request and resends the others;
after a lost connection it resends all. A request without an answer for `ANSWER_SECONDS_MAX` ends
the streams of its clients.
"""

from math import inf
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.wire import parse_message
from kvorum.client import rpcs
from kvorum.client.backoff import BackOff
from kvorum.network.edge.interface import Metadata
from kvorum.network.edge.upstream import End
from kvorum.proxy.downstream import Downstream
from kvorum.proxy.interface import status_of
from kvorum.proxy.routes import Routes
from kvorum.server.rpc.interface import OK

ANSWER_SECONDS_MAX: Final = 5.0
BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 1.0
WAITING_MAX: Final = 10_000
"""Unanswered keep-alives that one stream of a client may have."""

_UNANSWERED: Final = Status(Code.UNAVAILABLE, "no member answered the keep-alive in time")
_TOO_MANY: Final = Status(Code.RESOURCE_EXHAUSTED, "too many keep-alives wait for an answer")
_SERVER_ERROR_PREFIX: Final = "etcdserver: "

Identity = tuple[tuple[str, bytes], ...]


class _Lease:
    """A lease whose renewal clients wait for."""

    __slots__ = ("asked_at", "id", "served_calls", "waiting_calls")

    def __init__(self, lease: int) -> None:
        self.id = lease
        self.served_calls: list[int] = []
        """The clients' calls that the request in flight serves, one entry for each keep-alive."""
        self.waiting_calls: list[int] = []
        """The calls of keep-alives that arrived meanwhile, for the next request."""
        self.asked_at = 0.0


class _Client:
    """A client's keep-alive stream."""

    __slots__ = ("is_half_closed", "stream", "unanswered")

    def __init__(self, stream: "_SharedStream") -> None:
        self.stream = stream
        self.unanswered = 0
        self.is_half_closed = False


class _SharedStream:
    """The stream to a member for one identity, and the leases it renews."""

    def __init__(self, keep_alives: "SharedKeepAlives", identity: Identity) -> None:
        self._keep_alives = keep_alives
        self._routes = keep_alives.routes
        self.identity = identity
        self.calls: set[int] = set()
        self._stream: int | None = None
        self._leases: dict[int, _Lease] = {}
        self._in_flight: dict[int, _Lease] = {}
        """Leases with a request at the member, in the order of the requests."""
        self._back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)

    def renew(self, call: int, lease_id: int) -> None:
        """Renew a lease for a client's keep-alive."""
        lease = self._leases.get(lease_id)
        if lease is None:
            lease = self._leases[lease_id] = _Lease(lease_id)
        if lease_id in self._in_flight:
            lease.waiting_calls.append(call)
            return
        lease.served_calls.append(call)
        if len(lease.served_calls) == 1:
            lease.asked_at = self._routes.now
            self._send(lease)

    def _send(self, lease: _Lease) -> None:
        if self._stream is None:
            if self._routes.now < self._back_off.until:
                return
            self._stream = self._routes.open_stream(rpcs.LEASE_KEEP_ALIVE.path, self.identity, self)
        self._in_flight[lease.id] = lease
        request = pb.LeaseKeepAliveRequest(ID=lease.id)
        self._routes.send(self._stream, request.SerializeToString())

    def forget(self, call: int) -> None:
        """Forget a client's keep-alives; requests in flight are not cancelled."""
        self.calls.discard(call)
        for lease in list(self._leases.values()):
            if call in lease.waiting_calls:
                lease.waiting_calls = [each for each in lease.waiting_calls if each != call]
            if call in lease.served_calls:
                lease.served_calls = [each for each in lease.served_calls if each != call]
                if not lease.served_calls and lease.id not in self._in_flight:
                    self._renew_next(lease)
        if not self.calls:
            self.close()

    def close(self) -> None:
        """End the stream to the member after its last client has left."""
        self._leases.clear()
        self._in_flight.clear()
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._routes.cancel(stream)

    # Events from the member.

    def take_message(self, data: bytes) -> None:
        """Pass an answer to all clients that its request serves."""
        self._back_off.note_success()
        lease = self._in_flight.pop(pb.LeaseKeepAliveResponse.FromString(data).ID, None)
        if lease is None:
            return
        for call in lease.served_calls:
            self._keep_alives.answer(call, data)
        self._renew_next(lease)

    def _renew_next(self, lease: _Lease) -> None:
        lease.served_calls, lease.waiting_calls = lease.waiting_calls, []
        if lease.served_calls:
            lease.asked_at = self._routes.now
            self._send(lease)
        else:
            self._leases.pop(lease.id, None)

    def take_end(self, end: End) -> None:
        """End the client streams that the status concerns, and resend the other requests."""
        self._stream = None
        in_flight, self._in_flight = list(self._in_flight.values()), {}
        code, text, _ = end
        if code == Code.PERMISSION_DENIED and in_flight:
            for call in set(in_flight[0].served_calls):
                self._keep_alives.finish(call, status_of(end))
        elif code == Code.OK or text.startswith(_SERVER_ERROR_PREFIX):
            for call in list(self.calls):
                self._keep_alives.finish(call, status_of(end))
        else:
            self._back_off.note_failure(self._routes.now)
        self._resend()

    def take_writable(self) -> None:
        """Do nothing: requests are short, and each lease has at most one."""

    def _resend(self) -> None:
        for lease in list(self._leases.values()):
            if lease.id not in self._in_flight:
                if lease.served_calls:
                    self._send(lease)
                else:
                    self._renew_next(lease)

    def pass_time(self, now: float) -> float:
        """Resend unsent requests, and end client streams whose request got no answer in time."""
        late = {
            call
            for lease in self._leases.values()
            if lease.asked_at + ANSWER_SECONDS_MAX <= now
            for call in lease.served_calls
        }
        for call in late:
            self._keep_alives.finish(call, _UNANSWERED)
        if late and self._stream is not None:
            # The member may have stopped answering on this stream.
            self._routes.cancel(self._stream)
            self._stream = None
            self._in_flight.clear()
        if self._stream is None and self._back_off.until <= now:
            self._resend()
        moment = inf
        for lease in self._leases.values():
            if lease.served_calls:
                moment = min(moment, lease.asked_at + ANSWER_SECONDS_MAX)
        if self._leases and self._stream is None:
            moment = min(moment, self._back_off.until)
        return moment


class SharedKeepAlives:
    """Serves the keep-alive streams of clients."""

    def __init__(self, routes: Routes, downstream: Downstream) -> None:
        self.routes = routes
        self._downstream = downstream
        self._shared_streams: dict[Identity, _SharedStream] = {}
        self._clients: dict[int, _Client] = {}

    def __contains__(self, call: object) -> bool:
        return call in self._clients

    def open(self, call: int, metadata: Metadata | None) -> None:
        """Open a client's stream."""
        identity = () if metadata is None else tuple(sorted(metadata.items()))
        stream = self._shared_streams.get(identity)
        if stream is None:
            stream = self._shared_streams[identity] = _SharedStream(self, identity)
        stream.calls.add(call)
        self._clients[call] = _Client(stream)

    def take_message(self, call: int, data: bytes) -> None:
        """Process a client's keep-alive."""
        client = self._clients[call]
        try:
            lease = parse_message(pb.LeaseKeepAliveRequest, data).ID
        except DecodeError as error:
            self.finish(call, errors.unparsable_message(str(error)))
            return
        if client.unanswered >= WAITING_MAX:
            self.finish(call, _TOO_MANY)
            return
        client.unanswered += 1
        client.stream.renew(call, lease)

    def take_half_close(self, call: int) -> None:
        """End a stream once all its keep-alives are answered."""
        client = self._clients[call]
        client.is_half_closed = True
        if not client.unanswered:
            self.finish(call, OK)

    def take_end(self, call: int) -> None:
        """Forget a stream whose client has left."""
        client = self._clients.pop(call)
        client.stream.forget(call)
        if not client.stream.calls:
            self._shared_streams.pop(client.stream.identity, None)

    def answer(self, call: int, data: bytes) -> None:
        """Answer a client's keep-alive, if its stream is still open."""
        client = self._clients.get(call)
        if client is None:
            return
        self._downstream.send(call, data)
        client.unanswered -= 1
        if client.is_half_closed and not client.unanswered:
            self.finish(call, OK)

    def finish(self, call: int, status: Status) -> None:
        """End a client's stream."""
        if call in self._clients:
            self.take_end(call)
            self._downstream.finish(call, status)

    def stop(self, status: Status) -> None:
        """End every stream because the proxy stops."""
        for call in list(self._clients):
            self.finish(call, status)

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        return min(
            (each.pass_time(now) for each in list(self._shared_streams.values())), default=inf
        )
