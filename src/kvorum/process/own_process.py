"""The process of a member that has one of its own, with its limits and signals."""

import asyncio
import gc
import signal

from kvorum.network.edge import Edge, Limits
from kvorum.process.loop import collect_young
from kvorum.process.notify import notify_ready
from kvorum.process.settings.config import ConfigError
from kvorum.process.startup import Running
from kvorum.server.server import Server
from kvorum.server.telemetry.logs import Logger
from kvorum.storage.platform.processes import raise_descriptor_limit

DESCRIPTORS_RESERVED = 150


class OwnProcess:
    """The process of its only member."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self.signal: int | None = None
        """The first signal that asked for a shutdown."""

    def descriptors_max(self) -> int:
        """Raise the limit of file descriptors; refuse to start if it is tiny."""
        limit = raise_descriptor_limit()
        if limit <= DESCRIPTORS_RESERVED:
            raise ConfigError(
                f"file descriptor limit [{limit}] of the process is too low, and should be set "
                f"higher than {DESCRIPTORS_RESERVED} to ensure it runs properly"
            )
        return limit

    def front(self, edge: Edge, limits: Limits) -> Edge:  # noqa: ARG002
        """Return the edge unchanged."""
        return edge

    def enter(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:
        """Shut the member down on signals; exclude existing objects from garbage collection."""
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number, running)
        # No collection first: it takes long, and imports leave little garbage.
        gc.freeze()

    def _take(self, number: int, running: Running) -> None:
        if self.signal is None:
            self.signal = number
            name = signal.strsignal(number) or str(number)
            running.end("received signal", signal=name.lower())

    def tick(self, is_idle: bool) -> None:
        """Collect the garbage of the last requests."""
        collect_young(is_idle)

    def ready(self, server: Server) -> None:  # noqa: ARG002
        """Notify the service manager."""
        notify_ready(self._logger)
