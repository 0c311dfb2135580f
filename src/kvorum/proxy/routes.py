"""The calls to the members: they choose the member of each call and deliver its answer.

Connected members get calls in turn. While no member is connected, calls wait for at most
`HELD_SECONDS_MAX`.

The proxy never repeats a call that a server may have processed. A unary call that certainly reached
no server's handler goes to the next member, up to `RESENDS_MAX` times.

A client's call keeps the edge's number, so that its answer needs no look-up; the proxy's own calls
have numbers from `OWN_FIRST` on. Calls are gathered and sent by `flush`, once a turn.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, count, cycle
from math import inf
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from kvorum.api.boundary import Boundary
from kvorum.api.errors import INTERNAL, Code, Status
from kvorum.client import rpcs
from kvorum.client.endpoints import Address
from kvorum.client.finding import member_addresses, members_request
from kvorum.network.edge.relay import Relay
from kvorum.network.edge.upstream import (
    End,
    Metadata,
    Unary,
    Upstream,
    UpstreamEvent,
    UpstreamEventKind,
    UpstreamTls,
)
from kvorum.proxy.endpoints import ProxyEndpoint, ProxyEndpoints
from kvorum.proxy.interface import Logger, OnAnswer, StreamListener, status_of
from kvorum.proxy.settings import BYTES_IN_FLIGHT_MAX, CALLS_IN_FLIGHT_MAX

OWN_FIRST: Final = 1 << 62
HELD_SECONDS_MAX: Final = 5.0
"""How long a call waits until a member is connected."""
RESENDS_MAX: Final = 3
AGE_SECONDS: Final = 0.05
"""Once a client's unary call has taken between one and two times this long, the proxy cancels it if
the client leaves. Younger calls are not tracked, because most are answered earlier."""
SYNC_CALL_SECONDS_MAX: Final = 5.0

_ANSWERED: Final = UpstreamEventKind.ANSWERED
_TIMED_OUT: Final = (int(Code.DEADLINE_EXCEEDED), "context deadline exceeded", False)
_FAILED: Final = (int(INTERNAL.code), INTERNAL.text, False)


class _Resent(NamedTuple):
    """The original number of a resent call, and how often it was resent."""

    call: int
    attempts: int


class _HeldStream:
    """A stream that waits for a connected member, with the messages sent on it so far."""

    __slots__ = ("is_half_closed", "messages", "metadata", "path", "until")

    def __init__(self, path: str, metadata: Metadata, until: float) -> None:
        self.path = path
        self.metadata = metadata
        self.until = until
        self.messages: list[bytes] = []
        self.is_half_closed = False


class Routes:
    """The calls to the members of one cluster."""

    def __init__(
        self,
        upstream: Upstream,
        addresses: Sequence[Address],
        tls: UpstreamTls | None,
        logger: Logger,
        boundary: Boundary,
        mark_waiting: Callable[[int], None],
        *,
        first: int = 0,
        sync_seconds: float = inf,
    ) -> None:
        """Send calls to the members at these addresses, starting with the one at index `first`.

        `tls` configures connections over TLS; a server name in it applies to all members.
        """
        self._upstream = upstream
        self._logger = logger
        self.boundary = boundary
        self._mark_waiting = mark_waiting
        self.now = 0.0
        self.next_call: Callable[[], int] = count(OWN_FIRST).__next__
        self._endpoints = ProxyEndpoints(upstream, addresses, tls, logger, first)
        self._next: Callable[[], int] | None = None
        """Returns the connected endpoints in an endless cycle; None if there are none."""
        # Unanswered unary calls by age: made since the last age check, since the one before it, or
        # earlier. For clients' calls in `_old`, the edge reports when the client leaves.
        self._young: dict[int, Unary] = {}
        self._older: dict[int, Unary] = {}
        self._old: dict[int, Unary] = {}
        self._age_at = inf
        self._held: dict[int, tuple[Unary, float]] = {}
        self._held_streams: dict[int, _HeldStream] = {}
        self._resent: dict[int, _Resent] = {}
        self._callbacks: dict[int, OnAnswer] = {}
        self._deadlines: dict[int, float] = {}
        self._streams: dict[int, StreamListener] = {}
        self._batch: list[Unary] = []
        self._sends: list[tuple[int, bytes]] = []
        self.replies: list[tuple[int, bytes | Status]] = []
        """Answers for clients; `Proxy.turn` passes them to the edge."""
        self.taps: dict[str, Callable[[bytes], object]] = {}
        """Functions, by path, that see each answer to a client's call as the member sent it."""
        self.failures: Counter[tuple[str, Code]] = Counter()
        """Clients' unary calls that failed, by path and code."""
        self.has_news = False
        """Whether anything but forwarding clients' calls and answers has happened since this was
        last set to False, so that a timer may be due earlier than `pass_time` returned."""
        self.bytes_in_flight = 0
        """Bytes of unanswered requests, without relayed ones."""
        self.relay: Relay | None = None
        """Forwards clients' calls without the proxy, if there is one; set before the first turn."""
        self._sync_seconds = sync_seconds
        self._sync_at = sync_seconds if sync_seconds == inf else 0.0

    # Calls.

    @property
    def calls_in_flight(self) -> int:
        """How many unary calls are unanswered, relayed ones included."""
        relayed = 0 if self.relay is None else self.relay.in_flight()[0]
        return relayed + len(self._young) + len(self._older) + len(self._old) + len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether so many calls or bytes are unanswered that the proxy refuses new calls."""
        relayed_bytes = 0 if self.relay is None else self.relay.in_flight()[1]
        return (
            self.calls_in_flight >= CALLS_IN_FLIGHT_MAX
            or self.bytes_in_flight + relayed_bytes >= BYTES_IN_FLIGHT_MAX
        )

    def paths_in_flight(self) -> Counter[str]:
        """Return the number of unanswered unary calls by path, without relayed ones."""
        held = (unary for unary, _ in self._held.values())
        calls = chain(self._young.values(), self._older.values(), self._old.values(), held)
        return Counter(unary[2] for unary in calls)

    def refuse(self, call: int, path: str, status: Status) -> None:
        """End a client's unary call without forwarding it."""
        self.failures[path, status.code] += 1
        self.replies.append((call, status))

    @property
    def is_connected(self) -> bool:
        """Whether a member is connected."""
        return self._next is not None

    def forward(self, call: int, path: str, message: bytes, metadata: Metadata) -> None:
        """Make a unary call for a client, which gets the answer unchanged."""
        self.bytes_in_flight += len(message)
        if self._next is None:
            self._hold((call, 0, path, message, metadata))
            return
        unary = (call, self._next(), path, message, metadata)
        self._young[call] = unary
        self._batch.append(unary)

    def start_unary_for(
        self, call: int, path: str, message: bytes, metadata: Metadata, on_answer: OnAnswer
    ) -> None:
        """Make a unary call for a client; `on_answer` turns the result into the client's answer.

        The call is cancelled with the client's call, which can have only one.
        """
        self._callbacks[call] = on_answer
        self.forward(call, path, message, metadata)

    def start_unary_again(
        self, call: int, path: str, message: bytes, metadata: Metadata, on_answer: OnAnswer
    ) -> None:
        """Make another unary call for a client whose first one has its answer.

        It has a number of its own, as every call needs, and ends with the client's call.
        """
        number = self.next_call()
        self._resent[number] = _Resent(call, 0)
        self._callbacks[call] = on_answer
        self.forward(number, path, message, metadata)

    def start_unary(
        self,
        path: str,
        message: bytes,
        metadata: Metadata,
        on_answer: OnAnswer,
        seconds_max: float = inf,
    ) -> int:
        """Make a unary call of the proxy's own; return its number.

        The call ends with DEADLINE_EXCEEDED after `seconds_max`.
        """
        number = self.next_call()
        if seconds_max < inf:
            self._deadlines[number] = self.now + seconds_max
        self.start_unary_for(number, path, message, metadata, on_answer)
        return number

    def open_stream(self, path: str, metadata: Metadata, listener: StreamListener) -> int:
        """Open a stream to a member; return its number."""
        number = self.next_call()
        self._streams[number] = listener
        if self._next is None:
            self._held_streams[number] = _HeldStream(path, metadata, self.now + HELD_SECONDS_MAX)
        else:
            self._upstream.open(number, self._next(), path, metadata)
        return number

    def send(self, call: int, message: bytes) -> None:
        """Send a message on a stream with the next `flush`."""
        if self._held_streams and call in self._held_streams:
            self._held_streams[call].messages.append(message)
        else:
            self._sends.append((call, message))

    def half_close(self, call: int) -> None:
        """Close the proxy's side of a stream."""
        held = self._held_streams.get(call)
        if held is not None:
            held.is_half_closed = True
            return
        self._flush_sends()
        self._upstream.half_close(call)

    def cancel(self, call: int) -> None:
        """Cancel a call or stream: no further event is reported for it."""
        if self._streams.pop(call, None) is not None:
            if self._held_streams.pop(call, None) is None:
                self._flush_sends()
                self._upstream.cancel(call)
            return
        number = call
        for resent, (original, _) in self._resent.items():
            if original == call:
                number = resent
                break
        self._resent.pop(number, None)
        self._callbacks.pop(call, None)
        self._deadlines.pop(call, None)
        unary = self._take_unary(number)
        if unary is not None:
            # A call may be cancelled in the turn that made it, before it was sent.
            self._flush_calls()
            self._upstream.cancel(number)
            return
        held = self._held.pop(number, None)
        if held is not None:
            self.bytes_in_flight -= len(held[0][3])

    def pause(self, call: int) -> None:
        """Receive no messages of a stream until `resume`."""
        if call not in self._held_streams:
            self._upstream.pause(call)

    def resume(self, call: int) -> None:
        """Receive a stream's messages again."""
        if call not in self._held_streams:
            self._upstream.resume(call)

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes sent on a stream by earlier turns have not left yet."""
        held = self._held_streams.get(call)
        if held is not None:
            return sum(map(len, held.messages))
        return self._upstream.pending_bytes(call)

    def flush(self) -> None:
        """Send the gathered calls and messages."""
        self._flush_calls()
        self._flush_sends()

    def _flush_calls(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._upstream.call(batch)

    def _flush_sends(self) -> None:
        if self._sends:
            sends, self._sends = self._sends, []
            self._upstream.send(sends)

    # Events from the upstream.

    def take_answers(self, events: Sequence[UpstreamEvent]) -> list[UpstreamEvent]:
        """Process the answers among the upstream's events; return the rest for `take_rest`.

        Answers for clients are in `replies` afterwards.
        """
        replies, taps, young = self.replies, self.taps, self._young
        callbacks, resent = self._callbacks, self._resent
        rest: list[UpstreamEvent] = []
        for event in events:
            kind, number, detail = event
            if kind != _ANSWERED:
                rest.append(event)
                continue
            call = number
            try:
                unary = young.pop(number, None)
                if unary is None:
                    unary = self._take_unary(number)
                    if unary is None:
                        continue
                else:
                    self.bytes_in_flight -= len(unary[3])
                call = resent.pop(number).call if resent and number in resent else number
                if call in callbacks:
                    self.has_news = True
                    self._deadlines.pop(call, None)
                    callbacks.pop(call)(detail)
                    continue
                if unary[2] in taps:
                    taps[unary[2]](detail)
                replies.append((call, detail))
            except Exception as error:
                # A resent call has another number than the client's, which awaits the answer.
                self._take_handler_error(call, detail, error)
        return rest

    def take_rest(self, events: Sequence[UpstreamEvent]) -> None:
        """Process the other events: messages of streams, ends, and changes of connections."""
        for kind, number, detail in events:
            try:
                self._take_other(kind, number, detail)
            except Exception as error:
                self._take_handler_error(number, detail, error)

    def _take_handler_error(self, number: int, sent: object, error: Exception) -> None:
        """End only the call or stream whose handler raised an unforeseen error."""
        what = sent if isinstance(sent, bytes) else b""
        self.boundary.take(error, "call", f"call {number} to a member", what)
        listener = self._streams.get(number)
        if listener is not None:
            self.cancel(number)
            listener.take_end(_FAILED)
        elif number < OWN_FIRST:
            self.replies.append((number, INTERNAL))

    def _take_unary(self, number: int) -> Unary | None:
        """Forget a call that was sent to a member; return it, or None if there is no such call."""
        for calls in (self._young, self._older, self._old):
            unary = calls.pop(number, None)
            if unary is not None:
                self.bytes_in_flight -= len(unary[3])
                return unary
        return None

    def _take_other(self, kind: int, number: int, detail: object) -> None:
        self.has_news = True
        listener = self._streams.get(number)
        if kind == UpstreamEventKind.MESSAGE:
            if listener is not None:
                assert isinstance(detail, bytes)
                listener.take_message(detail)
        elif kind == UpstreamEventKind.WRITABLE:
            if listener is not None:
                listener.take_writable()
        elif kind == UpstreamEventKind.ENDED:
            assert isinstance(detail, tuple)
            if listener is not None:
                del self._streams[number]
                listener.take_end(detail)
            else:
                self._take_unary_end(number, detail)
        elif kind == UpstreamEventKind.CONNECTED:
            self._endpoints.note_connected(number)
            self._update_choice()
            self._release()
        else:
            is_leaving = kind == UpstreamEventKind.LEAVING
            reason = "it asked for no more calls" if is_leaving else str(detail)
            self._endpoints.note_lost(number, reason, self.now)
            self._update_choice()

    def _take_unary_end(self, number: int, end: End) -> None:
        unary = self._take_unary(number)
        if unary is None:
            return
        resent = self._resent.pop(number, _Resent(number, 0))
        if end[2] and resent.attempts < RESENDS_MAX:
            again = self.next_call()
            self._resent[again] = _Resent(resent.call, resent.attempts + 1)
            self.forward(again, unary[2], unary[3], unary[4])
        else:
            self._deliver_end(resent.call, unary[2], end)

    def _deliver_end(self, call: int, path: str, end: End) -> None:
        if call < OWN_FIRST:
            self.failures[path, status_of(end).code] += 1
        self._deadlines.pop(call, None)
        on_answer = self._callbacks.pop(call, None)
        if on_answer is not None:
            on_answer(end)
        elif call < OWN_FIRST:
            self.replies.append((call, status_of(end)))

    # Members.

    @property
    def endpoints(self) -> list[ProxyEndpoint]:
        """The members that get calls."""
        return self._endpoints.all

    def replace(self, addresses: Sequence[Address]) -> None:
        """Send calls to the members at these addresses from now on."""
        self._endpoints.replace(addresses, self.now)
        self._update_choice()

    def _update_choice(self) -> None:
        numbers = self._endpoints.connected_numbers()
        self._next = cycle(numbers).__next__ if numbers else None
        if self.relay is not None:
            self.relay.ask(numbers)

    # Waiting for a connection.

    def _hold(self, unary: Unary) -> None:
        self.has_news = True
        self._held[unary[0]] = (unary, self.now + HELD_SECONDS_MAX)
        if unary[0] < OWN_FIRST:
            self._mark_waiting(unary[0])

    def _release(self) -> None:
        """Send the calls and open the streams that wait for a connection."""
        if self._next is None:
            return
        held, self._held = self._held, {}
        for (call, _, path, message, metadata), _ in held.values():
            unary = (call, self._next(), path, message, metadata)
            # `_hold` has already asked the edge to report its end.
            self._old[call] = unary
            self._batch.append(unary)
        streams, self._held_streams = self._held_streams, {}
        for number, stream in streams.items():
            self._upstream.open(number, self._next(), stream.path, stream.metadata)
            self._sends += [(number, message) for message in stream.messages]
            if stream.is_half_closed:
                self.half_close(number)

    # Time.

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        self.now = now
        moment = self._endpoints.pass_time(now)
        if self._held or self._held_streams:
            moment = min(moment, self._expire_held(now))
        if now >= self._sync_at and self._next is not None:
            self._sync(now)
        if self._deadlines:
            for number in [each for each, until in self._deadlines.items() if until <= now]:
                on_answer = self._callbacks[number]
                self.cancel(number)
                on_answer(_TIMED_OUT)
                # The callback may have made a call with a timer that is not considered here.
                moment = now
            moment = min(moment, *self._deadlines.values(), inf)
        return min(moment, self.check_age(now), self._sync_at if self._next else inf)

    def _expire_held(self, now: float) -> float:
        late = [call for call, (_, until) in self._held.items() if until <= now]
        for call in late:
            unary, _ = self._held.pop(call)
            self.bytes_in_flight -= len(unary[3])
            resent = self._resent.pop(call, None)
            self._deliver_end(
                call if resent is None else resent.call,
                unary[2],
                (int(Code.UNAVAILABLE), self._endpoints.describe_problems(), True),
            )
        late_streams = [call for call, held in self._held_streams.items() if held.until <= now]
        for call in late_streams:
            del self._held_streams[call]
            self._streams.pop(call).take_end(
                (int(Code.UNAVAILABLE), self._endpoints.describe_problems(), True)
            )
        if late or late_streams:
            return now
        moments = [until for _, until in self._held.values()]
        moments += [held.until for held in self._held_streams.values()]
        return min(moments, default=inf)

    def check_age(self, now: float) -> float:
        """Ask the edge to report departed clients of old calls; return when to check again."""
        if now >= self._age_at:
            for call, unary in self._older.items():
                self._old[call] = unary
                if call < OWN_FIRST:
                    self._mark_waiting(call)
            self._older, self._young = self._young, {}
            self._age_at = inf
        if self._age_at == inf and (self._young or self._older):
            self._age_at = now + AGE_SECONDS
        return self._age_at

    def _sync(self, now: float) -> None:
        """Update the endpoints from the cluster's member list."""
        self._sync_at = now + self._sync_seconds

        def take_answer(answer: bytes | End) -> None:
            try:
                if isinstance(answer, bytes):
                    addresses = member_addresses(answer)
                    if addresses:
                        self.replace(addresses)
                    return
                problem = answer[1]
            except (DecodeError, ValueError) as error:
                problem = str(error)
            self._logger.warning("the members could not be asked for", reason=problem)

        self.start_unary(
            rpcs.MEMBER_LIST.path, members_request(), (), take_answer, SYNC_CALL_SECONDS_MAX
        )

    def close(self) -> None:
        """Close every connection."""
        self._endpoints.close()
