"""The shells of clients in the member's process: a `LocalConnection` takes the place of sockets.

Everything else is as with the network: the same core handles deadlines, tokens and retries.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kvorum.api.errors import Code
from kvorum.client.core import Core
from kvorum.client.endpoints import Address
from kvorum.client.grpc.wire import End, Metadata
from kvorum.client.loop import LoopClient, clock
from kvorum.client.threads import SLEEP_SECONDS_MAX, ThreadedClient, Turn
from kvorum.embed.edge import Delivery, LocalConnection

if TYPE_CHECKING:
    import ssl

    from kvorum.client.threads import Ready

OpenConnection = Callable[[Callable[[], None]], LocalConnection]
"""Opens a connection, given the function to call when there are deliveries."""

_OTHER_MEMBER = (
    "a client of a member in this process reaches no other; use `kvorum.Client` for that"
)
_ENDED = "the member in this process has ended"
_SUCCESS = End(Code.OK, "")


class _LocalTransport:
    """Sends the core's calls on a local connection; both shells list it before their base."""

    core: Core
    _connection: LocalConnection
    _addresses: Sequence[Address]
    _unreachable: list[int]
    """Unreachable endpoints that were not yet reported to the core."""

    def _wake_reader(self) -> None:
        """Wake the reader; each shell has its own way."""

    def connect(self, endpoint: int) -> None:
        """Connect at once, or report the endpoint as unreachable."""
        if not _connect(self.core, endpoint, self._addresses, self._connection):
            self._unreachable.append(endpoint)
            self._wake_reader()

    def disconnect(self, endpoint: int) -> None:
        """Do nothing: the core has already ended the calls of this endpoint."""

    def start(
        self,
        call: int,
        endpoint: int,  # noqa: ARG002 (there is one)
        path: str,
        metadata: Metadata,
        message: bytes,
        ends: bool,
    ) -> None:
        """Start a call."""
        self._connection.start(call, path, metadata, message, ends)

    def send(self, call: int, message: bytes) -> None:
        """Send another message."""
        self._connection.send(call, message)

    def hold(self, call: int, *, is_held: bool) -> None:
        """Pause or resume the messages of a call."""
        self._connection.hold(call, is_held=is_held)

    def cancel(self, call: int) -> None:
        """Cancel a call."""
        self._connection.cancel(call)


class _LocalTurn(Turn):
    """A period in which one thread uses the core; at its end the member serves its calls."""

    __slots__ = ("_local",)

    def __init__(self, client: "LocalThreads") -> None:
        super().__init__(client)
        self._local = client

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._local.push()


class LocalThreads(_LocalTransport, ThreadedClient):
    """The shell for threads."""

    def __init__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
        *,
        open_connection: OpenConnection,
        addresses: Sequence[Address],
    ) -> None:
        self._signal = threading.Lock()
        self._signal.acquire()
        super().__init__(core, context, connect_seconds_max)
        self._connection = open_connection(self._wake_reader)
        self._addresses = addresses
        self._unreachable = []

    # Waking the reader.

    def _open_wake_socket(self) -> None:
        pass

    def _close_wake_socket(self) -> None:
        self._connection.close()

    def _wake_reader(self) -> None:
        # Only `_sleep` acquires this lock, so a locked one means that no signal is pending.
        if self._signal.locked():
            with suppress(RuntimeError):
                self._signal.release()

    def turn(self) -> Turn:
        """Use the core; at the end its calls are served, by this thread if possible."""
        return _LocalTurn(self)

    def push(self) -> None:
        """Serve the calls that the core started, and read deliveries for all waiting threads."""
        # Push without holding the client's lock, because a turn of the member may take a while.
        self._connection.push(may_wait=True)
        if self._connection.deliveries:
            with self.lock:
                self.core.now = clock()
                self._read([])
                self.leave()

    def _sleep(self, seconds: float) -> "Ready":
        self._connection.push(may_wait=True)
        if not self._connection.deliveries and not self._unreachable:
            self._signal.acquire(timeout=min(seconds, SLEEP_SECONDS_MAX))
        return []

    def _poll_now(self) -> "Ready":
        return []

    def _read(self, ready: "Ready") -> None:  # noqa: ARG002
        core, connection = self.core, self._connection
        _report_unreachable(core, self._unreachable, connection)
        while (delivery := connection.take()) is not None:
            _report_delivery(core, connection, delivery)

    def _send(self) -> None:
        pass


class LocalLoop(_LocalTransport, LoopClient):
    """The shell for asyncio."""

    def __init__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
        *,
        open_connection: OpenConnection,
        addresses: Sequence[Address],
    ) -> None:
        super().__init__(core, context, connect_seconds_max)
        self._open_connection = open_connection
        self._connection = open_connection(self._wake_reader)
        self._addresses = addresses
        self._unreachable = []
        self._is_notified = False

    def _wake_reader(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take)

    def _flush(self) -> None:
        # Take deliveries of this push at once, and not in a later turn of the loop.
        is_first, self._is_notified = not self._is_notified, True
        self._connection.push(may_wait=False)
        if is_first:
            self._is_notified = False
            if self._connection.deliveries:
                self._take()
        super()._flush()
        # Process calls that the core started when it learned of the end of others.
        self._connection.push(may_wait=False)

    def _take(self) -> None:
        self._is_notified = False
        core, connection = self.core, self._connection
        core.now = clock()
        _report_unreachable(core, self._unreachable, connection)
        while (delivery := connection.take()) is not None:
            _report_delivery(core, connection, delivery)
        self.leave()

    def _make_keeper(self) -> ThreadedClient:
        return LocalThreads(
            self.core.copy(),
            self._context,
            self._connect_seconds_max,
            open_connection=self._open_connection,
            addresses=self._addresses,
        )

    async def close(self) -> None:
        """Close the client and its connection."""
        await super().close()
        self._connection.close()


def _connect(
    core: Core, endpoint: int, addresses: Sequence[Address], connection: LocalConnection
) -> bool:
    """Connect an endpoint if it is the member of this process; return whether it is."""
    address = core.endpoints.known[endpoint].address
    if not connection.is_open or not any(address.is_same(each) for each in addresses):
        return False
    core.note_connected(endpoint)
    return True


def _report_unreachable(core: Core, endpoints: list[int], connection: LocalConnection) -> None:
    """Report unreachable endpoints to the core."""
    while endpoints:
        core.note_disconnected(endpoints.pop(), _OTHER_MEMBER if connection.is_open else _ENDED)


def _report_delivery(core: Core, connection: LocalConnection, delivery: Delivery) -> None:
    call, content, is_last = delivery
    if isinstance(content, bytes):
        core.take_message(call.client_number, content)
        if is_last:
            core.take_end(call.client_number, _SUCCESS)
        return
    if content.code == Code.UNAVAILABLE and not connection.is_open:
        for endpoint in core.endpoints.known.values():
            if endpoint.is_connected:
                core.note_disconnected(endpoint.number, _ENDED)
    core.take_end(call.client_number, content)
