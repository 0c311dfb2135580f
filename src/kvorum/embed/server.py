"""A member in a thread of this process, with a loop of its own.

Nothing of the process is touched: no signal handlers, no limits, no settings of the garbage
collector, and an error that stops the member ends its thread alone.
"""

import asyncio
import concurrent.futures.thread
import os
import resource
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

import uvloop

from kvorum.client.endpoints import Address
from kvorum.client.options import parse_endpoints
from kvorum.edge import Edge, Limits
from kvorum.embed.config import Config
from kvorum.embed.edge import Door, JoinedEdge
from kvorum.embed.errors import ForkedError, StartError
from kvorum.embed.logs import LoggingOutput
from kvorum.embed.shells import LocalLoop, LocalThreads
from kvorum.process.lodging import Lodging
from kvorum.process.startup import Running
from kvorum.server.server import Server as MemberServer
from kvorum.settings.checks import check, settle
from kvorum.settings.config import Config as Settled
from kvorum.settings.config import ConfigError
from kvorum.telemetry.logs import LEVELS, Logger, open_logger

if TYPE_CHECKING:
    from types import TracebackType

    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client


NOWHERE = "in-process:1"
"""Stands for a member that listens nowhere, where a client's endpoint is named."""


class ClientOptions(TypedDict, total=False):
    """Options of clients that have a meaning without a network."""

    user: str
    password: str
    token: str
    timeout: float


class Server:
    """One member; use it as a context manager, or call `start` and `close`."""

    def __init__(self, config: Config | None = None) -> None:
        """Prepare a member: ports are held for it. Raises ConfigError."""
        self._process = os.getpid()
        self._lodging = Lodging()
        try:
            given = self._lodging.furnish((config or Config()).given)
            self.config: Settled = settle(given)
            """Its options, with those that were not given."""
            check(self.config, given)
            self._logger = _open_logger(self.config, given)
        except BaseException:
            self._lodging.leave()
            raise
        self._running = Running(self.config, self._logger, _Guest(self))
        self.edge: JoinedEdge | None = None
        """Takes calls of this process, once the member has begun."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_closing = False
        self._changed = threading.Event()
        """Set when the member is ready or has stopped."""
        self._stopped = threading.Event()
        self.is_ready: bool = False
        """Whether clients have been let in."""
        self.error: BaseException | None = None
        """Why it has stopped, unless it was told to."""

    # Its life.

    def start(self, *, wait: bool = True) -> Self:
        """Start it, and return when it is ready; raises what is in the way.

        With `wait=False` return at once: members of one cluster are ready when most of them are.
        """
        self._check_process()
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("a server starts once; make another one")
            self._thread = threading.Thread(
                target=self._run, name=f"kvorum-{self.config.name}", daemon=True
            )
            _servers.add(self)
            self._thread.start()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self._close_quietly()
                raise
        return self

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return when clients are let in; raises TimeoutError, or why the member stopped."""
        self._check_process()
        if not self._changed.wait(timeout):
            raise TimeoutError(f"the member {self.config.name} is not ready after {timeout} s")
        if self._stopped.is_set() and not self.is_ready:
            self._raise()
            raise StartError(f"the member {self.config.name} was closed before it was ready")

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended."""
        return self._stopped.is_set()

    def wait_stopped(self, timeout: float | None = None) -> bool:
        """Return whether it ends in time; raises what ended it, unless it was told to."""
        self._check_process()
        if not self._stopped.wait(timeout):
            return False
        self._raise()
        return True

    def close(self) -> None:
        """End it cleanly, and return when nothing is left of it; raises what stopped it before."""
        self._check_process()
        self._end()
        self._raise()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        if os.getpid() != self._process:
            return
        if kind is None:
            self.close()
        else:
            self._close_quietly()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def _close_quietly(self) -> None:
        """End it while another error is on its way, which says more."""
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_closing = True
            thread = self._thread
            if self._loop is not None and not self._stopped.is_set():
                self._loop.call_soon_threadsafe(self._end_here)
        if thread is None:
            self._finish()
        else:
            thread.join()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    # In its own thread.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.error = _told(error, is_start=not self.is_ready)
        finally:
            self._finish()

    async def _main(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
        try:
            await self._running.run(())
        finally:
            with self._lock:
                self._loop = None

    def _end_here(self) -> None:
        if self._has_begun:
            self._running.end("closed")
        elif self._task is not None:
            self._task.cancel()

    def _finish(self) -> None:
        self._lodging.leave()
        _servers.discard(self)
        self._stopped.set()
        self._changed.set()

    def entered(self) -> None:
        """Hear that the member can be ended cleanly from now on."""
        self._has_begun = True

    def became_ready(self) -> None:
        """Hear that clients are let in."""
        self.is_ready = True
        self._changed.set()

    # Where it is.

    @property
    def client_url(self) -> str:
        """The first URL that clients reach it at; raises ValueError if it listens nowhere."""
        if not self.config.advertise_client_urls:
            raise ValueError("this member listens nowhere; `client()` reaches it")
        return str(self.config.advertise_client_urls[0])

    @property
    def client_urls(self) -> tuple[str, ...]:
        """The URLs that clients reach it at."""
        return tuple(map(str, self.config.advertise_client_urls))

    @property
    def peer_urls(self) -> tuple[str, ...]:
        """The URLs that other members reach it at."""
        return tuple(map(str, self.config.advertise_peer_urls))

    # Its clients.

    def client(self, **options: Unpack[ClientOptions]) -> "Client":
        """Return a client that calls the member without a socket."""
        from kvorum.client import Client

        addresses = self._addresses()
        make = partial(LocalThreads, open_door=self._open_door, addresses=addresses)
        return Client([each.text for each in addresses], shell=make, **options)

    def async_client(self, **options: Unpack[ClientOptions]) -> "AsyncClient":
        """Return a client that calls the member without a socket, for the loop that runs now."""
        from kvorum.client import AsyncClient

        addresses = self._addresses()
        make = partial(LocalLoop, open_door=self._open_door, addresses=addresses)
        return AsyncClient([each.text for each in addresses], shell=make, **options)

    def _addresses(self) -> list[Address]:
        self._check_process()
        if self.edge is None or not self.is_ready:
            raise RuntimeError("the member is not ready; call `start` first")
        return parse_endpoints(self.client_urls) or parse_endpoints(NOWHERE)

    def _open_door(self, ring: Callable[[], None]) -> Door:
        assert self.edge is not None, "the member has begun"
        return Door(self.edge, ring)

    def wake(self) -> None:
        """Let the member take a turn; for its edge, from any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(self._running.ring)

    # Other processes.

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                "this server runs in the process that made it, and not in this child of it; use "
                "its client URLs here, or start a server of the child's own"
            )

    def abandon(self) -> None:
        """Close what a forked child has of the parent's member, which goes on there."""
        self._lodging.abandon()
        self._running.abandon()


class _Guest:
    """Surroundings that are left as they are."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def descriptors_max(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def front(self, edge: Edge, limits: Limits) -> Edge:
        joined = JoinedEdge(edge, limits, self._server.wake)
        self._server.edge = joined
        return joined

    def enter(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:  # noqa: ARG002
        self._server.entered()

    def tick(self, is_idle: bool) -> None:
        pass

    def ready(self, server: MemberServer) -> None:  # noqa: ARG002
        self._server.became_ready()


def _open_logger(config: Settled, given: dict[str, object]) -> Logger:
    if "log-outputs" in given:
        return open_logger(config.logger, config.log_outputs, config.log_level, config.log_format)
    if config.log_level not in LEVELS:
        raise ConfigError(f'unrecognized level: "{config.log_level}"; expected one of {[*LEVELS]}')
    return Logger([LoggingOutput(config.name)], config.log_level)


def _told(error: BaseException, *, is_start: bool) -> BaseException:
    """Return what a caller is told for an error that ended a member."""
    from kvorum.process.refusals import REFUSALS, text_of, title_of

    if isinstance(error, ConfigError) or not is_start or not isinstance(error, REFUSALS):
        return error
    assert isinstance(error, Exception)
    told = StartError(f"{title_of(error)}: {text_of(error)}")
    told.__cause__ = error
    return told


_servers: "weakref.WeakSet[Server]" = weakref.WeakSet()
"""Those that run."""


def _abandon_all() -> None:
    for server in list(_servers):
        server.abandon()
    _servers.clear()


def _end_all() -> None:
    """End what still runs when the interpreter does."""
    for server in list(_servers):
        with suppress(BaseException):
            server._end()


os.register_at_fork(after_in_child=_abandon_all)
# Called before the interpreter ends the threads that members need for their end: those of
# `concurrent.futures`, which registers itself in the same way, are ended after what is registered
# later. `atexit` would come too late for that.
_ = concurrent.futures.thread
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
