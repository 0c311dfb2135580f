"""The client's core on sockets, for programs with threads and without an event loop.

Calls alone need no reader thread: one of the threads that wait for an answer reads for all of them,
and passes that role on when it has its own answer. Watches and leases that are kept alive have a
thread, which reads when no other thread does.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from kvorum.client.clocks import choose_boot_clock
from kvorum.client.core import Core
from kvorum.client.endpoints import Address
from kvorum.client.errors import ForkedError, KvorumError
from kvorum.client.grpc.http2 import ProtocolError
from kvorum.client.grpc.link import READ_BYTES, Keepalive, Link, LinkError, UnusableError
from kvorum.client.grpc.wire import Calls, Metadata, Wire
from kvorum.client.rpcs import Rpc

try:
    from select import POLLIN, POLLOUT
    from select import poll as Poll  # noqa: N812
except ImportError:
    from kvorum.client.polling import POLLIN, POLLOUT
    from kvorum.client.polling import SelectPoll as Poll  # type: ignore[assignment]

if TYPE_CHECKING:
    import ssl

    from kvorum.client.lease_keeper import KeptLease, LeaseKeeper
    from kvorum.client.watch_set import WatchSet

T = TypeVar("T")
Ready = list[tuple[int, int]]
"""File descriptors and their events, as `select.poll` returns them."""

IDLE_SECONDS: Final = 1.0
"""After this long without a call, the client reads its connections before it uses them again."""
SLEEP_SECONDS_MAX: Final = 3600.0
CLOCK_CHECK_SECONDS: Final = 1.0
"""How often the reader checks the clock while a lease is kept alive.

The timeout of a poll does not advance while the machine is suspended. Without this limit, the
client would renew a lease, or declare it lost, late by the rest of that timeout.
"""
FOREVER: Final = float("inf")
AGENT: Final = "kvorum-client"
KEEPALIVE: Final = Keepalive(ping_seconds=6.0, pong_seconds_max=5.0)
"""When the client pings a server that a call waits for.

etcd servers do not tolerate pings more often than every five seconds.
"""

clock: Callable[[], float] = choose_boot_clock()
"""The clock of everything that the client times."""
monotonic: Callable[[], float] = time.monotonic
"""The clock of the moments that users pass in and get back."""
unix_nanoseconds: Callable[[], int] = time.time_ns
Outcome = Annotated[T, "of a function that may wait"]
"""The return type of users' functions, as in `transact`: here the value itself."""


def random_id() -> int:
    """Return a random number, for a lease id that no other client chooses."""
    return int.from_bytes(os.urandom(8)) >> 1 or 1


def make_link(
    number: int, address: Address, calls: Calls, context: "ssl.SSLContext | None"
) -> Link:
    """Return the link to an endpoint; with a context, inside TLS. Raises LinkError."""
    wire = Wire(calls, address.authority, is_secure=context is not None, agent=AGENT)
    link = Link(number, wire, KEEPALIVE)
    if context is not None:
        is_unix = address.port is None
        link.secure(context, address.host.rpartition("/")[2] if is_unix else address.host)
    return link


class Waiter:
    """A thread that waits for an answer or an event, or for its turn to read."""

    __slots__ = ("_signal", "answer", "is_done")

    def __init__(self) -> None:
        self._signal = threading.Lock()
        self._signal.acquire()
        self.is_done: bool = False
        self.answer: bytes | KvorumError = b""

    def take_answer(self, answer: bytes | KvorumError) -> None:
        """Store the answer, and end the wait."""
        self.answer = answer
        self.wake()

    def wake(self) -> None:
        """End the wait."""
        self.is_done = True
        self.notify()

    def notify(self) -> None:
        """Wake the thread, so that it checks again whether it must wait or read."""
        with suppress(RuntimeError):
            self._signal.release()

    def wait(self, seconds_max: float) -> None:
        """Wait until another thread rings, or until `seconds_max` have passed."""
        self._signal.acquire(timeout=min(max(seconds_max, 0.0), SLEEP_SECONDS_MAX))


class Turn:
    """A span in which one thread holds the lock and uses the core."""

    __slots__ = ("_client",)

    def __init__(self, client: "ThreadedClient") -> None:
        self._client = client

    def __enter__(self) -> None:
        # Check first: a lock that was held when the process forked is never released.
        self._client.check_process()
        self._client.lock.acquire()
        try:
            self._client.enter()
        except BaseException:
            self._client.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._client.leave()
        finally:
            self._client.lock.release()


class ThreadedClient:
    """A core, its watches and leases, and the sockets that carry them."""

    def __init__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
    ) -> None:
        self.core: Core = core
        core.transport = self
        self._watching: WatchSet | None = None
        self._keeping: LeaseKeeper | None = None
        self._in_use: list[WatchSet | LeaseKeeper] = []
        """Whichever of the two is in use; a program that only makes calls loads neither."""
        self._context = context
        self._connect_seconds_max = connect_seconds_max
        self._process = os.getpid()
        self.lock: threading.Lock = threading.Lock()
        """Every thread that uses the core or the state of this object holds it."""
        self._links: dict[int, Link] = {}
        self._sockets: dict[int, tuple[socket.socket, Link]] = {}
        self._blocked: dict[int, bytes] = {}
        """Bytes that a socket has not accepted yet, by its descriptor."""
        # Kept, because allocating this much memory for each read takes longer than the read.
        self._received = memoryview(bytearray(READ_BYTES))
        self._reader: Waiter | None = None
        self._waiters: deque[Waiter] = deque()
        self._read_until = 0.0
        self._used_at = 0.0
        self._connection_results: deque[
            tuple[int, Link | None, socket.socket | None, str, bool]
        ] = deque()
        """The results of connecting threads: a connection, or the problem."""
        self._open_wake_socket()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def watching(self) -> "WatchSet":
        """The watches; the caller holds the lock."""
        if self._watching is None:
            from kvorum.client.watch_set import WatchSet

            self._watching = WatchSet(self.core)
            self._in_use.append(self._watching)
        return self._watching

    @property
    def keeping(self) -> "LeaseKeeper":
        """The leases that are kept alive; the caller holds the lock."""
        if self._keeping is None:
            from kvorum.client.lease_keeper import LeaseKeeper

            self._keeping = LeaseKeeper(self.core)
            self._in_use.append(self._keeping)
        return self._keeping

    # Calls.

    def call(self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None) -> bytes:
        """Make a call and return its answer; raises the error that it ended with."""
        waiter = Waiter()
        with self.turn():
            call = self.core.start(rpc, message, seconds_max, waiter.take_answer, at)
        try:
            if not waiter.is_done:
                self.wait(waiter)
        except BaseException:
            with self.turn():
                self.core.cancel(call)
            raise
        answer = waiter.answer
        if isinstance(answer, bytes):
            return answer
        raise answer

    def turn(self) -> "Turn":
        """Return a context in which to use the core; on exit the core's output is sent."""
        return Turn(self)

    def enter(self) -> None:
        """Prepare the core for use: set its time, and process input that arrived while idle."""
        now = clock()
        if now - self._used_at > IDLE_SECONDS and self._reader is None:
            # Notice now if the server closed a connection: a write not yet sent can go elsewhere.
            self._read(self._poll_now())
        self._used_at = now
        self.core.now = now

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that the client was made in."""
        if os.getpid() != self._process:
            raise ForkedError(
                "this client was made before the process forked; make one in the child"
            )

    def leave(self) -> None:
        """Release the core: send its output, and wake a reader that would act too late."""
        self._send()
        reader = self._reader
        if reader is None:
            return
        # Only the wake-up socket interrupts the poll of a reader whose wait is over. After a
        # suspend, a poll continues for the rest of its timeout, although its moment has passed.
        is_late = self._read_until <= self.core.now
        if reader.is_done or is_late or self._wake_at() < self._read_until:
            self._wake_reader()

    def wait(self, waiter: Waiter, until: float = FOREVER) -> None:
        """Return when the waiter is woken or at `until`; read for all if no thread reads."""
        while not waiter.is_done and clock() < until:
            with self.lock:
                if self._reader is None:
                    self._reader = waiter
                elif not waiter.is_done:
                    self._waiters.append(waiter)
            if self._reader is waiter:
                self._read_for(waiter, until)
            else:
                self._wait_in_line(waiter, until)
        with self.lock:
            # This thread may have got its answer just as another passed the reading on to it.
            self._wake_next_reader()

    def _wake_next_reader(self) -> None:
        """Let a waiting thread read, if no thread does."""
        if self._reader is None and self._waiters:
            self._waiters.popleft().notify()

    def _wait_in_line(self, waiter: Waiter, until: float) -> None:
        try:
            waiter.wait(until - clock())
        finally:
            with self.lock, suppress(ValueError):
                self._waiters.remove(waiter)

    def _read_for(self, waiter: Waiter, until: float) -> None:
        try:
            while not waiter.is_done and clock() < until:
                with self.lock:
                    self._read_until = min(self._wake_at(), until)
                    is_keeping = self._keeping is not None and self._keeping.is_busy
                    longest = CLOCK_CHECK_SECONDS if is_keeping else SLEEP_SECONDS_MAX
                    seconds = min(max(self._read_until - clock(), 0.0), longest)
                ready = self._sleep(seconds)
                with self.lock:
                    now = self.core.now = clock()
                    self._read(ready)
                    if now >= self._read_until:
                        self._pass_time()
                    self._send()
        finally:
            with self.lock:
                self._reader = None
                self._wake_next_reader()
                if self._is_closed:
                    self._close_wake_socket()

    def _wake_at(self) -> float:
        moment = self.core.wake_at()
        for duty in self._in_use:
            moment = min(moment, duty.wake_at())
        for _, link in self._sockets.values():
            moment = min(moment, link.wake_at(self.core.now))
        return moment

    def _pass_time(self) -> None:
        now = self.core.now
        self.core.pass_time(now)
        for duty in self._in_use:
            duty.pass_time(now)
        for descriptor, (connection, link) in list(self._sockets.items()):
            try:
                link.pass_time(now)
            except LinkError as error:
                self._lose(descriptor, connection, link, str(error))

    # Leases.

    def keep(
        self, lease: int, ttl: int, asked_at: float, on_change: Callable[[], None]
    ) -> "KeptLease":
        """Keep a lease alive that was requested at `asked_at`, a moment of `clock`."""
        with self.turn():
            kept = self.keeping.keep(lease, ttl, asked_at, on_change)
            self.start_reading()
        return kept

    def release(self, kept: "KeptLease") -> None:
        """Stop keeping a lease alive."""
        with self.turn():
            self.keeping.release(kept)

    def work(self, function: Callable[[], T]) -> T:
        """Run a function that may take a while, such as writing a file."""
        return function()

    # Endpoints.

    def set_endpoints(self, addresses: Sequence[Address]) -> None:
        """Use other endpoints from now on."""
        with self.turn():
            self.core.set_endpoints(addresses)

    # The thread of watches and leases.

    def start_reading(self) -> None:
        """Start the thread that reads even if no call waits."""
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._serve, name="kvorum-client", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        waiter = Waiter()
        self._server = waiter
        self.wait(waiter)

    def close(self) -> None:
        """End all calls and watches, stop renewing leases, close the sockets, join the thread."""
        if os.getpid() != self._process:
            # A forked child has the parent's sockets, but not its threads, and its locks may be
            # held for ever.
            for connection, _ in self._sockets.values():
                connection.close()
            return
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.core.now = clock()
            self.core.close()
            for duty in self._in_use:
                duty.close()
            thread = self._thread
        if thread is not None:
            self._server.wake()
            self._wake_reader()
            thread.join()
        else:
            self._wake_reader()
        with self.lock:
            for connection, _ in self._sockets.values():
                connection.close()
            self._sockets.clear()
            for _, _, arrived, _, _ in self._connection_results:
                if arrived is not None:
                    arrived.close()
            self._connection_results.clear()
            if self._reader is None:
                self._close_wake_socket()

    def _open_wake_socket(self) -> None:
        self._poll = Poll()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        # Waking must not block: the waking thread holds the lock that the reader needs before it
        # can empty the socket.
        self._wake_sender.setblocking(False)
        self._poll.register(self._wake_receiver, POLLIN)

    def _close_wake_socket(self) -> None:
        if self._wake_receiver.fileno() != -1:
            self._poll.unregister(self._wake_receiver)
            self._wake_receiver.close()
            self._wake_sender.close()

    def _wake_reader(self) -> None:
        with suppress(OSError):
            self._wake_sender.send(b"\0")

    def _sleep(self, seconds: float) -> Ready:
        """Wait until a socket is ready or the time is over; return the ready descriptors."""
        # Rounded up, or poll would return a moment too early, again and again.
        return self._poll.poll(int(seconds * 1000) + 1 if seconds else 0)

    def _poll_now(self) -> Ready:
        """Return the descriptors that are ready now."""
        return self._poll.poll(0)

    # The core's transport.

    def connect(self, endpoint: int) -> None:
        """Connect in a thread, because resolving a name may take long."""
        address = self.core.endpoints.known[endpoint].address
        threading.Thread(target=self._connect, args=(endpoint, address), daemon=True).start()

    def _connect(self, number: int, address: Address) -> None:
        connection: socket.socket | None = None
        link: Link | None = None
        problem, is_unusable = "", False
        try:
            link = make_link(number, address, self.core, self._context(address))
            link.open_deadline = clock() + self._connect_seconds_max
            # Sockets take None for no limit.
            seconds = None if self._connect_seconds_max == FOREVER else self._connect_seconds_max
            if address.port is None:
                if not hasattr(socket, "AF_UNIX"):
                    raise LinkError("Python has no Unix sockets on this system")
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(seconds)
                connection.connect(address.host)
            else:
                # For a name in bytes, Python does not load its codec for international names.
                host = address.host.encode() if address.host.isascii() else address.host
                connection = socket.create_connection(
                    (host, address.port),  # type: ignore[arg-type]
                    seconds,
                )
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
        except (OSError, LinkError, ValueError) as error:
            problem = (isinstance(error, OSError) and error.strerror) or str(error)
            is_unusable = isinstance(error, UnusableError)
        with self.lock:
            if not self._is_closed:
                self._connection_results.append((number, link, connection, problem, is_unusable))
                self._wake_reader()
            elif connection is not None:
                connection.close()

    def disconnect(self, endpoint: int) -> None:
        """Close a connection, and end its calls as lost."""
        link = self._links.pop(endpoint, None)
        if link is not None:
            for descriptor, (connection, other) in list(self._sockets.items()):
                if other is link:
                    self._drop(descriptor, connection)
            link.wire.lose("the connection was closed")

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        """Start a call."""
        self._links[endpoint].wire.start(call, path, metadata, message, ends=ends)

    def send(self, call: int, message: bytes) -> None:
        """Send another message on a call."""
        for _, link in self._sockets.values():
            link.wire.send(call, message)

    def hold(self, call: int, *, is_held: bool) -> None:
        """Withhold flow-control window updates for a call, or resume them."""
        for _, link in self._sockets.values():
            link.wire.hold(call, is_held=is_held)

    def cancel(self, call: int) -> None:
        """Cancel a call."""
        for _, link in self._sockets.values():
            link.wire.cancel(call)

    # Sockets.

    def _read(self, ready: Ready) -> None:
        for descriptor, _ in ready:
            found = self._sockets.get(descriptor)
            if found is None:
                if descriptor == self._wake_receiver.fileno():
                    with suppress(BlockingIOError):
                        self._wake_receiver.recv(4096)
                    self._take_connection_results()
                continue
            connection, link = found
            try:
                size = connection.recv_into(self._received)
                problem = "" if size else link.end_reason()
                if size:
                    self._receive(link, self._received[:size])
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, LinkError, ProtocolError) as error:
                problem = (isinstance(error, OSError) and error.strerror) or str(error)
            if problem:
                self._lose(descriptor, connection, link, problem)
            elif link.is_leaving and not link.wire.calls_open:
                self._drop(descriptor, connection)

    def _receive(self, link: Link, data: memoryview) -> None:
        was_open = link.is_open
        link.receive(data)
        if link.is_open and not was_open:
            self.core.note_connected(link.number)
        if link.wire.connection.is_going_away and not link.is_leaving:
            link.is_leaving = True
            if self._links.get(link.number) is link:
                del self._links[link.number]
            self.core.note_disconnected(link.number, "the server is going away")

    def _take_connection_results(self) -> None:
        while self._connection_results:
            number, link, connection, problem, is_unusable = self._connection_results.popleft()
            if problem or link is None or connection is None or self._is_closed:
                if connection is not None:
                    connection.close()
                self.core.note_disconnected(number, problem, is_unusable=is_unusable)
                continue
            self._links[number] = link
            self._sockets[connection.fileno()] = (connection, link)
            self._poll.register(connection, POLLIN)
            if link.is_open:
                self.core.note_connected(number)

    def _lose(self, descriptor: int, connection: socket.socket, link: Link, problem: str) -> None:
        self._drop(descriptor, connection)
        if self._links.get(link.number) is link:
            del self._links[link.number]
            self.core.note_disconnected(link.number, problem, is_unusable=link.is_unusable)
        link.wire.lose(problem, is_unprocessed=link.is_unusable)

    def _drop(self, descriptor: int, connection: socket.socket) -> None:
        del self._sockets[descriptor]
        self._blocked.pop(descriptor, None)
        self._poll.unregister(connection)
        connection.close()

    def _send(self) -> None:
        for descriptor, (connection, link) in list(self._sockets.items()):
            rest = self._blocked.get(descriptor)
            if link.can_wait and rest is None:
                continue
            data = link.take_output()
            if rest is not None:
                data = rest + data
            if not data:
                continue
            try:
                sent = connection.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(descriptor, connection, link, error.strerror or str(error))
                continue
            if sent < len(data):
                self._blocked[descriptor] = data[sent:]
                self._poll.modify(connection, POLLIN | POLLOUT)
            elif rest is not None:
                del self._blocked[descriptor]
                self._poll.modify(connection, POLLIN)
