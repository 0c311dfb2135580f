"""A dialer for tests, and a loop that runs while something is waited for."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from kvorum.network.dialer.dialer import HttpDialer
from kvorum.network.dialer.interface import FAILURES, DialEvent, DialEventKind
from kvorum.network.edge import Headers
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from tests.waiting import WAIT_SECONDS_MAX

RESPONDED, PIECE, COMPLETED, FAILED, WRITABLE, REFUSED = DialEventKind


class Dialing:
    """One dialer with a loop of its own."""

    def __init__(
        self, settings: DialSettings, connect_seconds_max: float, local_address: str = ""
    ) -> None:
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(self._unforeseen)
        self.warnings: list[str] = []
        self.errors: list[dict[str, Any]] = []
        self._happened = asyncio.Event()
        self.dialer = HttpDialer(
            self.loop,
            TlsCredentials(settings, self.warnings.append),
            connect_seconds_max=connect_seconds_max,
            local_address=local_address,
            wake=self._happened.set,
        )
        self._events: list[DialEvent] = []

    def _unforeseen(self, _loop: object, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def next(self, number: int) -> DialEvent:
        """Return the next event of a request."""
        while True:
            for event in self._events:
                if event.number == number:
                    self._events.remove(event)
                    return event
            self.run(self._happened.wait())
            self._happened.clear()
            self._events += self.dialer.poll()

    def run(self, waiting: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(waiting, WAIT_SECONDS_MAX))

    def until(self, condition: Callable[[], bool]) -> None:
        """Run the loop until a condition holds for which there is no event."""

        async def look() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        self.run(look())

    def answer(self, number: int) -> tuple[int, Headers, bytes]:
        """Return a complete answer."""
        kind, _, detail = self.next(number)
        assert kind == RESPONDED, detail
        status, headers = detail
        body = b""
        while (event := self.next(number)).kind == PIECE:
            body += event.detail
        assert event.kind == COMPLETED, event
        return status, headers, body

    def get(self, url: str, target: str) -> tuple[int, Headers, bytes]:
        return self.answer(self.dialer.request(url, "GET", target, [], b""))

    def failure(self, number: int) -> str:
        kind, _, detail = self.next(number)
        assert kind in FAILURES, (kind, detail)
        assert isinstance(detail, str)
        return detail

    def close(self) -> None:
        self.dialer.stop()
        self.until(lambda: not self.dialer._connections)
        self.loop.close()
        assert self.errors == []
