"""Members without a network behind the calling side of a proxy.

Each is a whole server of `tests.server.rpc.harness`. Requests to a member and its answers wait
until `arrive` and `poll` let them through, so that a test can hold either back.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.network.edge.relay import RelayRules
from kvorum.network.edge.upstream import (
    Metadata,
    Unary,
    UpstreamEvent,
    UpstreamEventKind,
    UpstreamTls,
)
from kvorum.server.rpc.table import NUMBERS
from tests.server.rpc.harness import Harness

LOST = (int(Code.UNAVAILABLE), "the connection is lost", False)


class _Call:
    """A call at a member: what was sent and has not arrived, and how much was told of it."""

    def __init__(self, endpoint: int) -> None:
        self.endpoint = endpoint
        self.member: Harness | None = None
        """Where it has arrived."""
        self.number = 0
        """At the member."""
        self.told = 0
        self.is_paused = False


class Members:
    """The calling side of a network that leads to servers in this thread."""

    def __init__(self, members: dict[str, Harness]) -> None:
        self.members = members
        """By address; one that is not there cannot be reached."""
        self._places: dict[int, str] = {}
        self._calls: dict[int, _Call] = {}
        self._leaving: deque[tuple[int, str, Any]] = deque()
        self._events: list[UpstreamEvent] = []
        self._numbers = 1 << 40
        self.opened = 0
        """How many streams were begun."""

    # What the proxy calls.

    def connect(
        self, endpoint: int, address: str, authority: str, tls: UpstreamTls | None = None
    ) -> None:
        del authority, tls
        if address in self.members:
            self._places[endpoint] = address
            self._events.append((UpstreamEventKind.CONNECTED, endpoint, None))
        else:
            self._events.append((UpstreamEventKind.DISCONNECTED, endpoint, "nobody listens"))

    def disconnect(self, endpoint: int) -> None:
        self.lose(endpoint)

    def call(self, batch: Sequence[Unary]) -> None:
        for call, endpoint, path, message, metadata in batch:
            self._calls[call] = _Call(endpoint)
            self._leaving.append((call, "unary", (path, message, metadata)))

    def open(self, call: int, endpoint: int, path: str, metadata: Metadata) -> None:
        self.opened += 1
        self._calls[call] = _Call(endpoint)
        self._leaving.append((call, "open", (path, metadata)))

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        self._leaving.extend((call, "send", message) for call, message in batch)

    def half_close(self, call: int) -> None:
        self._leaving.append((call, "half_close", None))

    def cancel(self, call: int) -> None:
        self._leaving.append((call, "cancel", None))

    def pause(self, call: int) -> None:
        if call in self._calls:
            self._calls[call].is_paused = True

    def resume(self, call: int) -> None:
        if call in self._calls:
            self._calls[call].is_paused = False

    def pending_bytes(self, call: int) -> int:
        del call
        return 0

    def poll(self, events_max: int, bytes_max: int) -> list[UpstreamEvent]:
        """Take what the members said, call by call."""
        del bytes_max
        self._listen()
        events = self._events[:events_max]
        del self._events[:events_max]
        return events

    def fileno(self) -> int:
        raise AssertionError("turns are taken by the test, nobody sleeps")

    def announce_sleep(self) -> bool:
        return True

    def awake(self) -> None:
        pass

    def relay(self, rules: RelayRules) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {}

    def stop(self) -> None:
        pass

    # What tests call.

    @property
    def is_quiet(self) -> bool:
        self._listen()
        return not self._leaving and not self._events

    def arrive(self, count: int = 1 << 30) -> None:
        """Let so many of what was sent arrive at the members."""
        while count and self._leaving:
            count -= 1
            number, kind, detail = self._leaving.popleft()
            call = self._calls.get(number)
            if call is not None:
                self._arrive(number, call, kind, detail)

    def lose(self, endpoint: int) -> None:
        """Break a connection: what is under way is lost."""
        address = self._places.pop(endpoint, None)
        if address is None:
            return
        for number, call in tuple(self._calls.items()):
            if call.endpoint == endpoint:
                self._end(number, call)
                self._events.append((UpstreamEventKind.ENDED, number, LOST))
        self._events.append((UpstreamEventKind.DISCONNECTED, endpoint, "the connection is lost"))

    def lose_all(self, address: str | None = None) -> None:
        """Break all connections, or those to one member."""
        for endpoint, place in tuple(self._places.items()):
            if address in (None, place):
                self.lose(endpoint)

    # One call.

    def _arrive(self, number: int, call: _Call, kind: str, detail: Any) -> None:
        member = self.members.get(self._places.get(call.endpoint, ""))
        if member is None:
            self._end(number, call)
            self._events.append((UpstreamEventKind.ENDED, number, LOST))
        elif kind == "unary":
            path, message, metadata = detail
            call.member, call.number = member, self._next()
            member.arrive([(call.number, NUMBERS[path], message, dict(metadata) or None)])
        elif kind == "open":
            path, metadata = detail
            call.member, call.number = member, self._next()
            opened = (NUMBERS[path], dict(metadata) or None)
            member.happen((EdgeEventKind.OPENED, call.number, opened))
        elif kind == "send" and call.number not in member.edge.finished:
            member.happen((EdgeEventKind.MESSAGE, call.number, detail))
        elif kind == "half_close":
            member.happen((EdgeEventKind.HALF_CLOSED, call.number, None))
        elif kind == "cancel":
            self._end(number, call)

    def _end(self, number: int, call: _Call) -> None:
        """Let the member know that a call has ended, and forget what it said last."""
        if call.member is not None and call.number not in call.member.edge.finished:
            call.member.happen((EdgeEventKind.ENDED, call.number, None))
        del self._calls[number]
        self._events = [each for each in self._events if each[1] != number]

    def _listen(self) -> None:
        for number, call in tuple(self._calls.items()):
            member = call.member
            if member is None or call.is_paused:
                continue
            sent = member.edge.sent.get(call.number, [])
            self._events += [
                (UpstreamEventKind.MESSAGE, number, message) for message in sent[call.told :]
            ]
            call.told = len(sent)
            status = member.edge.finished.get(call.number)
            answer = member.edge.replies.get(call.number)
            if isinstance(answer, bytes):
                self._events.append((UpstreamEventKind.ANSWERED, number, answer))
            elif isinstance(answer or status, Status):
                code, text = answer or status  # type: ignore[misc]
                self._events.append((UpstreamEventKind.ENDED, number, (int(code), text, False)))
            else:
                continue
            del self._calls[number]

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers
