"""Keep-alives: one stream to a member for all clients of the same identity.

A lease is renewed only because a client asked for it: a question that comes while the same one is
on its way is not answered by that, because the member may have renewed the lease before; all that
come meanwhile are answered by one more. Once no client waits for a lease, it is not renewed again.
So every answer is one to a question that was asked after the client's, and a client may count a
lease's time from its own question.

Clients have the same identity if all their metadata that members see is the same. A member ends
the whole stream for one question that it refuses: that is the oldest, as it answers them in their
order. Only its clients are told; the others' questions are asked again, as are all if the
connection is lost. A question that was not answered within `ANSWER_SECONDS_MAX` ends its stream.
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
from kvorum.edge.interface import Metadata
from kvorum.edge.upstream import End
from kvorum.proxy.downstream import Downstream
from kvorum.proxy.interface import status_of
from kvorum.proxy.routes import Routes
from kvorum.rpc.interface import OK

ANSWER_SECONDS_MAX: Final = 5.0
BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 1.0
WAITING_MAX: Final = 10_000
"""How many answers one stream of a client may wait for."""

_UNANSWERED: Final = Status(Code.UNAVAILABLE, "no member answered the keep-alive in time")
_TOO_MANY: Final = Status(Code.RESOURCE_EXHAUSTED, "too many keep-alives wait for an answer")
_SERVERS_WORDS: Final = "etcdserver: "

Identity = tuple[tuple[str, bytes], ...]


class _Lease:
    """A lease that clients wait for."""

    __slots__ = ("asked", "asked_at", "id", "waiting")

    def __init__(self, lease: int) -> None:
        self.id = lease
        self.asked: list[int] = []
        """Whose question is on its way; a call is there for each question."""
        self.waiting: list[int] = []
        """Who asked meanwhile."""
        self.asked_at = 0.0


class _Client:
    """A stream of a client."""

    __slots__ = ("is_half_closed", "keeper", "waits_for")

    def __init__(self, keeper: "_Keeper") -> None:
        self.keeper = keeper
        self.waits_for = 0
        self.is_half_closed = False


class _Keeper:
    """The stream to a member for one identity."""

    def __init__(self, keep_alives: "KeepAlives", identity: Identity) -> None:
        self._keep_alives = keep_alives
        self._routes = keep_alives.routes
        self.identity = identity
        self.calls: set[int] = set()
        self._stream: int | None = None
        self._leases: dict[int, _Lease] = {}
        self._on_way: dict[int, _Lease] = {}
        """Those whose question is at the member, in the order of the questions."""
        self._back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)

    def ask(self, call: int, lease_id: int) -> None:
        """Take a client's question."""
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
        """Forget a client's questions; what is on its way already is not taken back."""
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
        """End the stream: no client is left."""
        self._leases.clear()
        self._on_way.clear()
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._routes.cancel(stream)

    # What the member says.

    def message(self, data: bytes) -> None:
        """Give an answer to all who asked."""
        self._back_off.worked()
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
        """Tell those whom the end is for, and ask again for the others."""
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
            self._back_off.failed(self._routes.now)
        self._ask_again()

    def writable(self) -> None:
        """Do nothing: a question is short, and there is one of each lease at most."""

    def _ask_again(self) -> None:
        for lease in list(self._leases.values()):
            if lease.id not in self._on_way:
                if lease.asked:
                    self._send(lease)
                else:
                    self._ask_next(lease)

    def pass_time(self, now: float) -> float:
        """Ask again what could not be asked, and give up what was not answered."""
        late = {
            call
            for lease in self._leases.values()
            if lease.asked_at + ANSWER_SECONDS_MAX <= now
            for call in lease.asked
        }
        for call in late:
            self._keep_alives.finish(call, _UNANSWERED)
        if late and self._stream is not None:
            # It may be that nothing is answered there any more.
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


class KeepAlives:
    """Serves the keep-alive streams of clients."""

    def __init__(self, routes: Routes, downstream: Downstream) -> None:
        self.routes = routes
        self._downstream = downstream
        self._keepers: dict[Identity, _Keeper] = {}
        self._clients: dict[int, _Client] = {}

    def __contains__(self, call: object) -> bool:
        return call in self._clients

    def open(self, call: int, metadata: Metadata | None) -> None:
        """Begin a stream."""
        identity = () if metadata is None else tuple(sorted(metadata.items()))
        keeper = self._keepers.get(identity)
        if keeper is None:
            keeper = self._keepers[identity] = _Keeper(self, identity)
        keeper.calls.add(call)
        self._clients[call] = _Client(keeper)

    def message(self, call: int, data: bytes) -> None:
        """Take a question."""
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
        """End a stream once all its questions are answered."""
        client = self._clients[call]
        client.is_half_closed = True
        if not client.waits_for:
            self.finish(call, OK)

    def ended(self, call: int) -> None:
        """Forget a stream: its client is gone."""
        client = self._clients.pop(call)
        client.keeper.forget(call)
        if not client.keeper.calls:
            self._keepers.pop(client.keeper.identity, None)

    def answer(self, call: int, data: bytes) -> None:
        """Answer a question of a client, if it still waits."""
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
        """End every stream: the proxy stops."""
        for call in list(self._clients):
            self.finish(call, status)

    def pass_time(self, now: float) -> float:
        """Do what is due; return when something will be due next."""
        return min((each.pass_time(now) for each in list(self._keepers.values())), default=inf)
