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
_SERVERS_WORDS: Final = "etcdserver: "

Identity = tuple[tuple[str, bytes], ...]


class _Lease:
    """A lease whose renewal clients wait for."""

    __slots__ = ("asked", "asked_at", "id", "waiting")

    def __init__(self, lease: int) -> None:
        self.id = lease
        self.asked: list[int] = []
        """The clients' calls that the request in flight serves, one entry for each keep-alive."""
        self.waiting: list[int] = []
        """The calls of keep-alives that arrived meanwhile, for the next request."""
        self.asked_at = 0.0


class _Client:
    """A client's keep-alive stream."""

    __slots__ = ("is_half_closed", "keeper", "waits_for")

    def __init__(self, keeper: "_SharedStream") -> None:
        self.keeper = keeper
        self.waits_for = 0
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
        self._on_way: dict[int, _Lease] = {}
        """Leases with a request at the member, in the order of the requests."""
        self._back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)

    def ask(self, call: int, lease_id: int) -> None:
        """Renew a lease for a client's keep-alive."""
        lease = self._leases.get(lease_id)
        if lease is None:
            lease = self._leases[lease_id] = _Lease(lease_id)
        if lease_id in self._on_way:
            lease.waiting.append(call)
            return
        lease.asked.append(call)
        if len(lease.asked) == 1:
            lease.asked_at = self._routes.now
            self._send(lease)

    def _send(self, lease: _Lease) -> None:
        if self._stream is None:
            if self._routes.now < self._back_off.until:
                return
            self._stream = self._routes.stream(rpcs.LEASE_KEEP_ALIVE.path, self.identity, self)
        self._on_way[lease.id] = lease
        request = pb.LeaseKeepAliveRequest(ID=lease.id)
        self._routes.send(self._stream, request.SerializeToString())

    def forget(self, call: int) -> None:
        """Forget a client's keep-alives; requests in flight are not cancelled."""
        self.calls.discard(call)
        for lease in list(self._leases.values()):
            if call in lease.waiting:
                lease.waiting = [each for each in lease.waiting if each != call]
            if call in lease.asked:
                lease.asked = [each for each in lease.asked if each != call]
                if not lease.asked and lease.id not in self._on_way:
                    self._ask_next(lease)
        if not self.calls:
            self.close()

    def close(self) -> None:
        """End the stream to the member after its last client has left."""
        self._leases.clear()
        self._on_way.clear()
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._routes.cancel(stream)

    # Events from the member.

    def message(self, data: bytes) -> None:
        """Pass an answer to all clients that its request serves."""
        self._back_off.note_success()
        lease = self._on_way.pop(pb.LeaseKeepAliveResponse.FromString(data).ID, None)
        if lease is None:
            return
        for call in lease.asked:
            self._keep_alives.answer(call, data)
        self._ask_next(lease)

    def _ask_next(self, lease: _Lease) -> None:
        lease.asked, lease.waiting = lease.waiting, []
        if lease.asked:
            lease.asked_at = self._routes.now
            self._send(lease)
        else:
            self._leases.pop(lease.id, None)

    def ended(self, end: End) -> None:
        """End the client streams that the status concerns, and resend the other requests."""
        self._stream = None
        on_way, self._on_way = list(self._on_way.values()), {}
        code, text, _ = end
        if code == Code.PERMISSION_DENIED and on_way:
            for call in set(on_way[0].asked):
                self._keep_alives.finish(call, status_of(end))
        elif code == Code.OK or text.startswith(_SERVERS_WORDS):
            for call in list(self.calls):
                self._keep_alives.finish(call, status_of(end))
        else:
            self._back_off.note_failure(self._routes.now)
        self._ask_again()

    def writable(self) -> None:
        """Do nothing: requests are short, and each lease has at most one."""

    def _ask_again(self) -> None:
        for lease in list(self._leases.values()):
            if lease.id not in self._on_way:
                if lease.asked:
                    self._send(lease)
                else:
                    self._ask_next(lease)

    def pass_time(self, now: float) -> float:
        """Resend unsent requests, and end client streams whose request got no answer in time."""
        late = {
            call
            for lease in self._leases.values()
            if lease.asked_at + ANSWER_SECONDS_MAX <= now
            for call in lease.asked
        }
        for call in late:
            self._keep_alives.finish(call, _UNANSWERED)
        if late and self._stream is not None:
            # The member may have stopped answering on this stream.
            self._routes.cancel(self._stream)
            self._stream = None
            self._on_way.clear()
        if self._stream is None and self._back_off.until <= now:
            self._ask_again()
        moment = inf
        for lease in self._leases.values():
            if lease.asked:
                moment = min(moment, lease.asked_at + ANSWER_SECONDS_MAX)
        if self._leases and self._stream is None:
            moment = min(moment, self._back_off.until)
        return moment


class SharedKeepAlives:
    """Serves the keep-alive streams of clients."""

    def __init__(self, routes: Routes, downstream: Downstream) -> None:
        self.routes = routes
        self._downstream = downstream
        self._keepers: dict[Identity, _SharedStream] = {}
        self._clients: dict[int, _Client] = {}

    def __contains__(self, call: object) -> bool:
        return call in self._clients

    def open(self, call: int, metadata: Metadata | None) -> None:
        """Open a client's stream."""
        identity = () if metadata is None else tuple(sorted(metadata.items()))
        keeper = self._keepers.get(identity)
        if keeper is None:
            keeper = self._keepers[identity] = _SharedStream(self, identity)
        keeper.calls.add(call)
        self._clients[call] = _Client(keeper)

    def message(self, call: int, data: bytes) -> None:
        """Process a client's keep-alive."""
        client = self._clients[call]
        try:
            lease = parse_message(pb.LeaseKeepAliveRequest, data).ID
        except DecodeError as error:
            self.finish(call, errors.unparsable_message(str(error)))
            return
        if client.waits_for >= WAITING_MAX:
            self.finish(call, _TOO_MANY)
            return
        client.waits_for += 1
        client.keeper.ask(call, lease)

    def half_closed(self, call: int) -> None:
        """End a stream once all its keep-alives are answered."""
        client = self._clients[call]
        client.is_half_closed = True
        if not client.waits_for:
            self.finish(call, OK)

    def ended(self, call: int) -> None:
        """Forget a stream whose client has left."""
        client = self._clients.pop(call)
        client.keeper.forget(call)
        if not client.keeper.calls:
            self._keepers.pop(client.keeper.identity, None)

    def answer(self, call: int, data: bytes) -> None:
        """Answer a client's keep-alive, if its stream is still open."""
        client = self._clients.get(call)
        if client is None:
            return
        self._downstream.send(call, data)
        client.waits_for -= 1
        if client.is_half_closed and not client.waits_for:
            self.finish(call, OK)

    def finish(self, call: int, status: Status) -> None:
        """End a client's stream."""
        if call in self._clients:
            self.ended(call)
            self._downstream.finish(call, status)

    def stop(self, status: Status) -> None:
        """End every stream because the proxy stops."""
        for call in list(self._clients):
            self.finish(call, status)

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        return min((each.pass_time(now) for each in list(self._keepers.values())), default=inf)
