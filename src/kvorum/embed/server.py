"""A member in a thread of this process, with a loop of its own.

While the loop sleeps, threads that call the member take its turns (`kvorum.embed.lending`). The
member changes nothing of the process: no signal handlers, no limits, no settings of the garbage
collector. An error that stops the member ends its thread alone.
"""

import asyncio
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

from kvorum.client.endpoints import Address
from kvorum.client.options import parse_endpoints
from kvorum.embed.config import Config
from kvorum.embed.edge import EdgeWithLocalClients, LocalConnection
from kvorum.embed.embedded import Embedded
from kvorum.embed.errors import translate_error
from kvorum.embed.lending import SharedLoop
from kvorum.embed.logs import LoggingOutput, open_log
from kvorum.embed.shells import LocalLoop, LocalThreads
from kvorum.network.edge import Edge, Limits
from kvorum.process.startup import Running
from kvorum.server.server import Server as MemberServer
from kvorum.server.telemetry.logs import LogSink

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client


NO_ADDRESS = "in-process:1"
"""The endpoint that clients show for a member that listens nowhere."""


class ClientOptions(TypedDict, total=False):
    """Client options that have a meaning without a network."""

    user: str
    password: str
    token: str
    timeout: float


class Server(Embedded):
    """A member in a thread; use it as a context manager, or call `start` and `close`."""

    def __init__(self, config: Config | None = None) -> None:
        """Prepare a member and reserve its ports; raise ConfigError for invalid options."""
        super().__init__(config)
        try:
            logger = open_log(self.config, self._given, self._log_output())
        except BaseException:
            self._resources.leave()
            raise
        self._running = Running(self.config, logger, _ThreadEnvironment(self))
        self.edge: EdgeWithLocalClients | None = None
        """Accepts calls of this process, once the member has started."""
        self._loop: SharedLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_entered = False

    def _log_output(self) -> LogSink:
        """Return the output of the log if the configuration names none."""
        return LoggingOutput(self.config.name)

    # Called in the member's thread.

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=SharedLoop) as runner:
                runner.run(self._main())
        except asyncio.CancelledError:
            pass  # it was asked to end before it had started
        except Exception as error:
            shown = translate_error(error, is_start=not self.is_ready)
            if shown is error:
                raise
            raise shown from error

    async def _main(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SharedLoop), "made by `_serve`"
            self._loop = loop
            self._task = asyncio.current_task()
        try:
            await self._running.run(())
        finally:
            with self._lock:
                self._loop = None

    def _request_stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_here)

    def _end_here(self) -> None:
        if self._has_entered:
            self._running.end("closed")
        elif self._task is not None:
            self._task.cancel()

    def note_entered(self) -> None:
        """Record that the member can be ended cleanly from now on."""
        self._has_entered = True

    def note_ready(self) -> None:
        """Record that the member serves clients."""
        self._note_ready()

    def _abandon(self) -> None:
        self._running.abandon()

    # Clients.

    def client(self, **options: Unpack[ClientOptions]) -> "Client":
        """Return a client that calls the member without a socket."""
        from kvorum.client import Client

        addresses = self._addresses()
        make = partial(LocalThreads, open_connection=self._open_connection, addresses=addresses)
        return Client([each.text for each in addresses], shell=make, **options)

    def async_client(self, **options: Unpack[ClientOptions]) -> "AsyncClient":
        """Return a client that calls the member without a socket, for the running event loop."""
        from kvorum.client import AsyncClient

        addresses = self._addresses()
        make = partial(LocalLoop, open_connection=self._open_connection, addresses=addresses)
        return AsyncClient([each.text for each in addresses], shell=make, **options)

    def _addresses(self) -> list[Address]:
        self._check_process()
        if self.edge is None or not self.is_ready:
            raise RuntimeError("the member is not ready; call `start` first")
        return parse_endpoints(self.client_urls) or parse_endpoints(NO_ADDRESS)

    def _open_connection(self, notify: Callable[[], None]) -> LocalConnection:
        assert self.edge is not None, "the member has started"
        return LocalConnection(self.edge, notify)

    def wake(self) -> None:
        """Make the member take a turn; called by its edge, from any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(self._running.ring, True)

    def lend(self, may_wait: bool) -> bool:
        """Take a turn of the member in this thread, if its loop sleeps; called by its edge."""
        loop = self._loop
        return loop is not None and loop.lend(self._turn if may_wait else self._turn_at_once)

    def _turn(self) -> None:
        self._running.ring(True)

    def _turn_at_once(self) -> None:
        # This thread must not wait for a disk; writes without fsync do not wait.
        self._running.ring(self.config.unsafe_no_fsync)


class _ThreadEnvironment:
    """An environment that the member leaves unchanged."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def descriptors_max(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def front(self, edge: Edge, limits: Limits) -> Edge:
        joined = EdgeWithLocalClients(edge, limits, self._server.wake, self._server.lend)
        self._server.edge = joined
        return joined

    def enter(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:  # noqa: ARG002
        self._server.note_entered()

    def tick(self, is_idle: bool) -> None:
        pass

    def ready(self, server: MemberServer) -> None:  # noqa: ARG002
        self._server.note_ready()
