"""Short requests to other members: one answer, of bounded size and within a time limit.

A member may have several peer URLs; after a failed connection an exchange tries the next, but never
after the start of an answer. A limited number of requests to one member run at once; the others
wait for their turn.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from kvorum.network.dialer.interface import FAILURES, Dialer, DialEvent, DialEventKind
from kvorum.network.edge.interface import Headers

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""The largest answer: more than any list of members, and any useful list of a lease's keys."""
WAITING_MAX = 10_000
"""How many requests to one member wait; further ones fail at once."""


class Answer(NamedTuple):
    """A member's answer; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Done = Callable[[Answer | None], None]
"""A callback that takes the answer, or None if there was none."""


class Exchange:
    """One request, and the received part of its answer."""

    __slots__ = (
        "body",
        "body_bytes",
        "deadline",
        "done",
        "head",
        "headers",
        "method",
        "number",
        "peer",
        "pieces",
        "target",
        "urls",
    )

    def __init__(
        self,
        peer: int,
        urls: Sequence[str],
        method: str,
        target: str,
        headers: Headers,
        body: bytes,
        deadline: float,
        done: Done,
    ) -> None:
        self.peer = peer
        self.urls = deque(urls)
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.deadline = deadline
        self.done = done
        self.number = 0
        self.head: tuple[int, Headers] | None = None
        self.pieces: list[bytes] = []
        self.body_bytes = 0


class Exchanges:
    """The short requests of one member to all others."""

    __slots__ = ("_dialer", "_running", "_running_at", "_running_max", "_waiting")

    def __init__(self, dialer: Dialer, running_max: int) -> None:
        """Let at most `running_max` requests to one member run at once."""
        self._running_max = running_max
        self._dialer = dialer
        self._running: dict[int, Exchange] = {}
        self._running_at: dict[int, int] = {}
        self._waiting: dict[int, deque[Exchange]] = {}

    def send_request(
        self,
        peer: int,
        urls: Sequence[str],
        request: tuple[str, str, Headers, bytes],
        deadline: float,
        done: Done,
    ) -> None:
        """Send (method, target, headers, body) to a member; call `done` once, maybe at once."""
        if not urls:
            done(None)
            return
        exchange = Exchange(peer, urls, *request, deadline, done)
        if self._running_at.get(peer, 0) < self._running_max:
            self._running_at[peer] = self._running_at.get(peer, 0) + 1
            self._send(exchange)
            return
        waiting = self._waiting.setdefault(peer, deque())
        if len(waiting) < WAITING_MAX:
            waiting.append(exchange)
        else:
            done(None)

    def handle_answer(self, event: DialEvent) -> bool:
        """Take an event of the dialer; return whether it belongs to one of these requests."""
        exchange = self._running.get(event.number)
        if exchange is None:
            return False
        kind = event.kind
        if kind == DialEventKind.RESPONDED:
            exchange.head = event.detail
        elif kind == DialEventKind.PIECE:
            exchange.body_bytes += len(event.detail)
            if exchange.body_bytes > ANSWER_BYTES_MAX:
                self._dialer.cancel(event.number)
                self._end(exchange, None)
            else:
                exchange.pieces.append(event.detail)
        elif kind == DialEventKind.COMPLETED:
            assert exchange.head is not None, "an answer was complete before it began"
            status, headers = exchange.head
            self._end(exchange, Answer(status, dict(headers), b"".join(exchange.pieces)))
        elif kind in FAILURES:
            del self._running[event.number]
            if exchange.urls and exchange.head is None:
                self._send(exchange)
            else:
                self._finish(exchange, None)
        return True

    def abandon(self, number: int) -> None:
        """End a request whose answer raised an error."""
        exchange = self._running.get(number)
        if exchange is not None:
            self._dialer.cancel(number)
            self._end(exchange, None)

    def pass_time(self, now: float) -> float:
        """Cancel requests that timed out; return when to call this next."""
        for peer, waiting in list(self._waiting.items()):
            overdue = [each for each in waiting if each.deadline <= now]
            if overdue:
                self._waiting[peer] = deque(each for each in waiting if each.deadline > now)
            for exchange in overdue:
                exchange.done(None)
        for exchange in [each for each in self._running.values() if each.deadline <= now]:
            self._dialer.cancel(exchange.number)
            self._end(exchange, None)
        # Waiting requests are checked again when a running one ends.
        return min((each.deadline for each in self._running.values()), default=inf)

    def stop(self) -> None:
        """Cancel all requests without calling back."""
        for number in self._running:
            self._dialer.cancel(number)
        self._running.clear()
        self._waiting.clear()
        self._running_at.clear()

    def _send(self, exchange: Exchange) -> None:
        url = exchange.urls.popleft()
        exchange.head, exchange.body_bytes = None, 0
        exchange.pieces.clear()
        exchange.number = self._dialer.request(
            url, exchange.method, exchange.target, exchange.headers, exchange.body
        )
        self._running[exchange.number] = exchange

    def _end(self, exchange: Exchange, answer: Answer | None) -> None:
        del self._running[exchange.number]
        self._finish(exchange, answer)

    def _finish(self, exchange: Exchange, answer: Answer | None) -> None:
        """Call back, and start the next request to the same member."""
        peer = exchange.peer
        waiting = self._waiting.get(peer)
        if waiting:
            self._send(waiting.popleft())
        else:
            self._waiting.pop(peer, None)
            self._running_at[peer] -= 1
            if not self._running_at[peer]:
                del self._running_at[peer]
        exchange.done(answer)
