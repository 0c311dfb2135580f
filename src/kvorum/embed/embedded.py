"""The common part of embedded members, in a thread or in a process of their own.

Each of them has a thread of this process, which runs the member, or reads the reports of the
member's process. Any thread of the process that created the member may call these methods, but no
other process may.
"""

import asyncio
import concurrent.futures.thread
import os
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from kvorum.embed.config import Config
from kvorum.embed.errors import ForkedError, StartError
from kvorum.process.ephemeral_resources import EphemeralResources
from kvorum.process.settings.checks import check, settle
from kvorum.process.settings.config import Config as Settled

if TYPE_CHECKING:
    from types import TracebackType


class Embedded(ABC):
    """One member; use it as a context manager, or call `start` and `close`."""

    def __init__(self, config: Config | None = None) -> None:
        """Prepare a member and reserve its ports; raise ConfigError for invalid options."""
        self._process = os.getpid()
        self._resources = EphemeralResources()
        try:
            self._given = self._resources.furnish((config or Config()).given)
            self.config: Settled = settle(self._given)
            """All options, with defaults."""
            check(self.config, self._given)
        except BaseException:
            self._resources.leave()
            raise
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closing = False
        self._changed = threading.Event()
        """Set when the member is ready or has stopped."""
        self._stopped = threading.Event()
        self.is_ready: bool = False
        """Whether the member serves clients."""
        self.error: BaseException | None = None
        """The error that stopped the member; None after a requested end."""

    @abstractmethod
    def _serve(self) -> None:
        """Run the member to its end, in its thread; raise the error that stopped it."""

    @abstractmethod
    def _request_stop(self) -> None:
        """Make `_serve` return soon."""

    @abstractmethod
    def _abandon(self) -> None:
        """Close a forked child's copies of the member's resources; the parent's member runs on."""

    # Life cycle.

    def start(self, *, wait: bool = True) -> Self:
        """Start the member, and return when it is ready; raise the error that prevents it.

        With `wait=False` return at once: the members of one cluster become ready when a majority
        runs.
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
                self._end()
                raise
        return self

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until clients are served; raise TimeoutError, or the error that stopped it."""
        self._check_process()
        if not self._changed.wait(timeout):
            raise TimeoutError(f"the member {self.config.name} is not ready after {timeout} s")
        if self._stopped.is_set() and not self.is_ready:
            self._raise()
            raise StartError(f"the member {self.config.name} was closed before it was ready")

    @property
    def is_stopped(self) -> bool:
        """Whether the member has ended."""
        return self._stopped.is_set()

    def wait_stopped(self, timeout: float | None = None) -> bool:
        """Return whether the member ends in time; raise the error that stopped it, if any."""
        self._check_process()
        if not self._stopped.wait(timeout):
            return False
        self._raise()
        return True

    def close(self) -> None:
        """End the member cleanly and release everything; raise an earlier error that stopped it."""
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
            # The caller's exception says more than the error that stopped the member.
            self._end()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def _end(self) -> None:
        with self._lock:
            self._is_closing = True
            thread = self._thread
            if thread is not None and not self._stopped.is_set():
                self._request_stop()
        if thread is None:
            self._finish()
        else:
            thread.join()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self.error = error
        finally:
            self._finish()

    def _finish(self) -> None:
        self._resources.leave()
        _servers.discard(self)
        self._stopped.set()
        self._changed.set()

    def _note_ready(self) -> None:
        self.is_ready = True
        self._changed.set()

    # Addresses.

    @property
    def client_url(self) -> str:
        """The first client URL; raises ValueError if the member listens nowhere."""
        if not self.config.advertise_client_urls:
            raise ValueError("this member listens nowhere; `client()` reaches it")
        return str(self.config.advertise_client_urls[0])

    @property
    def client_urls(self) -> tuple[str, ...]:
        """The client URLs of the member."""
        return tuple(map(str, self.config.advertise_client_urls))

    @property
    def peer_urls(self) -> tuple[str, ...]:
        """The peer URLs of the member."""
        return tuple(map(str, self.config.advertise_peer_urls))

    # Other processes.

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                "this server runs in the process that made it, and not in this child of it; use "
                "its client URLs here, or start a server of the child's own"
            )


_servers: "weakref.WeakSet[Embedded]" = weakref.WeakSet()
"""The running members."""


def _abandon_all() -> None:
    for server in list(_servers):
        server._resources.abandon()
        server._abandon()
    _servers.clear()


def _end_all() -> None:
    """End the members that still run when the interpreter ends."""
    for server in list(_servers):
        with suppress(BaseException):
            server._end()


os.register_at_fork(after_in_child=_abandon_all)
# Called before the interpreter ends the threads of `concurrent.futures`, which members need to end.
# That module registers itself in the same way, and later registrations run first. `atexit` would
# come too late.
_ = concurrent.futures.thread
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
