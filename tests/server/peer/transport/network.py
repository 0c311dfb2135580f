"""Transports in one process: a network in memory with a clock of its own.

Each `Host` has a transport with an edge and a dialer, a disk in memory and a node that records what
it is told. Things happen only in `Network.run`, one event at a time, in an order that the seed
decides. Bytes are split as they travel; a link can be cut, so that its connections fail and new
ones are refused, or silenced, so that nothing arrives and nobody is told.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvorum.api.errors import Code, Status
from kvorum.network.dialer.interface import WRITABLE_BYTES, DialEvent, DialEventKind
from kvorum.network.edge.interface import EdgeEventKind, Headers
from kvorum.raft.messages import Message
from kvorum.server.peer.transport import Identity, Transport, TransportSettings
from kvorum.server.peer.transport.databases import OtherDatabaseError
from kvorum.storage.backend.copies import CopyError
from kvorum.storage.files.memory import MemoryFiles

CLUSTER = 0xCDF818194E3A8C32
SNAP_DIRECTORY = "/snap"
LATENCY_SECONDS = 0.001
UNIX_SECONDS = 1_800_000_000.0


class Connection:
    """One request and its answer."""

    def __init__(self, client: "Host | Client", number: int, server: "Host", call: int) -> None:
        self.client, self.number = client, number
        self.server, self.call = server, call
        self.target = ""
        self.is_answer_over = False
        self.is_paused = False
        # In flight, or held back.
        self.request_bytes = 0
        self.answer_bytes = 0
        self.held: list[tuple[int, Any]] = []


class Transfer(NamedTuple):
    message: Message
    path: str
    size: int = 0
    is_copy: bool = False


@dataclass
class RecordingNode:
    """Records what the transport tells it, and runs jobs when the network says so."""

    network: "Network"
    files: MemoryFiles
    received: list[Message] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    transfers: list[tuple[Any, bool]] = field(default_factory=list)
    connections: dict[int, float] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    answering: list[int] = field(default_factory=list)
    removed_nodes: set[int] = field(default_factory=set)
    is_told_removed: bool = False
    job_seconds: float = 0.002

    def receive(self, message: Message) -> None:
        self.received.append(message)

    def report_unreachable(self, peer: int) -> None:
        self.lost.append(peer)

    def report_snapshot(self, transfer: Any, *, failed: bool) -> None:
        self.transfers.append((transfer, failed))

    def note_connected(self, peer: int, now: float) -> None:
        assert peer not in self.connections
        self.connections[peer] = now

    def note_disconnected(self, peer: int) -> None:
        del self.connections[peer]

    def note_absent(self, peer: int) -> None:
        self.gone.append(peer)

    def note_present(self, peer: int) -> None:
        self.answering.append(peer)

    def is_removed(self, peer: int) -> bool:
        return peer in self.removed_nodes

    def note_removed(self) -> None:
        self.is_told_removed = True

    def submit(
        self, work: Any, done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        def run() -> None:
            try:
                result = work.run(self.files)
            except (OSError, CopyError, OtherDatabaseError) as error:
                failed(error)
            else:
                done(result)

        self.network.after(self.job_seconds, run)


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _take(self, line: str, /) -> None:
        self.lines.append(line)

    debug = info = warning = error = critical = _take

    def about(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


class Host:
    """A node with its transport, at one or more addresses."""

    def __init__(
        self,
        network: "Network",
        local_id: int,
        urls: Sequence[str],
        cluster_id: int = CLUSTER,
        version: str = "3.7.1",
        copy_format: str = "",
        **limits: Any,
    ) -> None:
        self.network = network
        self.id = local_id
        self.urls = tuple(urls)
        self.files = MemoryFiles()
        self.files.make_directory(SNAP_DIRECTORY)
        self.files.sync_directory("/")
        self.node = RecordingNode(network, self.files)
        self.log = Lines()
        self.clock_error = 0.0
        settings = TransportSettings(
            snap_directory=limits.pop("snap_directory", SNAP_DIRECTORY),
            election_seconds=1.0,
            unix_seconds=lambda: UNIX_SECONDS + network.now + self.clock_error,
            # Most tests send any bytes in place of a database.
            compares_databases=limits.pop("compares_databases", False),
            **limits,
        )
        identity = Identity(local_id, cluster_id, self.urls, version, copy_format=copy_format)
        self.transport = Transport(self.node, self, _Dialer(self), identity, settings, self.log)
        self.is_down = False
        self.wake_at = 0.0
        # Names of headers that its answers lack.
        self.withheld_headers: set[str] = set()

    # The edge.

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        network = self.network
        connection = network.calls.get((self, call))
        if connection is None:
            return
        lower = [(name.lower(), value) for name, value in headers]
        lower = [each for each in lower if each[0] not in self.withheld_headers]
        network.send_event(connection, DialEventKind.RESPONDED, (status, lower))
        if body is not None:
            if body:
                self.send([(call, body)])
            self.finish(call, Status(Code.OK, ""))

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        for call, data in batch:
            connection = self.network.calls.get((self, call))
            if connection is not None:
                connection.answer_bytes += len(data)
                for piece in self.network.chopped(data):
                    self.network.send_event(connection, DialEventKind.PIECE, piece)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        del trailers
        connection = self.network.calls.get((self, call))
        if connection is not None:
            connection.is_answer_over = True
            del self.network.calls[(self, call)]
            if status.code is Code.OK:
                self.network.send_event(connection, DialEventKind.COMPLETED, None)
            else:
                self.network.send_event(connection, DialEventKind.FAILED, "broken off")

    def pending_bytes(self, call: int) -> int:
        connection = self.network.calls.get((self, call))
        return 0 if connection is None else connection.answer_bytes

    def peer(self, call: int) -> str:
        connection = self.network.calls.get((self, call))
        return "" if connection is None else f"host {connection.client.id}"

    def pause(self, call: int) -> None:
        self.network.calls[(self, call)].is_paused = True

    def resume(self, call: int) -> None:
        connection = self.network.calls.get((self, call))
        if connection is not None:
            connection.is_paused = False
            self.network.after(0, lambda: self.network.release(connection))

    # What the tests do.

    def know(self, *others: "Host") -> None:
        for other in others:
            self.transport.add_peer(other.id, other.urls, self.network.now)
        self.wake_at = self.network.now

    def send_messages(self, *messages: Message) -> None:
        self.transport.send(messages, self.network.now)

    def __hash__(self) -> int:
        return self.id


class Client:
    """Sends single requests, and keeps the answers."""

    def __init__(self, network: "Network", identity: int = 99) -> None:
        self.id = identity
        self.network = network
        self.transport = self
        self.wake_at = 0.0
        self.statuses: dict[int, int] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}

    def request(
        self, host: Host, method: str, target: str, headers: Headers, body: bytes | None = b""
    ) -> Connection:
        return self.network.open(self, host.urls[0], method, target, headers, body)

    def asked(self, host: Host, method: str, target: str, headers: Headers, body: bytes) -> int:
        """Return the status of the answer to a request."""
        connection = self.request(host, method, target, headers, body)
        self.network.run_until(lambda: connection.is_answer_over)
        self.network.run(0.1)
        return self.statuses[connection.number]

    def handle_answer(self, event: DialEvent, _now: float) -> bool:
        if event.kind == DialEventKind.RESPONDED:
            self.statuses[event.number], headers = event.detail
            self.headers[event.number] = dict(headers)
            self.bodies[event.number] = b""
        elif event.kind == DialEventKind.PIECE:
            self.bodies[event.number] += event.detail
        return True


class _Dialer:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.network = host.network

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        return self.network.open(self.host, url, method, target, headers, body).number

    def _connection(self, number: int) -> Connection | None:
        return self.network.requests.get((self.host, number))

    def send(self, number: int, piece: bytes) -> None:
        connection = self._connection(number)
        if connection is not None:
            connection.request_bytes += len(piece)
            for part in self.network.chopped(piece):
                self.network.ask(connection, EdgeEventKind.MESSAGE, part)

    def finish(self, number: int) -> None:
        connection = self._connection(number)
        if connection is not None:
            self.network.ask(connection, EdgeEventKind.HALF_CLOSED, None)

    def pending_bytes(self, number: int) -> int:
        connection = self._connection(number)
        return 0 if connection is None else connection.request_bytes

    def probe_host(self, number: int) -> int:
        connection = self._connection(number)
        assert connection is not None, "a probe of the host of no request"
        return self.network.probe_host(connection)

    def cancel(self, number: int) -> None:
        connection = self.network.requests.pop((self.host, number), None)
        if connection is not None:
            self.network.ask(connection, EdgeEventKind.ENDED, None)

    def poll(self) -> list[DialEvent]:
        return []


class Network:
    """Hosts, the connections between them, and the time."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 100.0
        self.piece_bytes_max = 1 << 16
        self._random = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self.hosts: dict[str, Host] = {}
        self.requests: dict[tuple[Host | Client, int], Connection] = {}
        self.calls: dict[tuple[Host, int], Connection] = {}
        self.cut_links: set[tuple[int, int]] = set()
        self.silent_links: set[tuple[int, int]] = set()
        # Every request that was sent: (sender, receiver, method, target, headers).
        self.opened: list[tuple[int, int, str, str, dict[str, str]]] = []

    def add(self, local_id: int, *urls: str, **options: Any) -> Host:
        host = Host(self, local_id, urls or (f"http://host{local_id}:2380",), **options)
        for url in host.urls:
            self.hosts[url] = host
        return host

    def group(self, *ids: int, **options: Any) -> list[Host]:
        """Hosts that know each other."""
        hosts = [self.add(local_id, **options) for local_id in ids]
        for host in hosts:
            host.know(*[other for other in hosts if other is not host])
        return hosts

    def cut(self, one: Host, other: Host) -> None:
        """Break every connection between two hosts, and refuse new ones."""
        self.cut_links |= {(one.id, other.id), (other.id, one.id)}
        for connection in list(self.requests.values()):
            if {connection.client, connection.server} == {one, other}:
                self._break(connection)

    def mend(self, one: Host, other: Host) -> None:
        self.cut_links -= {(one.id, other.id), (other.id, one.id)}
        self.silent_links -= {(one.id, other.id), (other.id, one.id)}
        for connection in list(self.requests.values()):
            self.release(connection)

    def silence(self, sender: Host, receiver: Host) -> None:
        """Let nothing arrive that one host sends to the other."""
        self.silent_links.add((sender.id, receiver.id))

    def _break(self, connection: Connection) -> None:
        self.requests.pop((connection.client, connection.number), None)
        self.calls.pop((connection.server, connection.call), None)
        now, client, server = self.now, connection.client, connection.server
        event = DialEvent(DialEventKind.FAILED, connection.number, "connection reset")
        client.transport.handle_answer(event, now)
        server.transport.handle(EdgeEventKind.ENDED, connection.call, None, now)
        client.wake_at = server.wake_at = now

    # The inside.

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._queue, (self.now + seconds, self._numbers, action))

    def chopped(self, data: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            size = self._random.randint(1, self.piece_bytes_max)
            yield data[start : start + size]
            start += size

    def open(
        self,
        client: Host | Client,
        url: str,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | None,
    ) -> Connection:
        self._numbers += 2
        server = self.hosts.get(url)
        if server is None or server.is_down or (client.id, server.id) in self.cut_links:
            server = server or next(iter(self.hosts.values()))
            connection = Connection(client, self._numbers, server, 0)
            self.requests[(client, connection.number)] = connection
            self.after(LATENCY_SECONDS, lambda: self._refuse(connection))
            return connection
        connection = Connection(client, self._numbers, server, self._numbers + 1)
        self.requests[(client, connection.number)] = connection
        connection.target = target
        self.calls[(server, connection.call)] = connection
        lower = [(name.lower(), value) for name, value in headers]
        self.opened.append((client.id, server.id, method, target, dict(lower)))
        self.ask(connection, EdgeEventKind.HTTP_OPENED, (method, target, lower))
        if body is not None:
            if body:
                connection.request_bytes += len(body)
                self.ask(connection, EdgeEventKind.MESSAGE, body)
            self.ask(connection, EdgeEventKind.HALF_CLOSED, None)
        return connection

    def probe_host(self, carrier: Connection) -> int:
        """Let the host of a connection answer, unless nothing passes between the two."""
        self._numbers += 1
        client, server, number = carrier.client, carrier.server, self._numbers
        ways = {(client.id, server.id), (server.id, client.id)}
        if not ways & self.silent_links:
            event = DialEvent(DialEventKind.COMPLETED, number, None)
            self.after(LATENCY_SECONDS, lambda: self._answer(client, event))
        return number

    def _answer(self, client: Host | Client, event: DialEvent) -> None:
        client.transport.handle_answer(event, self.now)

    def _refuse(self, connection: Connection) -> None:
        if self.requests.pop((connection.client, connection.number), None) is not None:
            event = DialEvent(DialEventKind.REFUSED, connection.number, "connection refused")
            connection.client.transport.handle_answer(event, self.now)
            connection.client.wake_at = self.now

    def ask(self, connection: Connection, kind: int, detail: Any) -> None:
        """Let an event of a request travel to the server."""
        self.after(LATENCY_SECONDS, lambda: self._arrive(connection, kind, detail))

    def _arrive(self, connection: Connection, kind: int, detail: Any) -> None:
        client, server, call = connection.client, connection.server, connection.call
        if (client.id, server.id) in self.silent_links or connection.is_paused or connection.held:
            connection.held.append((kind, detail))
            return
        if (server, call) not in self.calls:
            return
        server.wake_at = self.now
        if kind == EdgeEventKind.HTTP_OPENED:
            method, target, headers = detail
            assert server.transport.serves(method, target)
            server.transport.open_request(call, method, target, headers, self.now)
            return
        if kind == EdgeEventKind.ENDED:
            del self.calls[(server, call)]
        elif kind == EdgeEventKind.MESSAGE:
            before = connection.request_bytes
            connection.request_bytes -= len(detail)
            if before >= WRITABLE_BYTES > connection.request_bytes:
                self.send_event(connection, DialEventKind.WRITABLE, None)
        server.transport.handle(kind, call, detail, self.now)

    def release(self, connection: Connection) -> None:
        held, connection.held = connection.held, []
        for kind, detail in held:
            self._arrive(connection, kind, detail)

    def send_event(self, connection: Connection, kind: int, detail: Any) -> None:
        """Let an event of an answer travel to the client."""
        self.after(LATENCY_SECONDS, lambda: self._return(connection, kind, detail))

    def _return(self, connection: Connection, kind: int, detail: Any) -> None:
        client, server, number = connection.client, connection.server, connection.number
        if (server.id, client.id) in self.silent_links:
            return
        if kind == DialEventKind.PIECE:
            connection.answer_bytes -= len(detail)
        if (client, number) not in self.requests:
            return
        if kind in (DialEventKind.COMPLETED, DialEventKind.FAILED):
            del self.requests[(client, number)]
        taken = client.transport.handle_answer(DialEvent(kind, number, detail), self.now)
        assert taken or kind == DialEventKind.WRITABLE
        client.wake_at = self.now

    def run_until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Let time pass until a condition holds, which it must within so many seconds."""
        end = self.now + seconds
        while not holds():
            assert self._step(end), f"not so within {seconds} s"

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.now + seconds
        while self._step(end):
            pass
        self.now = end

    def _step(self, end: float) -> bool:
        """Do what comes next; False if that is after the end."""
        hosts = [host for host in dict.fromkeys(self.hosts.values()) if not host.is_down]
        moments = [host.wake_at for host in hosts]
        if self._queue:
            moments.append(self._queue[0][0])
        moment = min(moments, default=end)
        if moment >= end:
            return False
        self.now = max(self.now, moment)
        if self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
        for host in hosts:
            if host.wake_at <= self.now:
                host.wake_at = host.transport.pass_time(self.now)
        return True


def is_joined(one: Host, other: Host) -> bool:
    return other.id in one.node.connections and one.id in other.node.connections
