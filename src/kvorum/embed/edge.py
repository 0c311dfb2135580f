"""An edge with a second way in: calls of clients in this process, without a socket.

`JoinedEdge` is the edge that the server sees. Calls of its network edge pass as they are; those of
this process have numbers from `LOCAL_FIRST` on. A client has a `Door`, whose methods may be called
by any thread: what goes in is queued, and what comes out is queued for the client, whose bell is
rung. Neither side ever waits for the other. A client that has begun calls pushes: if the server
sleeps, the client's thread takes its turn, and has its answers then, without any change of threads
(`kvorum.embed.lending`). Everything else wakes the server if that sleeps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from kvorum.api.errors import Code, Status, message_too_large
from kvorum.client.interface import End, Metadata
from kvorum.edge.interface import Edge, Event, EventKind, Headers, Limits, Request
from kvorum.edge.interface import Metadata as RequestMetadata
from kvorum.rpc.table import METADATA_KEYS, METHODS

LOCAL_FIRST: Final = 1 << 62
PEER: Final = "in-process"
"""What logs call a client without an address."""

_NUMBERS: Final = {path: (number, streams) for number, (path, streams) in enumerate(METHODS)}
_KEYS: Final = frozenset(METADATA_KEYS)
_GONE: Final = "the member in this process has ended"
_LEAVING: Final = End(Code.UNAVAILABLE, "the member in this process ends, or has ended", True)


class LocalCall:
    """A call of a client in this process."""

    __slots__ = (
        "door",
        "is_ended",
        "is_held",
        "is_owed",
        "is_stream",
        "is_waiting",
        "number",
        "of_client",
        "sent_bytes",
        "taken_bytes",
        "unseen",
    )

    def __init__(self, number: int, of_client: int, door: "Door", *, is_stream: bool) -> None:
        self.number: int = number
        self.of_client: int = of_client
        """The number that it has at the client."""
        self.door: Door = door
        self.is_stream: bool = is_stream
        self.is_ended: bool = False
        """Whether one of both sides has ended it."""
        self.is_waiting: bool = False
        """Whether the server wants to hear of its end although it is unary."""
        self.is_held: bool = False
        """Whether the client takes no messages for now."""
        self.unseen: list[Delivery] = []
        """What came while it was held."""
        # Each is counted by one thread alone, so that no count is lost.
        self.sent_bytes: int = 0
        self.taken_bytes: int = 0
        self.is_owed: bool = False
        """Whether the server is told when few bytes are left that the client has not taken."""

    @property
    def pending_bytes(self) -> int:
        """How many bytes the client has not taken."""
        return self.sent_bytes - self.taken_bytes


class Delivery(NamedTuple):
    """A message for a client, the end of a call, or both."""

    call: LocalCall
    content: bytes | End
    is_last: bool = True
    """Whether the call has ended with it: well, if it is a message."""


class Door:
    """One client's way to the server, and the answers that it has not taken."""

    __slots__ = ("_calls", "_edge", "_known", "_metadata", "deliveries", "ring")

    def __init__(self, edge: "JoinedEdge", ring: Callable[[], None]) -> None:
        self._edge = edge
        self._calls: dict[int, LocalCall] = {}
        # What the last call came with, and what of it the server is told: most calls share one.
        self._metadata: Metadata = ()
        self._known: RequestMetadata | None = None
        self.ring: Callable[[], None] = ring
        """Called in the server's turn, when there are deliveries; never waits, never raises."""
        self.deliveries: deque[Delivery] = deque()

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return not self._edge.is_leaving

    def start(self, call: int, path: str, metadata: Metadata, message: bytes, ends: bool) -> None:
        """Begin a call, which is served after `push`; a refusal is delivered, too."""
        edge = self._edge
        number, is_stream = _NUMBERS.get(path, (-1, False))
        local = LocalCall(edge.next_number(), call, self, is_stream=is_stream)
        self._calls[call] = local
        refusal = None
        if edge.is_leaving:
            refusal = _LEAVING
        elif number < 0:
            refusal = End(Code.UNIMPLEMENTED, f"unknown method {path}")
        elif len(message) > edge.message_bytes_max:
            refusal = End(*message_too_large(len(message), edge.message_bytes_max))
        if refusal is not None:
            local.is_ended = True
            self.deliveries.append(Delivery(local, refusal))
            self.ring()
            return
        if metadata is not self._metadata:
            found = {name: value.encode() for name, value in metadata if name in _KEYS}
            self._metadata, self._known = metadata, found or None
        known = self._known
        if not is_stream:
            edge.queue((local, (local.number, number, message, known)))
            return
        edge.queue((local, (EventKind.OPENED, local.number, (number, known))))
        edge.queue((local, (EventKind.MESSAGE, local.number, message)))
        if ends:
            edge.queue((local, (EventKind.HALF_CLOSED, local.number, None)))

    def push(self, *, may_wait: bool) -> None:
        """Have calls served that were begun: here and now, or soon; `JoinedEdge.push`."""
        self._edge.push(may_wait=may_wait)

    def send(self, call: int, message: bytes) -> None:
        """Send a message more."""
        local = self._calls.get(call)
        if local is None or local.is_ended:
            return
        if len(message) > self._edge.message_bytes_max:
            self.cancel(call)
            self._calls[call] = local
            end = End(*message_too_large(len(message), self._edge.message_bytes_max))
            self.deliveries.append(Delivery(local, end))
            self.ring()
            return
        self._edge.take((local, (EventKind.MESSAGE, local.number, message)))

    def hold(self, call: int, *, is_held: bool) -> None:
        """Take no more messages of a call, or go on."""
        local = self._calls.get(call)
        if local is not None and local.is_held != is_held:
            local.is_held = is_held
            if not is_held:
                unseen, local.unseen = local.unseen, []
                # Before all others, which came later.
                self.deliveries.extendleft(reversed(unseen))
                self.ring()

    def cancel(self, call: int) -> None:
        """Break a call off; nothing more of it is delivered."""
        local = self._calls.pop(call, None)
        if local is not None and not local.is_ended:
            local.is_ended = True
            # A unary call is looked at again when it is handed out: it may be marked by then.
            self._edge.take((local, (EventKind.ENDED, local.number, None)))

    def close(self) -> None:
        """Break all calls off."""
        for call in list(self._calls):
            self.cancel(call)
        self.deliveries.clear()

    def take(self) -> Delivery | None:
        """Return the next message or end that the client may have; None if there is none."""
        deliveries = self.deliveries
        while deliveries:
            delivery = deliveries.popleft()
            call, content, is_last = delivery
            if self._calls.get(call.of_client) is not call:
                continue  # it was cancelled
            if call.is_held:
                call.unseen.append(delivery)
                continue
            if is_last:
                del self._calls[call.of_client]
            elif not isinstance(content, End):
                self._edge.taken(call, len(content))
            return delivery
        return None


class JoinedEdge:
    """The edge of a member that clients in its process can call; see `Edge`."""

    def __init__(
        self,
        edge: Edge,
        limits: Limits,
        wake: Callable[[], None],
        lend: Callable[[bool], bool],
    ) -> None:
        """`wake` lets the server's loop take a turn, from any thread.

        `lend` lets this thread take one, if the loop sleeps, and returns whether it did; with
        False, it does not wait for a disk.
        """
        self._edge = edge
        self._wake = wake
        self._lend = lend
        self._writable_bytes = limits.stream_writable_bytes
        self.message_bytes_max: int = limits.request_bytes_max
        self.next_number: Callable[[], int] = count(LOCAL_FIRST).__next__
        self.is_leaving: bool = False
        """Whether no more calls are taken."""
        self._is_asleep = False
        self._is_stopped = False
        self._inbox: deque[tuple[LocalCall, Request | Event]] = deque()
        self._calls: dict[int, LocalCall] = {}
        """Those that the server knows and nobody has ended."""
        self.check_tls = edge.check_tls
        self.listen = edge.listen
        self.fileno = edge.fileno
        self.respond = edge.respond
        self.pause = edge.pause
        self.resume = edge.resume
        self.counters = edge.counters
        self.incidents = edge.incidents
        self.write_log = edge.write_log
        self.written = edge.written

    # From any thread.

    def queue(self, arrived: tuple[LocalCall, Request | Event]) -> None:
        """Take something of a client in this process, who pushes later."""
        self._inbox.append(arrived)
        if self._is_stopped:
            self._refuse_arrived()

    def take(self, arrived: tuple[LocalCall, Request | Event]) -> None:
        """Take something of a client in this process."""
        self.queue(arrived)
        self._call_server()

    def push(self, *, may_wait: bool) -> None:
        """Have what is queued served: in this thread, if the server sleeps, otherwise soon.

        A thread that has something else to do may not wait for a disk.
        """
        # A server that is awake looks at the queue again before it sleeps.
        if self._is_asleep and self._inbox and not self._lend(may_wait):
            self._call_server()

    def _call_server(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._wake()

    def _refuse_arrived(self) -> None:
        """End what nobody will poll any more; by the thread that has stopped, or came later."""
        while True:
            try:
                call, _ = self._inbox.popleft()
            except IndexError:
                return
            self._end(call)

    def _end(self, call: LocalCall) -> None:
        if not call.is_ended:
            call.is_ended = True
            call.door.deliveries.append(Delivery(call, End(Code.UNAVAILABLE, _GONE)))
            call.door.ring()

    def taken(self, call: LocalCall, size: int) -> None:
        """Hear that a stream's client has taken so many bytes."""
        call.taken_bytes += size
        self._pay(call)

    def _pay(self, call: LocalCall) -> None:
        """Tell the server that a stream is writable, if it waits for that."""
        if call.is_owed and call.pending_bytes < self._writable_bytes:
            call.is_owed = False
            self.take((call, (EventKind.WRITABLE, call.number, None)))

    # By whoever takes the server's turn.

    def announce_sleep(self) -> bool:
        """Ask to be woken; False if something has arrived already."""
        self._is_asleep = True
        if self._inbox or not self._edge.announce_sleep():
            self._is_asleep = False
            return False
        return True

    def awake(self) -> None:
        """Say that the sleep is over."""
        self._is_asleep = False
        self._edge.awake()

    def poll(self, calls_max: int, bytes_max: int) -> tuple[list[Request], list[Event]]:
        """Take what arrived, from both sides; neither takes the other's room."""
        inbox = self._inbox
        if not inbox:
            return self._edge.poll(calls_max, bytes_max)
        requests: list[Request] = []
        events: list[Event] = []
        left, bytes_left = max(1, calls_max // 2), max(1, bytes_max // 2)
        while inbox and left > 0 and bytes_left > 0:
            call, arrived = inbox.popleft()
            left -= 1
            if len(arrived) == 4:
                bytes_left -= len(arrived[2])
                if not call.is_ended:
                    self._calls[call.number] = call
                    requests.append(arrived)
                continue
            kind, number, detail = arrived
            if kind == EventKind.OPENED and not call.is_ended:
                self._calls[number] = call
            elif number not in self._calls:
                continue
            elif kind == EventKind.MESSAGE:
                bytes_left -= len(detail)
            elif kind == EventKind.ENDED:
                del self._calls[number]
                if not call.is_stream and not call.is_waiting:
                    continue
            events.append(arrived)
        calls_left, bytes_left = calls_max - len(requests) - len(events), bytes_max // 2
        if calls_left > 0 and bytes_left > 0:
            others, other_events = self._edge.poll(calls_left, bytes_left)
            requests += others
            events += other_events
        return requests, events

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """End unary calls."""
        if self._calls:
            calls, others, doors = self._calls, [], set()
            for each in batch:
                if each[0] < LOCAL_FIRST:
                    others.append(each)
                    continue
                call = calls.pop(each[0], None)
                if call is None or call.is_ended:
                    continue
                call.is_ended = True
                answer, door = each[1], call.door
                content = answer if isinstance(answer, bytes) else End(*answer)
                door.deliveries.append(Delivery(call, content))
                doors.add(door)
            for door in doors:
                door.ring()
            batch = others
        if batch:
            self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streams."""
        if self._calls:
            others, doors = [], set()
            for number, message in batch:
                if number < LOCAL_FIRST:
                    others.append((number, message))
                    continue
                call = self._calls.get(number)
                if call is None or call.is_ended:
                    continue
                call.sent_bytes += len(message)
                if call.pending_bytes >= self._writable_bytes:
                    call.is_owed = True
                    # The client may have taken all of it since, and saw nothing that it owes.
                    self._pay(call)
                call.door.deliveries.append(Delivery(call, message, False))
                doors.add(call.door)
            for door in doors:
                door.ring()
            batch = others
        if batch:
            self._edge.send(batch)

    def start(self, call: int, metadata: Headers) -> None:
        """Send a call's initial metadata, which clients in this process do not read."""
        if call < LOCAL_FIRST:
            self._edge.start(call, metadata)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream after what was sent."""
        if call < LOCAL_FIRST:
            self._edge.finish(call, status, trailers)
            return
        local = self._calls.pop(call, None)
        if local is not None and not local.is_ended:
            local.is_ended = True
            local.door.deliveries.append(Delivery(local, End(*status)))
            local.door.ring()

    def has_room(self, call: int, is_long: bool = False) -> bool:
        """Return whether an answer may be made; one to this process always."""
        return call >= LOCAL_FIRST or self._edge.has_room(call, is_long)

    def pending_bytes(self, call: int) -> int:
        """Return how many bytes were sent and not taken."""
        if call < LOCAL_FIRST:
            return self._edge.pending_bytes(call)
        local = self._calls.get(call)
        return local.pending_bytes if local is not None else 0

    def mark_waiting(self, call: int) -> None:
        """Ask for ENDED if a unary call ends before its reply."""
        if call < LOCAL_FIRST:
            self._edge.mark_waiting(call)
            return
        local = self._calls.get(call)
        if local is not None:
            local.is_waiting = True

    def peer(self, call: int) -> str:
        """Return the client's address."""
        return PEER if call >= LOCAL_FIRST else self._edge.peer(call)

    def peer_certificate(self, call: int) -> bytes | None:
        """Return the client's certificate."""
        return None if call >= LOCAL_FIRST else self._edge.peer_certificate(call)

    def drain(self) -> None:
        """Take no more calls."""
        self.is_leaving = True
        self._edge.drain()

    def is_quiet(self) -> bool:
        """Return whether no call can come any more."""
        return not self._inbox and self._edge.is_quiet()

    def is_drained(self) -> bool:
        """Return whether nobody is connected any more."""
        return not self._inbox and not self._calls and self._edge.is_drained()

    def stop(self) -> None:
        """End everything now."""
        self.is_leaving = True
        self._edge.stop()
        self._is_stopped = True
        self._refuse_arrived()
        for call in self._calls.values():
            self._end(call)
        self._calls.clear()
