"""A member in a process of its own, which ends with the program that started it.

Callers use it like `Server`, but their computations do not slow the member down. Its clients call
it over the network. The member ends when its standard input closes, which also happens when the
program ends, however it ends. Its log comes back as lines of JSON.
"""

import json
import pickle
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Unpack

from kvorum.embed.config import Config
from kvorum.embed.embedded import Embedded
from kvorum.embed.errors import ConfigError, StartError, StoppedError
from kvorum.embed.logs import LoggingOutput
from kvorum.embed.server import ClientOptions
from kvorum.process.helper import PACKAGES
from kvorum.server.telemetry.logs import Line

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client

START = "import sys; sys.path.append(sys.argv[1]); from kvorum.embed.child import main; main()"
_ERRORS = {"config": ConfigError, "start": StartError, "stopped": StoppedError}


class ProcessServer(Embedded):
    """A member in a child process; use it as a context manager, or call `start` and `close`."""

    def __init__(self, config: Config | None = None) -> None:
        """Prepare a member and reserve its ports; raise ConfigError for invalid options."""
        super().__init__(config)
        self._child: subprocess.Popen[bytes] | None = None
        self._log = LoggingOutput(self.config.name)

    @property
    def pid(self) -> int | None:
        """The id of the process, while it runs."""
        return None if self._child is None else self._child.pid

    def _serve(self) -> None:
        # As for helper processes of a member: nothing is imported from the working directory.
        isolation = "-I" if sys.flags.isolated else "-P"
        command = [sys.executable, isolation, "-c", START, str(PACKAGES)]
        with self._lock:
            if self._is_closing:
                return
            child = self._child = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert child.stdin is not None and child.stdout is not None
            with suppress(BrokenPipeError):
                pickle.dump(self._given, child.stdin)
                child.stdin.flush()
        try:
            error = self._listen(child)
        finally:
            with self._lock:
                self._child = None
                with suppress(BrokenPipeError):
                    child.stdin.close()
            child.stdout.close()
            code = child.wait()
        if error is None and not self._is_closing:
            error = StoppedError(f"the member's process has ended with {code}")
        if error is not None:
            raise error

    def _listen(self, child: subprocess.Popen[bytes]) -> Exception | None:
        """Process the reports of the child until it ends; return the reported error, if any."""
        assert child.stdout is not None
        error = None
        for report in map(json.loads, child.stdout):
            if report["kind"] == "line":
                moment = datetime.fromtimestamp(report["seconds"], UTC)
                logger, caller, message = report["parts"]
                line = Line(report["level"], moment, logger, caller, message, report["fields"])
                self._log.write(line)
            elif report["kind"] == "ready":
                self._note_ready()
            else:
                error = _ERRORS[report["kind"]](report["text"])
        return error

    def _request_stop(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.close()

    def _abandon(self) -> None:
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.raw.close()  # type: ignore[attr-defined]

    def client(self, **options: Unpack[ClientOptions]) -> "Client":
        """Return a client of the member."""
        from kvorum.client import Client

        self._check_process()
        return Client(self.client_urls, **options)

    def async_client(self, **options: Unpack[ClientOptions]) -> "AsyncClient":
        """Return a client of the member, for the running event loop."""
        from kvorum.client import AsyncClient

        self._check_process()
        return AsyncClient(self.client_urls, **options)
