"""The client's core on the asyncio loop of its user, which it never blocks."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from kvorum.client.core import Core
from kvorum.client.endpoints import Address
from kvorum.client.errors import ForkedError, KvorumError
from kvorum.client.grpc.http2 import ProtocolError
from kvorum.client.grpc.link import READ_BYTES, Link, LinkError, UnusableError
from kvorum.client.grpc.wire import Metadata
from kvorum.client.lease_keeper import KeptLease
from kvorum.client.rpcs import Rpc
from kvorum.client.threads import (
    FOREVER,
    ThreadedClient,
    clock,
    make_link,
    monotonic,
    random_id,
    unix_nanoseconds,
)
from kvorum.client.watch_set import WatchSet

__all__ = [
    "FOREVER",
    "LoopClient",
    "Outcome",
    "Waiter",
    "clock",
    "monotonic",
    "random_id",
    "unix_nanoseconds",
]

Outcome = Awaitable
"""The return type of users' functions, as in `transact`: here something to await."""

T = TypeVar("T")


class _Protocol(asyncio.BufferedProtocol):
    """One connection, between the loop and its link."""

    def __init__(self, client: "LoopClient", link: Link) -> None:
        self._client = client
        self.link = link
        self.transport: asyncio.Transport | None = None
        # Kept, because allocating this much memory for each read takes longer than the read.
        self._received = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._client.take_connection(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self._client.take_data(self, self._received[:nbytes])

    def connection_lost(self, error: Exception | None) -> None:
        reason = (isinstance(error, OSError) and error.strerror) or str(error or "")
        self._client.take_connection_loss(self, reason or self.link.end_reason())


class Waiter:
    """Something to wait for on the running loop."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(None)


class Turn:
    """A span in which the caller uses the core."""

    __slots__ = ("_client",)

    def __init__(self, client: "LoopClient") -> None:
        self._client = client

    def __enter__(self) -> None:
        self._client.enter()

    def __exit__(self, *_: object) -> None:
        self._client.leave()


class LoopClient:
    """A core, its watches, and the connections that carry them, on the running loop."""

    def __init__(
        self,
        core: Core,
        context: Callable[[Address], ssl.SSLContext | None],
        connect_seconds_max: float,
    ) -> None:
        self.core: Core = core
        core.transport = self
        self.watching: WatchSet = WatchSet(core)
        self._context = context
        self._connect_seconds_max = connect_seconds_max
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, _Protocol] = {}
        self._protocols: set[_Protocol] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._is_flushing = False
        self._keeper: ThreadedClient | None = None

    # Calls.

    async def call(
        self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None
    ) -> bytes:
        """Make a call and return its answer; raises the error that it ended with."""
        future: asyncio.Future[bytes] = self._loop.create_future()

        def take_answer(answer: bytes | KvorumError) -> None:
            if future.done():
                return
            if isinstance(answer, bytes):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        self.enter()
        call = self.core.start(rpc, message, seconds_max, take_answer, at)
        self.leave()
        try:
            return await future
        finally:
            if future.cancelled():
                self.enter()
                self.core.cancel(call)
                self.leave()

    def turn(self) -> "Turn":
        """Return a context in which to use the core; on exit the core's output is sent."""
        return Turn(self)

    async def wait(self, waiter: "Waiter", until: float = FOREVER) -> None:
        """Return when the waiter is woken, or at `until`."""
        seconds = None if until == FOREVER else max(until - clock(), 0.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiter.future

    def start_reading(self) -> None:
        """Do nothing, because the loop reads even if no call waits."""

    def enter(self) -> None:
        """Prepare the core for use: check the process and the loop, and set the core's time."""
        if os.getpid() != self._process:
            raise ForkedError(
                "this client was made before the process forked; make one in the child"
            )
        self._check_loop()
        self.core.now = clock()

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() not in (self._loop, None):
            state = "closed" if self._loop.is_closed() else "not the one that runs now"
            raise RuntimeError(
                f"this client belongs to the event loop in which it was made, which is {state}; "
                "make an AsyncClient in each loop, or use Client, which needs none"
            )

    def leave(self) -> None:
        """Release the core: the loop's next iteration sends the core's output.

        Calls that start together thus share one write.
        """
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    async def close(self) -> None:
        """End all calls and watches, stop renewing leases, and close the connections."""
        self._check_loop()
        self.core.now = clock()
        self.core.close()
        self.watching.close()
        for task in self._connecting:
            task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)
        for protocol in list(self._protocols):
            if protocol.transport is not None:
                protocol.transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.close)

    # Leases.

    def keep(
        self, lease: int, ttl: int, asked_at: float, on_change: Callable[[], None]
    ) -> KeptLease:
        """Keep a lease alive that was requested at `asked_at`, a moment of `clock`.

        A thread with connections of its own renews it, so that a busy loop cannot delay that.
        """
        if self._keeper is None:
            self._keeper = self._make_keeper()
        loop = self._loop

        def changed() -> None:
            # The loop may have ended before the thread.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(on_change)

        return self._keeper.keep(lease, ttl, asked_at, changed)

    def _make_keeper(self) -> ThreadedClient:
        return ThreadedClient(self.core.copy(), self._context, self._connect_seconds_max)

    def release(self, kept: KeptLease) -> None:
        """Stop keeping a lease alive."""
        if self._keeper is not None:
            self._keeper.release(kept)

    async def work(self, function: Callable[[], T]) -> T:
        """Run a function that may take a while, such as writing a file, in another thread."""
        return await asyncio.to_thread(function)

    # Endpoints.

    def set_endpoints(self, addresses: Sequence[Address]) -> None:
        """Use other endpoints from now on, for leases too."""
        with self.turn():
            self.core.set_endpoints(addresses)
        if self._keeper is not None:
            self._keeper.set_endpoints(addresses)

    # Time.

    def _flush(self) -> None:
        self._is_flushing = False
        for protocol in self._protocols:
            if protocol.transport is not None and (data := protocol.link.take_output()):
                protocol.transport.write(data)
        moment = min(self.core.wake_at(), self.watching.wake_at())
        for protocol in self._protocols:
            moment = min(moment, protocol.link.wake_at(self.core.now))
        # An overdue timer was set before a suspend, which stops the loop's clock.
        if moment < self._timer_at or self._timer_at <= self.core.now:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = moment
            self._timer = self._loop.call_later(max(0.0, moment - clock()), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self.core.now = clock()
        self.core.pass_time(now)
        self.watching.pass_time(now)
        for protocol in list(self._protocols):
            try:
                protocol.link.pass_time(now)
            except LinkError as error:
                self.take_connection_loss(protocol, str(error))
        self.leave()

    # Connections.

    def take_connection(self, protocol: _Protocol) -> None:
        """Register a new connection."""
        self.core.now = clock()
        self._protocols.add(protocol)
        self._links[protocol.link.number] = protocol
        if protocol.link.is_open:
            self.core.note_connected(protocol.link.number)
        self.leave()

    def take_data(self, protocol: _Protocol, data: memoryview) -> None:
        """Take bytes from a connection."""
        self.core.now = clock()
        link = protocol.link
        was_open = link.is_open
        try:
            link.receive(data)
        except (LinkError, ProtocolError) as error:
            self.take_connection_loss(protocol, str(error))
            return
        if link.is_open and not was_open:
            self.core.note_connected(link.number)
        if link.wire.connection.is_going_away and not link.is_leaving:
            link.is_leaving = True
            if self._links.get(link.number) is protocol:
                del self._links[link.number]
            self.core.note_disconnected(link.number, "the server is going away")
        if link.is_leaving and not link.wire.calls_open:
            self._drop(protocol)
        self.leave()

    def take_connection_loss(self, protocol: _Protocol, reason: str) -> None:
        """Handle the loss of a connection."""
        if protocol not in self._protocols:
            return
        self.core.now = clock()
        self._drop(protocol)
        link = protocol.link
        if self._links.get(link.number) is protocol:
            del self._links[link.number]
            self.core.note_disconnected(link.number, reason, is_unusable=link.is_unusable)
        link.wire.lose(reason, is_unprocessed=link.is_unusable)
        self.leave()

    def _drop(self, protocol: _Protocol) -> None:
        self._protocols.discard(protocol)
        if protocol.transport is not None:
            protocol.transport.abort()

    async def _connect(self, number: int, address: Address) -> None:
        loop = self._loop
        try:
            link = make_link(number, address, self.core, self._context(address))
            link.open_deadline = clock() + self._connect_seconds_max
            is_limited = self._connect_seconds_max < float("inf")
            async with asyncio.timeout(self._connect_seconds_max if is_limited else None):
                if address.port is None:
                    await loop.create_unix_connection(lambda: _Protocol(self, link), address.host)
                else:
                    await loop.create_connection(
                        lambda: _Protocol(self, link),
                        address.host,
                        address.port,
                        happy_eyeballs_delay=0.25,
                    )
        except (OSError, LinkError, ValueError) as error:
            problem = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            self.core.now = clock()
            is_unusable = isinstance(error, UnusableError)
            self.core.note_disconnected(number, problem, is_unusable=is_unusable)
            self.leave()

    # The core's transport.

    def connect(self, endpoint: int) -> None:
        """Connect in a task."""
        address = self.core.endpoints.known[endpoint].address
        task = self._loop.create_task(self._connect(endpoint, address))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def disconnect(self, endpoint: int) -> None:
        """Close a connection, and end its calls as lost."""
        protocol = self._links.pop(endpoint, None)
        if protocol is not None:
            self._drop(protocol)
            protocol.link.wire.lose("the connection was closed")

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        """Start a call."""
        self._links[endpoint].link.wire.start(call, path, metadata, message, ends=ends)

    def send(self, call: int, message: bytes) -> None:
        """Send another message on a call."""
        for protocol in self._protocols:
            protocol.link.wire.send(call, message)
        self.leave()

    def hold(self, call: int, *, is_held: bool) -> None:
        """Withhold flow-control window updates for a call, or resume them."""
        for protocol in self._protocols:
            protocol.link.wire.hold(call, is_held=is_held)

    def cancel(self, call: int) -> None:
        """Cancel a call."""
        for protocol in self._protocols:
            protocol.link.wire.cancel(call)
        with suppress(RuntimeError):
            self.leave()
