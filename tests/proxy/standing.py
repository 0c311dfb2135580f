"""A proxy without a network, in front of whole servers in the same thread.

Time advances only in `pass_time`; messages arrive when the test calls `settle`.
"""

from typing import Any

from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.client.endpoints import parse_endpoint
from kvorum.network.edge.interface import EdgeEventKind, Event, Metadata, Request
from kvorum.network.edge.upstream import UpstreamEvent, UpstreamEventKind
from kvorum.proxy.proxy import Proxy
from kvorum.proxy.settings import ProxySettings
from kvorum.server.rpc.table import NUMBERS
from tests.proxy.members import Members
from tests.server.rpc.harness import METHODS, Harness
from tests.server.seams import RecordingEdge, RecordingLogger

ADDRESS = "127.0.0.1:1"
TURNS_MAX = 1000


class Logger(RecordingLogger):
    """Keeps lines of every level."""

    debug = error = critical = RecordingLogger.info


class UnevenMembers(Members):
    """Members whose stream messages can be delayed behind their answers to other calls."""

    def __init__(self, members: dict[str, Harness]) -> None:
        super().__init__(members)
        self.delivers_streams = True
        self._delayed: list[UpstreamEvent] = []

    def poll(self, events_max: int, bytes_max: int) -> list[UpstreamEvent]:
        events = self._delayed + super().poll(events_max, bytes_max)
        self._delayed = []
        if self.delivers_streams:
            return events
        self._delayed = [each for each in events if each[0] == UpstreamEventKind.MESSAGE]
        return [each for each in events if each[0] != UpstreamEventKind.MESSAGE]

    def cancel(self, call: int) -> None:
        super().cancel(call)
        self._delayed = [each for each in self._delayed if each[1] != call]


class Standing:
    """A proxy, its members, and its clients."""

    def __init__(self, members: dict[str, Harness] | None = None, **settings: Any) -> None:
        self.members = {ADDRESS: Harness()} if members is None else members
        self.upstream = UnevenMembers(self.members)
        self.edge = RecordingEdge()
        self.logger = Logger()
        self.now = 1000.0
        endpoints = tuple(map(parse_endpoint, self.members))
        self.settings = ProxySettings(endpoints=endpoints, **settings)
        self.proxy = Proxy(self.edge, self.upstream, self.settings, lambda _: 0, self.logger)
        self._calls = 0
        self.settle()

    @property
    def member(self) -> Harness:
        """The only member."""
        (member,) = self.members.values()
        return member

    # Turns and time.

    def turn(
        self, requests: list[Request] | None = None, events: list[Event] | None = None
    ) -> None:
        """Run a turn with the members' events and the clients' input."""
        upstream_events = self.upstream.poll(1000, 1 << 20)
        self.proxy.turn(self.now, requests or [], events or [], upstream_events)

    def settle(self) -> None:
        """Run turns until no message is in flight."""
        for _ in range(TURNS_MAX):
            self.turn()
            self.upstream.arrive()
            if self.upstream.is_quiet and not self.proxy.is_busy:
                return
        raise AssertionError(f"the proxy is not done after {TURNS_MAX} turns")

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass everywhere."""
        end = self.now + seconds
        while self.now < end:
            passed = min(step, end - self.now)
            self.now += passed
            for member in self.members.values():
                member.pass_time(passed)
            self.settle()

    # Clients.

    def begin(self, path: str, message: Message | bytes, metadata: Metadata | None = None) -> int:
        """Make a unary call; return its number."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        self._calls += 1
        self.turn([(self._calls, NUMBERS[path], payload, metadata)])
        return self._calls

    def call(self, path: str, message: Message | bytes, metadata: Metadata | None = None) -> Any:
        """Make a unary call; return the decoded answer, or the status that it ended with."""
        number = self.begin(path, message, metadata)
        self.settle()
        return self.answer(path, number)

    def call_member(self, path: str, message: Message) -> Any:
        """Make a unary call at the member, not through the proxy."""
        return self.member.ask(path.rpartition(".")[2], message)

    def answer(self, path: str, number: int) -> Any:
        """Return the answer to a call, decoded, or its status."""
        answer = self.edge.replies[number]
        return answer if isinstance(answer, Status) else METHODS[path].response.FromString(answer)

    def stream(self, path: str, metadata: Metadata | None = None) -> "ClientStream":
        """Open a stream."""
        self._calls += 1
        self.happen((EdgeEventKind.OPENED, self._calls, (NUMBERS[path], metadata)))
        return ClientStream(self, self._calls, path)

    def happen(self, event: Event) -> None:
        """Run a turn with an event of a client."""
        self.turn(events=[event])

    def get(self, target: str) -> tuple[int, bytes | None]:
        """Make a plain HTTP request."""
        self._calls += 1
        self.happen((EdgeEventKind.HTTP_OPENED, self._calls, (1, "GET", target, [])))
        self.settle()
        return self.edge.responses[self._calls]


class ClientStream:
    """A client's side of a stream."""

    def __init__(self, standing: Standing, call: int, path: str) -> None:
        self._standing = standing
        self.call = call
        self._path = path
        self._taken = 0

    def send(self, message: Message) -> None:
        """Send a message without waiting for an answer."""
        self.send_bytes(message.SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that may not be a valid message."""
        self._standing.happen((EdgeEventKind.MESSAGE, self.call, data))

    def half_close(self) -> None:
        """Close the client's side of the stream."""
        self._standing.happen((EdgeEventKind.HALF_CLOSED, self.call, None))

    def leave(self) -> None:
        """Leave: end the stream as a lost client does."""
        self._standing.happen((EdgeEventKind.ENDED, self.call, None))

    def received(self) -> list[Any]:
        """Return the messages that arrived since the last call."""
        sent = self._standing.edge.sent.get(self.call, [])
        fresh, self._taken = sent[self._taken :], len(sent)
        return [METHODS[self._path].response.FromString(each) for each in fresh]

    @property
    def status(self) -> Status | None:
        """The status with which the stream ended; None while it is open."""
        return self._standing.edge.finished.get(self.call)
