"""The loop of the TCP gateway: it accepts, dials, relays, retries failed members, and shuts down.

One thread uses one edge-triggered poller: each socket is registered once, and an event only means
that a read or write is worth trying. If a client's member cannot be reached, the gateway tries the
other members, and disconnects the client if none is left. No client can stop the gateway, and none
delays others for long.
"""

import errno
import os
import socket
import time
from collections import deque
from collections.abc import Callable

from kvorum.api.durations import seconds_text
from kvorum.process.lookups import Addresses, Lookups
from kvorum.process.relays import Flow, Pipes, SocketRelay, break_off, configure
from kvorum.process.thread_executor import ThreadExecutor
from kvorum.process.waking import Waking
from kvorum.proxy.remotes import ForwardTarget, Remotes
from kvorum.server.telemetry.logs import Logger
from kvorum.storage.platform.readiness import (
    EDGE_TRIGGERED,
    FAILED,
    HUNG_UP,
    READ_ENDED,
    READABLE,
    WRITABLE,
    Poller,
)

CONNECT_SECONDS_MAX = 5.0
"""The connect timeout for one address of a member; the system's own is minutes."""
DRAIN_SECONDS_MAX = 1.0
"""How long connections may go on after a signal."""
ACCEPTED_MAX = 256
"""How many connections the gateway accepts before it serves others again."""
ACCEPT_PAUSE_SECONDS = 0.1
"""How long the gateway pauses accepting if the system has no descriptor left."""
DESCRIPTORS_RESERVED = 256
"""Descriptors reserved for pipes and the rest of the process."""

_EVENTS = READABLE | WRITABLE | READ_ENDED | EDGE_TRIGGERED
_READABLE = READABLE | READ_ENDED | HUNG_UP
_ENDING = READ_ENDED | HUNG_UP
_BROKEN = FAILED | HUNG_UP
_FOREVER = float("inf")

clock = time.monotonic


class Dial:
    """An attempt to connect to a member, for a client or to test a failed member."""

    __slots__ = (
        "addresses",
        "client",
        "connection",
        "is_client_ending",
        "is_over",
        "problem",
        "remote",
    )

    def __init__(self, remote: ForwardTarget, client: socket.socket | None) -> None:
        self.remote = remote
        self.client = client
        self.connection: socket.socket | None = None
        self.addresses: deque[str] = deque()
        """The addresses not tried yet."""
        self.problem = ""
        self.is_client_ending = False
        self.is_over = False


class GatewayLoop:
    """Serves one listening socket until a signal."""

    def __init__(
        self, listener: socket.socket, remotes: Remotes, interval: float, logger: Logger
    ) -> None:
        self._listener: socket.socket | None = listener
        self._remotes = remotes
        self._interval = seconds_text(interval)
        self._logger = logger
        self._poller = Poller()
        self._waking = Waking()
        self._thread_executor = ThreadExecutor(self._waking.wake)
        self._lookups = Lookups(self._thread_executor, clock)
        self._pipes = Pipes()
        self._owners: dict[int, SocketRelay | Dial] = {}
        """The relay or dial of each descriptor."""
        self._queued: deque[SocketRelay] = deque()
        """Relays with more bytes to move, after they yielded to others."""
        self._overdue: deque[tuple[float, Dial, socket.socket]] = deque()
        """The connect timeouts of pending connections, in order."""
        self._discarded: list[tuple[socket.socket, bool]] = []
        """Sockets to close after the turn, so that the turn's events never reach a new socket with
        the same number; and whether to reset the connection."""
        self._clients = 0
        self._clients_max = 1
        self._is_accepting = False
        self._accept_at = _FOREVER
        self._drained_by = _FOREVER

    def run(self, descriptors_max: int, ready: Callable[[], None]) -> int:
        """Serve until a signal, shut down, and return the signal's number."""
        self._clients_max = max(1, (descriptors_max - DESCRIPTORS_RESERVED) // 2)
        self._poller.register(self._waking.descriptor, READABLE)
        try:
            with self._waking:
                self._accept_again()
                ready()
                while not self._is_ended(clock()):
                    self._turn()
        finally:
            self._close()
        return self._waking.signal

    # Time.

    def _turn(self) -> None:
        now = clock()
        wake_at = min(self._accept_at, self._drained_by)
        if self._listener is not None:
            wake_at = min(wake_at, self._remotes.wake_at())
        if self._overdue:
            wake_at = min(wake_at, self._overdue[0][0])
        left = 0.0 if self._queued else max(0.0, wake_at - now)
        for descriptor, events in self._poller.poll(None if left == _FOREVER else left):
            owner = self._owners.get(descriptor)
            if type(owner) is SocketRelay:
                self._relay(owner, descriptor, events)
            elif type(owner) is Dial:
                self._dialed(owner, descriptor, events)
            elif descriptor == self._waking.descriptor:
                self._woken()
            elif self._listener is not None and descriptor == self._listener.fileno():
                self._accept()
        for _ in range(len(self._queued)):
            relay = self._queued.popleft()
            relay.is_queued = False
            self._pump(relay, relay.forward)
            self._pump(relay, relay.backward)
        self._pass_time(clock())
        self._close_discarded()

    def _pass_time(self, now: float) -> None:
        while self._overdue:
            until, dial, connection = self._overdue[0]
            is_pending = not dial.is_over and dial.connection is connection
            if is_pending and now < until:
                break
            self._overdue.popleft()
            if is_pending:
                self._abandon_address(dial, "i/o timeout")
        if now >= self._accept_at:
            self._accept_again()
        if self._listener is not None:
            for remote in self._remotes.due(now):
                self._dial(remote, None)

    def _woken(self) -> None:
        self._waking.clear()
        if self._waking.is_urgent:
            self._drained_by = 0.0
        if self._waking.signal and self._listener is not None:
            self._drain(self._listener)
        self._thread_executor.take_results()

    # The end.

    def _drain(self, listener: socket.socket) -> None:
        self._logger.info("received signal; shutting down", signal=self._waking.signal_name)
        self._drained_by = min(self._drained_by, clock() + DRAIN_SECONDS_MAX)
        self._stop_accepting(_FOREVER)
        self._discard(listener)
        self._listener = None

    def _is_ended(self, now: float) -> bool:
        return self._listener is None and (not self._clients or now >= self._drained_by)

    def _close(self) -> None:
        for owner in list(self._owners.values()):
            if type(owner) is SocketRelay:
                self._end(
                    owner, is_broken=owner.forward.is_held_back or owner.backward.is_held_back
                )
            elif type(owner) is Dial:
                self._abandon(owner)
        self._close_discarded()
        self._pipes.close()
        if self._listener is not None:
            self._listener.close()
        self._poller.close()

    def _discard(self, connection: socket.socket, *, is_broken: bool = False) -> None:
        """Ignore further events of a socket, and close it after the turn."""
        self._owners.pop(connection.fileno(), None)
        self._discarded.append((connection, is_broken))

    def _close_discarded(self) -> None:
        for connection, is_broken in self._discarded:
            if is_broken:
                break_off(connection)
            else:
                connection.close()
        self._discarded.clear()

    # Clients.

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTED_MAX):
            if self._clients >= self._clients_max:
                self._stop_accepting(_FOREVER)
                return
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._logger.warning("failed to accept a connection", error=str(error))
                    self._stop_accepting(clock() + ACCEPT_PAUSE_SECONDS)
                    return
                continue
            self._clients += 1
            try:
                configure(client)
                self._poller.register(client, _EVENTS)
            except OSError:
                self._disconnect(client)
                continue
            self._forward(client)

    def _stop_accepting(self, until: float) -> None:
        """Stop accepting until a moment; new clients wait in the system's backlog."""
        self._accept_at = until
        if self._is_accepting and self._listener is not None:
            self._is_accepting = False
            self._poller.unregister(self._listener)

    def _accept_again(self) -> None:
        self._accept_at = _FOREVER
        if not self._is_accepting and self._listener is not None:
            self._is_accepting = True
            self._poller.register(self._listener, READABLE)

    def _forward(self, client: socket.socket, *, is_ending: bool = False) -> None:
        """Find a member for a client."""
        remote = self._remotes.pick()
        if remote is None:
            self._disconnect(client)
        else:
            self._dial(remote, client, is_ending=is_ending)

    def _disconnect(self, client: socket.socket) -> None:
        """Close the connection of a client that has no member."""
        self._discard(client)
        self._leave()

    def _leave(self) -> None:
        self._clients -= 1
        if not self._is_accepting and self._accept_at == _FOREVER:
            self._accept_again()

    # Members.

    def _dial(
        self, remote: ForwardTarget, client: socket.socket | None, *, is_ending: bool = False
    ) -> None:
        dial = Dial(remote, client)
        dial.is_client_ending = is_ending
        if client is not None:
            self._owners[client.fileno()] = dial

        def take_addresses(addresses: Addresses) -> None:
            if dial.is_over:
                return
            if not addresses:
                dial.problem = f"dial tcp: lookup {remote.host}: no such host"
            dial.addresses.extend(addresses)
            self._dial_next(dial)

        self._lookups.look_up(remote.host, take_addresses)

    def _dial_next(self, dial: Dial) -> None:
        """Try the next address of a member, or the next member."""
        while dial.addresses:
            address = dial.addresses.popleft()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if dial.client is not None:
                    # The process has no descriptor left; the member is not to blame.
                    self._logger.warning("failed to dial", error=str(error))
                    self._abandon(dial)
                    return
                dial.problem = f"dial tcp {dial.remote.address}: {_reason(error)}"
                continue
            try:
                configure(connection)
                code = connection.connect_ex((address, dial.remote.port))
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, os.strerror(code))
                self._poller.register(connection, _EVENTS)
            except OSError as error:
                dial.problem = f"dial tcp {dial.remote.address}: connect: {_reason(error)}"
                connection.close()
                continue
            dial.connection = connection
            self._owners[connection.fileno()] = dial
            self._overdue.append((clock() + CONNECT_SECONDS_MAX, dial, connection))
            return
        self._abandon_remote(dial)

    def _abandon_address(self, dial: Dial, problem: str) -> None:
        assert dial.connection is not None
        dial.problem = f"dial tcp {dial.remote.address}: {problem}"
        self._discard(dial.connection)
        dial.connection = None
        self._dial_next(dial)

    def _abandon_remote(self, dial: Dial) -> None:
        """Mark a member as failed for a while, and try another one for its client."""
        dial.is_over = True
        remote = dial.remote
        fields: dict[str, object] = {
            "address": remote.address,
            "interval": self._interval,
            "error": dial.problem,
        }
        if self._remotes.fail(remote, clock()):
            self._logger.warning("deactivated endpoint", **fields)
        elif dial.client is None:
            self._logger.warning(
                "failed to activate endpoint (stay inactive for another interval)", **fields
            )
        if dial.client is not None:
            self._forward(dial.client, is_ending=dial.is_client_ending)

    def _dialed(self, dial: Dial, descriptor: int, events: int) -> None:
        connection = dial.connection
        if connection is None or descriptor != connection.fileno():
            dial.is_client_ending = dial.is_client_ending or bool(events & _ENDING)
            if events & _BROKEN:
                # The client is gone.
                self._abandon(dial)
            return
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._abandon_address(dial, f"connect: {os.strerror(code).lower()}")
        elif events & (WRITABLE | _ENDING):
            self._reached(dial, connection, is_ending=bool(events & _ENDING))

    def _reached(self, dial: Dial, connection: socket.socket, *, is_ending: bool) -> None:
        dial.is_over = True
        if self._remotes.succeed(dial.remote):
            self._logger.info("activated", address=dial.remote.address)
        if dial.client is None:
            self._discard(connection)
            return
        relay = SocketRelay(dial.client, connection, self._pipes)
        relay.forward.is_ending = dial.is_client_ending
        relay.backward.is_ending = is_ending
        self._owners[dial.client.fileno()] = self._owners[connection.fileno()] = relay
        # An edge-triggered poller does not repeat the events that came before.
        self._pump(relay, relay.forward)
        self._pump(relay, relay.backward)

    def _abandon(self, dial: Dial) -> None:
        dial.is_over = True
        if dial.connection is not None:
            self._discard(dial.connection)
        if dial.client is not None:
            self._discard(dial.client, is_broken=True)
            self._leave()

    # Relays.

    def _relay(self, relay: SocketRelay, descriptor: int, events: int) -> None:
        if descriptor == relay.client.fileno():
            spoken, heard = relay.forward, relay.backward
        else:
            spoken, heard = relay.backward, relay.forward
        if events & _ENDING:
            spoken.is_ending = True
        if events & _READABLE:
            self._pump(relay, spoken)
        if events & FAILED:
            self._end(relay, is_broken=True)
        elif events & WRITABLE and heard.is_held_back:
            self._pump(relay, heard)

    def _pump(self, relay: SocketRelay, flow: Flow) -> None:
        if relay.is_over:
            return
        try:
            has_more = flow.pump()
        except OSError:
            self._end(relay, is_broken=True)
            return
        if relay.is_done:
            self._end(relay, is_broken=False)
        elif has_more and not relay.is_queued:
            relay.is_queued = True
            self._queued.append(relay)

    def _end(self, relay: SocketRelay, *, is_broken: bool) -> None:
        if not relay.is_over:
            relay.release()
            self._discard(relay.client, is_broken=is_broken)
            self._discard(relay.remote, is_broken=is_broken)
            self._leave()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
