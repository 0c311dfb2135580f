"""The calling side with a loop, for tests. Every wait has a limit, so that nothing hangs."""

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvorum.network.edge import make_upstream
from kvorum.network.edge.upstream import (
    Metadata,
    Upstream,
    UpstreamEvent,
    UpstreamEventKind,
    UpstreamSettings,
    UpstreamTls,
)
from tests.network.edge.service import WAIT_SECONDS
from tests.waiting import until

EVERYTHING = 1 << 40
Seen = tuple[UpstreamEventKind, Any]


class Caller:
    """An `Upstream`, and what it told so far of every endpoint and call."""

    def __init__(self, settings: UpstreamSettings | None = None) -> None:
        self.upstream: Upstream = make_upstream(settings)
        self.of_endpoints: dict[int, list[Seen]] = {}
        self.of_calls: dict[int, list[Seen]] = {}
        self._numbers = 0

    def number(self) -> int:
        """Return one that was never used."""
        self._numbers += 1
        return self._numbers

    def turn(self, events_max: int = 1000, bytes_max: int = EVERYTHING) -> list[UpstreamEvent]:
        """Poll once, and remember what came."""
        events = self.upstream.poll(events_max, bytes_max)
        for kind, number, detail in events:
            kind = UpstreamEventKind(kind)
            is_endpoint = kind in (
                UpstreamEventKind.CONNECTED,
                UpstreamEventKind.DISCONNECTED,
                UpstreamEventKind.LEAVING,
            )
            seen = self.of_endpoints if is_endpoint else self.of_calls
            seen.setdefault(number, []).append((kind, detail))
        return events

    def until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Poll until something is so."""
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"did not come to hold: {self.of_endpoints} {self.of_calls}"[:2000]
            if not self.turn() and self.upstream.announce_sleep():
                # A server of the test may change something that nobody is woken for.
                select.select([self.upstream.fileno()], [], [], min(left, 0.05))
                self.upstream.awake()

    def queue_up(self, received: int) -> None:
        """Let so many messages be read, without taking one."""

        def are_received() -> bool:
            # Where polling moves bytes, it has to go on.
            assert self.upstream.poll(0, 1) == []
            return self.upstream.counters()["messages_received"] >= received

        until(f"{received} messages are read", are_received)

    def rest(self, seconds: float) -> None:
        """Poll for a while in which nothing need happen."""
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= deadline)

    def dial(self, address: str, tls: UpstreamTls | None = None, authority: str = "test") -> int:
        """Begin to connect."""
        endpoint = self.number()
        self.upstream.connect(endpoint, address, authority, tls)
        return endpoint

    def connect(self, address: str, tls: UpstreamTls | None = None) -> int:
        endpoint = self.dial(address, tls)
        assert self.next_of_endpoint(endpoint) == (UpstreamEventKind.CONNECTED, None)
        return endpoint

    def next_of_endpoint(self, endpoint: int, place: int = 0) -> Seen:
        """Return what was told of an endpoint in this place."""
        self.until(lambda: len(self.of_endpoints.get(endpoint, ())) > place)
        return self.of_endpoints[endpoint][place]

    def failure(self, endpoint: int) -> str:
        """Return why an endpoint is not connected; nothing else was told of it."""
        kind, reason = self.next_of_endpoint(endpoint)
        assert kind == UpstreamEventKind.DISCONNECTED, reason
        assert isinstance(reason, str)
        return reason

    def begin(self, endpoint: int, path: str, message: bytes, metadata: Metadata = ()) -> int:
        call = self.number()
        self.upstream.call([(call, endpoint, path, message, metadata)])
        return call

    def open(self, endpoint: int, path: str, metadata: Metadata = ()) -> int:
        call = self.number()
        self.upstream.open(call, endpoint, path, metadata)
        return call

    def last(self, call: int) -> Seen:
        """Return how a call ended; nothing is told of it afterwards."""
        ends = (UpstreamEventKind.ANSWERED, UpstreamEventKind.ENDED)
        self.until(lambda: call in self.of_calls and self.of_calls[call][-1][0] in ends)
        assert [kind for kind, _ in self.of_calls[call] if kind in ends] == [
            self.of_calls[call][-1][0]
        ]
        return self.of_calls[call][-1]

    def ask(self, endpoint: int, path: str, message: bytes, metadata: Metadata = ()) -> bytes:
        """Make a unary call that has to succeed."""
        kind, detail = self.last(self.begin(endpoint, path, message, metadata))
        assert kind == UpstreamEventKind.ANSWERED, detail
        assert isinstance(detail, bytes)
        return detail

    def end(self, call: int) -> tuple[int, str, bool]:
        """Return the code, text and whether the server never looked at a call that ended."""
        kind, detail = self.last(call)
        assert kind == UpstreamEventKind.ENDED, detail
        code, text, is_unprocessed = detail
        return code, text, is_unprocessed

    def messages(self, call: int) -> list[bytes]:
        """Return what came on a stream so far."""
        seen: Sequence[Seen] = self.of_calls.get(call, ())
        return [detail for kind, detail in seen if kind == UpstreamEventKind.MESSAGE]

    def stop(self) -> None:
        self.upstream.stop()
