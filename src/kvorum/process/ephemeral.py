"""`kvorum --ephemeral`: a member for the tests of a program in any language.

Once the client ports are open, the process writes its addresses as one line of JSON, the first on
standard output. If standard input is a pipe or a socket, the member ends when the input does, so
that it never outlives the program that started it.
"""

import asyncio
import json
import os
import stat
import sys

from kvorum.process.own_process import OwnProcess
from kvorum.process.settings.config import Config
from kvorum.process.startup import Running
from kvorum.server.server import Server
from kvorum.server.telemetry.logs import Logger

STANDARD_INPUT = 0
READ_BYTES = 4096


class EphemeralProcess(OwnProcess):
    """The process of an ephemeral member."""

    def __init__(self, config: Config, logger: Logger) -> None:
        super().__init__(logger)
        self._config = config

    def enter(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:
        """Shut the member down at the end of standard input, and on signals."""
        super().enter(loop, running)
        try:
            mode = os.fstat(STANDARD_INPUT).st_mode
        except OSError:
            return  # standard input is closed
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            loop.add_reader(STANDARD_INPUT, self._read, loop, running)

    def _read(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:
        try:
            if os.read(STANDARD_INPUT, READ_BYTES):
                return
        except OSError:
            pass  # the process at the other end is gone
        loop.remove_reader(STANDARD_INPUT)
        running.end("standard input ended")

    def ready(self, server: Server) -> None:
        """Write the member's addresses to standard output."""
        super().ready(server)
        config = self._config
        addresses = {
            "client_url": str(config.advertise_client_urls[0]),
            "peer_url": str(config.advertise_peer_urls[0]),
            "pid": os.getpid(),
        }
        sys.stdout.write(f"{json.dumps(addresses)}\n")
        sys.stdout.flush()
