"""An edge with a second entrance: clients in this process call the server without a socket.

The server sees `EdgeWithLocalClients`. Calls of the network edge pass unchanged; calls of this
process have numbers from `LOCAL_FIRST` on. A client has a `LocalConnection`, whose methods any
thread may call. The connection queues requests for the server, and the server queues responses for
the client and calls the client's `notify`. Neither side ever waits for the other. A client that has
started calls pushes: if the server sleeps, the client's thread takes the server's turn, and has its
responses without a switch of threads (`kvorum.embed.lending`). Everything else wakes a sleeping
server.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from kvorum.api.errors import Code, Status, message_too_large
from kvorum.client.grpc.wire import End, Metadata
from kvorum.network.edge.interface import Edge, EdgeEventKind, Event, Headers, Limits, Request
from kvorum.network.edge.interface import Metadata as RequestMetadata
from kvorum.server.rpc.table import METADATA_KEYS, METHODS

LOCAL_FIRST: Final = 1 << 62
PEER: Final = "in-process"
"""Stands for the client's address in logs."""

_NUMBERS: Final = {path: (number, streams) for number, (path, streams) in enumerate(METHODS)}
_KEYS: Final = frozenset(METADATA_KEYS)
_GONE: Final = "the member in this process has ended"
_LEAVING: Final = End(Code.UNAVAILABLE, "the member in this process ends, or has ended", True)


class LocalCall:
    """A call of a client in this process."""

    __slots__ = (
        "client_number",
        "connection",
        "held_deliveries",
        "is_ended",
        "is_held",
        "is_stream",
        "is_waiting",
        "number",
        "owes_writable",
        "sent_bytes",
        "taken_bytes",
    )

    def __init__(
        self, number: int, client_number: int, connection: "LocalConnection", *, is_stream: bool
    ) -> None:
        self.number: int = number
        self.client_number: int = client_number
        """The number of the call at the client."""
        self.connection: LocalConnection = connection
        self.is_stream: bool = is_stream
        self.is_ended: bool = False
        """Whether one side has ended the call."""
        self.is_waiting: bool = False
        """Whether the server wants an ENDED event although the call is unary."""
        self.is_held: bool = False
        """Whether the client has paused the call's messages."""
        self.held_deliveries: list[Delivery] = []
        """Deliveries that arrived during the pause."""
        # Each counter is written by one thread alone, so that no update is lost.
        self.sent_bytes: int = 0
        self.taken_bytes: int = 0
        self.owes_writable: bool = False
        """Whether the server waits for a WRITABLE event of this call."""

    @property
    def pending_bytes(self) -> int:
        """The bytes that the client has not taken."""
        return self.sent_bytes - self.taken_bytes


class Delivery(NamedTuple):
    """A message for a client, the end of a call, or both."""

    call: LocalCall
    content: bytes | End
    is_last: bool = True
    """Whether this ends the call: a message ends it with status OK."""


class LocalConnection:
    """One client's connection to the server, with the responses that it has not taken."""

    __slots__ = ("_calls", "_edge", "_known", "_metadata", "deliveries", "notify")

    def __init__(self, edge: "EdgeWithLocalClients", notify: Callable[[], None]) -> None:
        self._edge = edge
        self._calls: dict[int, LocalCall] = {}
        # The metadata of the last call, and its part for the server: most calls share one object.
        self._metadata: Metadata = ()
        self._known: RequestMetadata | None = None
        self.notify: Callable[[], None] = notify
        """Called in the server's turn when there are deliveries; never blocks, never raises."""
        self.deliveries: deque[Delivery] = deque()

    @property
    def is_open(self) -> bool:
        """Whether the server accepts calls."""
        return not self._edge.is_leaving

    def start(self, call: int, path: str, metadata: Metadata, message: bytes, ends: bool) -> None:
        """Queue a call, which `push` has served; a refusal becomes a delivery, too."""
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
            self.notify()
            return
        if metadata is not self._metadata:
            found = {name: value.encode() for name, value in metadata if name in _KEYS}
            self._metadata, self._known = metadata, found or None
        known = self._known
        if not is_stream:
            edge.queue((local, (local.number, number, message, known)))
            return
        edge.queue((local, (EdgeEventKind.OPENED, local.number, (number, known))))
        edge.queue((local, (EdgeEventKind.MESSAGE, local.number, message)))
        if ends:
            edge.queue((local, (EdgeEventKind.HALF_CLOSED, local.number, None)))

    def push(self, *, may_wait: bool) -> None:
        """Have started calls served, here and now or soon; see `EdgeWithLocalClients.push`."""
        self._edge.push(may_wait=may_wait)

    def send(self, call: int, message: bytes) -> None:
        """Send another message of a stream."""
        local = self._calls.get(call)
        if local is None or local.is_ended:
            return
        if len(message) > self._edge.message_bytes_max:
            self.cancel(call)
            self._calls[call] = local
            end = End(*message_too_large(len(message), self._edge.message_bytes_max))
            self.deliveries.append(Delivery(local, end))
            self.notify()
            return
        self._edge.take((local, (EdgeEventKind.MESSAGE, local.number, message)))

    def hold(self, call: int, *, is_held: bool) -> None:
        """Pause or resume the messages of a call."""
        local = self._calls.get(call)
        if local is not None and local.is_held != is_held:
            local.is_held = is_held
            if not is_held:
                unseen, local.held_deliveries = local.held_deliveries, []
                # Put these first, because all others arrived later.
                self.deliveries.extendleft(reversed(unseen))
                self.notify()

    def cancel(self, call: int) -> None:
        """Cancel a call; nothing more of it is delivered."""
        local = self._calls.pop(call, None)
        if local is not None and not local.is_ended:
            local.is_ended = True
            # `poll` decides whether the server gets this event; a unary call may be marked by then.
            self._edge.take((local, (EdgeEventKind.ENDED, local.number, None)))

    def close(self) -> None:
        """Cancel all calls."""
        for call in list(self._calls):
            self.cancel(call)
        self.deliveries.clear()

    def take(self) -> Delivery | None:
        """Return the next delivery for the client; None if there is none."""
        deliveries = self.deliveries
        while deliveries:
            delivery = deliveries.popleft()
            call, content, is_last = delivery
            if self._calls.get(call.client_number) is not call:
                continue  # the client cancelled it
            if call.is_held:
                call.held_deliveries.append(delivery)
                continue
            if is_last:
                del self._calls[call.client_number]
            elif not isinstance(content, End):
                self._edge.note_taken(call, len(content))
            return delivery
        return None


class EdgeWithLocalClients:
    """The edge of a member that clients in its process can call, too; see `Edge`."""

    def __init__(
        self,
        edge: Edge,
        limits: Limits,
        wake: Callable[[], None],
        lend: Callable[[bool], bool],
    ) -> None:
        """Join the process's clients to a network edge.

        `wake` makes the server's loop take a turn, from any thread. `lend` takes a turn in this
        thread if the loop sleeps, and returns whether it did; with False it does not wait for a
        disk.
        """
        self._edge = edge
        self._wake = wake
        self._lend = lend
        self._writable_bytes = limits.stream_writable_bytes
        self.message_bytes_max: int = limits.request_bytes_max
        self.next_number: Callable[[], int] = count(LOCAL_FIRST).__next__
        self.is_leaving: bool = False
        """Whether new calls are refused."""
        self._is_asleep = False
        self._is_stopped = False
        self._inbox: deque[tuple[LocalCall, Request | Event]] = deque()
        self._calls: dict[int, LocalCall] = {}
        """Calls that the server knows and that neither side has ended."""
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

    # Called from any thread.

    def queue(self, arrived: tuple[LocalCall, Request | Event]) -> None:
        """Queue a request or event of a local client, which pushes later."""
        self._inbox.append(arrived)
        if self._is_stopped:
            self._refuse_arrived()

    def take(self, arrived: tuple[LocalCall, Request | Event]) -> None:
        """Queue a request or event of a local client, and wake the server."""
        self.queue(arrived)
        self._call_server()

    def push(self, *, may_wait: bool) -> None:
        """Have queued requests served: in this thread if the server sleeps, otherwise soon.

        A thread with other work must not wait for a disk; it passes `may_wait=False`.
        """
        # A server that is awake checks the queue again before it sleeps.
        if self._is_asleep and self._inbox and not self._lend(may_wait):
            self._call_server()

    def _call_server(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._wake()

    def _refuse_arrived(self) -> None:
        """End queued calls after the stop; called by the stopping thread, or a later caller."""
        while True:
            try:
                call, _ = self._inbox.popleft()
            except IndexError:
                return
            self._end(call)

    def _end(self, call: LocalCall) -> None:
        if not call.is_ended:
            call.is_ended = True
            call.connection.deliveries.append(Delivery(call, End(Code.UNAVAILABLE, _GONE)))
            call.connection.notify()

    def note_taken(self, call: LocalCall, size: int) -> None:
        """Record that a stream's client has taken this many bytes."""
        call.taken_bytes += size
        self._send_writable(call)

    def _send_writable(self, call: LocalCall) -> None:
        """Send a WRITABLE event of a stream, if the server waits for it."""
        if call.owes_writable and call.pending_bytes < self._writable_bytes:
            call.owes_writable = False
            self.take((call, (EdgeEventKind.WRITABLE, call.number, None)))

    # Called by the thread that takes the server's turn.

    def announce_sleep(self) -> bool:
        """Ask to be woken; return False if something has already arrived."""
        self._is_asleep = True
        if self._inbox or not self._edge.announce_sleep():
            self._is_asleep = False
            return False
        return True

    def awake(self) -> None:
        """End the sleep that `announce_sleep` began."""
        self._is_asleep = False
        self._edge.awake()

    def poll(self, calls_max: int, bytes_max: int) -> tuple[list[Request], list[Event]]:
        """Return arrived requests and events; local calls use at most half of the limits."""
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
            if kind == EdgeEventKind.OPENED and not call.is_ended:
                self._calls[number] = call
            elif number not in self._calls:
                continue
            elif kind == EdgeEventKind.MESSAGE:
                bytes_left -= len(detail)
            elif kind == EdgeEventKind.ENDED:
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
        """Send the responses of unary calls, which ends them."""
        if self._calls:
            calls, others, connections = self._calls, [], set()
            for each in batch:
                if each[0] < LOCAL_FIRST:
                    others.append(each)
                    continue
                call = calls.pop(each[0], None)
                if call is None or call.is_ended:
                    continue
                call.is_ended = True
                answer, connection = each[1], call.connection
                content = answer if isinstance(answer, bytes) else End(*answer)
                connection.deliveries.append(Delivery(call, content))
                connections.add(connection)
            for connection in connections:
                connection.notify()
            batch = others
        if batch:
            self._edge.reply(batch)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Send messages of streams."""
        if self._calls:
            others, connections = [], set()
            for number, message in batch:
                if number < LOCAL_FIRST:
                    others.append((number, message))
                    continue
                call = self._calls.get(number)
                if call is None or call.is_ended:
                    continue
                call.sent_bytes += len(message)
                if call.pending_bytes >= self._writable_bytes:
                    call.owes_writable = True
                    # The client may have taken all bytes before `owes_writable` was set, without
                    # sending an event.
                    self._send_writable(call)
                call.connection.deliveries.append(Delivery(call, message, False))
                connections.add(call.connection)
            for connection in connections:
                connection.notify()
            batch = others
        if batch:
            self._edge.send(batch)

    def start(self, call: int, metadata: Headers) -> None:
        """Send a call's initial metadata, which clients in this process do not read."""
        if call < LOCAL_FIRST:
            self._edge.start(call, metadata)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """End a stream after its queued messages."""
        if call < LOCAL_FIRST:
            self._edge.finish(call, status, trailers)
            return
        local = self._calls.pop(call, None)
        if local is not None and not local.is_ended:
            local.is_ended = True
            local.connection.deliveries.append(Delivery(local, End(*status)))
            local.connection.notify()

    def has_room(self, call: int, is_long: bool = False) -> bool:
        """Return whether a response may be sent; local calls always have room."""
        return call >= LOCAL_FIRST or self._edge.has_room(call, is_long)

    def pending_bytes(self, call: int) -> int:
        """Return the bytes that were sent and not yet taken by the client."""
        if call < LOCAL_FIRST:
            return self._edge.pending_bytes(call)
        local = self._calls.get(call)
        return local.pending_bytes if local is not None else 0

    def mark_waiting(self, call: int) -> None:
        """Request an ENDED event if a unary call ends before its reply."""
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
        """Refuse new calls."""
        self.is_leaving = True
        self._edge.drain()

    def is_quiet(self) -> bool:
        """Return whether no call can arrive any more."""
        return not self._inbox and self._edge.is_quiet()

    def is_drained(self) -> bool:
        """Return whether no client is connected any more."""
        return not self._inbox and not self._calls and self._edge.is_drained()

    def stop(self) -> None:
        """End all calls now."""
        self.is_leaving = True
        self._edge.stop()
        self._is_stopped = True
        self._refuse_arrived()
        for call in self._calls.values():
            self._end(call)
        self._calls.clear()
