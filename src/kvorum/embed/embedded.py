"""What members inside a program have in common, whether in a thread or in a process of their own.

A thread of this process belongs to each of them: it runs the member, or hears of the process that
does. Everything here may be called by any thread of the process that made it, and by no other.
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
from kvorum.process.lodging import Lodging
from kvorum.settings.checks import check, settle
from kvorum.settings.config import Config as Settled

if TYPE_CHECKING:
    from types import TracebackType


class Embedded(ABC):
    """One member; use it as a context manager, or call `start` and `close`."""

    def __init__(self, config: Config | None = None) -> None:
        """Prepare a member: ports are held for it. Raises ConfigError."""
        self._process = os.getpid()
        self._lodging = Lodging()
        try:
            self._given = self._lodging.furnish((config or Config()).given)
            self.config: Settled = settle(self._given)
            """Its options, with those that were not given."""
            check(self.config, self._given)
        except BaseException:
            self._lodging.leave()
            raise
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closing = False
        self._changed = threading.Event()
        """Set when the member is ready or has stopped."""
        self._stopped = threading.Event()
        self.is_ready: bool = False
        """Whether clients have been let in."""
        self.error: BaseException | None = None
        """Why it has stopped, unless it was told to."""

    @abstractmethod
    def _serve(self) -> None:
        """Run the member, in its thread, to its end; raises what stopped it."""

    @abstractmethod
    def _ask_to_end(self) -> None:
        """Let `_serve` return soon."""

    @abstractmethod
    def _abandon(self) -> None:
        """Close what a forked child has of the parent's member, which goes on there."""

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
                self._end()
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
            # Whatever stopped the member, the error that is on its way says more.
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
                self._ask_to_end()
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
        self._lodging.leave()
        _servers.discard(self)
        self._stopped.set()
        self._changed.set()

    def _became_ready(self) -> None:
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

    # Other processes.

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                "this server runs in the process that made it, and not in this child of it; use "
                "its client URLs here, or start a server of the child's own"
            )


_servers: "weakref.WeakSet[Embedded]" = weakref.WeakSet()
"""Those that run."""


def _abandon_all() -> None:
    for server in list(_servers):
        server._lodging.abandon()
        server._abandon()
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
