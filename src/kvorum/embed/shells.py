"""The shells of clients in the member's process: a door takes the place of sockets.

All else is as with the network: the same core decides about deadlines, tokens and attempts.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kvorum.api.errors import Code
from kvorum.client.core import Core
from kvorum.client.endpoints import Address
from kvorum.client.interface import End, Metadata
from kvorum.client.loop import LoopClient, clock
from kvorum.client.threads import SLEEP_SECONDS_MAX, ThreadedClient, Turn
from kvorum.embed.edge import Delivery, Door

if TYPE_CHECKING:
    import ssl

    from kvorum.client.threads import Ready

OpenDoor = Callable[[Callable[[], None]], Door]
"""Makes a door, given what is called when there are deliveries."""

_ELSEWHERE = "a client of a member in this process reaches no other; use `kvorum.Client` for that"
_ENDED = "the member in this process has ended"
_WELL = End(Code.OK, "")


class _AtDoor:
    """What a core asks for, done at a door; both shells put it before their own."""

    core: Core
    _door: Door
    _addresses: Sequence[Address]
    _told: list[int]
    """Endpoints that cannot be reached, and the core was not told yet."""

    def _ring(self) -> None:
        """Let whoever reads look; each shell has its own way."""

    def connect(self, endpoint: int) -> None:
        """Connect at once, or never."""
        if not _connect(self.core, endpoint, self._addresses, self._door):
            self._told.append(endpoint)
            self._ring()

    def disconnect(self, endpoint: int) -> None:
        """Do nothing: the core has ended its calls."""

    def start(
        self,
        call: int,
        endpoint: int,  # noqa: ARG002 (there is one)
        path: str,
        metadata: Metadata,
        message: bytes,
        ends: bool,
    ) -> None:
        """Begin a call."""
        self._door.start(call, path, metadata, message, ends)

    def send(self, call: int, message: bytes) -> None:
        """Send a message more."""
        self._door.send(call, message)

    def hold(self, call: int, *, is_held: bool) -> None:
        """Take no more messages of a call, or go on."""
        self._door.hold(call, is_held=is_held)

    def cancel(self, call: int) -> None:
        """Break a call off."""
        self._door.cancel(call)


class _LocalTurn(Turn):
    """A while in which one thread touches the core; what that asks for is done at the end."""

    __slots__ = ("_local",)

    def __init__(self, client: "LocalThreads") -> None:
        super().__init__(client)
        self._local = client

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._local.push()


class LocalThreads(_AtDoor, ThreadedClient):
    """For threads."""

    def __init__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
        *,
        open_door: OpenDoor,
        addresses: Sequence[Address],
    ) -> None:
        self._signal = threading.Lock()
        self._signal.acquire()
        super().__init__(core, context, connect_seconds_max)
        self._door = open_door(self._ring)
        self._addresses = addresses
        self._told = []

    # What wakes whoever reads.

    def _open_bell(self) -> None:
        pass

    def _close_bell(self) -> None:
        self._door.close()

    def _ring(self) -> None:
        # Nobody else takes a signal that was given already.
        if self._signal.locked():
            with suppress(RuntimeError):
                self._signal.release()

    def turn(self) -> Turn:
        """Touch the core; what it begins is served at the end, by this thread if possible."""
        return _LocalTurn(self)

    def push(self) -> None:
        """Have served what the core began, and read what came of it, for all who wait."""
        # Without the client's lock: a turn of the member may take a while.
        self._door.push(may_wait=True)
        if self._door.deliveries:
            with self.lock:
                self.core.now = clock()
                self._read([])
                self.leave()

    def _sleep(self, seconds: float) -> "Ready":
        self._door.push(may_wait=True)
        if not self._door.deliveries and not self._told:
            self._signal.acquire(timeout=min(seconds, SLEEP_SECONDS_MAX))
        return []

    def _look(self) -> "Ready":
        return []

    def _read(self, ready: "Ready") -> None:  # noqa: ARG002
        core, door = self.core, self._door
        _refuse(core, self._told, door)
        while (delivery := door.take()) is not None:
            _tell(core, door, delivery)

    def _send(self) -> None:
        pass


class LocalLoop(_AtDoor, LoopClient):
    """For asyncio."""

    def __init__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
        *,
        open_door: OpenDoor,
        addresses: Sequence[Address],
    ) -> None:
        super().__init__(core, context, connect_seconds_max)
        self._open_door = open_door
        self._door = open_door(self._ring)
        self._addresses = addresses
        self._told = []
        self._is_rung = False

    def _ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take)

    def _flush(self) -> None:
        # What is delivered meanwhile is taken at once, and not when the loop comes round.
        is_first, self._is_rung = not self._is_rung, True
        self._door.push(may_wait=False)
        if is_first:
            self._is_rung = False
            if self._door.deliveries:
                self._take()
        super()._flush()
        # The core may have begun calls when it heard of the end of others.
        self._door.push(may_wait=False)

    def _take(self) -> None:
        self._is_rung = False
        core, door = self.core, self._door
        core.now = clock()
        _refuse(core, self._told, door)
        while (delivery := door.take()) is not None:
            _tell(core, door, delivery)
        self.leave()

    def _make_keeper(self) -> ThreadedClient:
        return LocalThreads(
            self.core.copy(),
            self._context,
            self._connect_seconds_max,
            open_door=self._open_door,
            addresses=self._addresses,
        )

    async def close(self) -> None:
        """End everything."""
        await super().close()
        self._door.close()


def _connect(core: Core, endpoint: int, addresses: Sequence[Address], door: Door) -> bool:
    """Return whether an endpoint is the member of this process; then it is connected."""
    address = core.endpoints.known[endpoint].address
    if not door.is_open or not any(address.is_same(each) for each in addresses):
        return False
    core.connected(endpoint)
    return True


def _refuse(core: Core, endpoints: list[int], door: Door) -> None:
    """Tell the core of endpoints that cannot be reached."""
    while endpoints:
        core.disconnected(endpoints.pop(), _ELSEWHERE if door.is_open else _ENDED)


def _tell(core: Core, door: Door, delivery: Delivery) -> None:
    call, content, is_last = delivery
    if isinstance(content, bytes):
        core.take_message(call.of_client, content)
        if is_last:
            core.take_end(call.of_client, _WELL)
        return
    if content.code == Code.UNAVAILABLE and not door.is_open:
        for endpoint in core.endpoints.known.values():
            if endpoint.is_connected:
                core.disconnected(endpoint.number, _ENDED)
    core.take_end(call.of_client, content)
