"""The process of a `ProcessServer`: it reads its options from standard input, and ends with it.

It writes its reports to standard output, as lines of JSON.
"""

import asyncio
import gc
import json
import os
import pickle
import signal
import sys
from collections.abc import Mapping

import uvloop

from kvorum.embed.errors import ConfigError, translate_error
from kvorum.embed.logs import open_log
from kvorum.process.ephemeral import STANDARD_INPUT
from kvorum.process.own_process import OwnProcess
from kvorum.process.settings.checks import settle
from kvorum.process.startup import Running
from kvorum.server.server import Server
from kvorum.server.telemetry.logs import Line


def _write_report(kind: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **fields}, default=str) + "\n")
    sys.stdout.flush()


class _Forwarded:
    """Sends lines of the log to the parent program."""

    def write(self, line: Line) -> None:
        level, moment, logger, caller, message, fields = line
        parts = (logger, caller, message)
        _write_report("line", level=level, seconds=moment.timestamp(), parts=parts, fields=fields)


class _Child(OwnProcess):
    """The environment of the member's own process; the parent program decides when it ends."""

    def enter(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:
        super().enter(loop, running)
        # An interrupt of the terminal reaches the parent program, too.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_reader(STANDARD_INPUT, self._input_ended, loop, running)

    def _input_ended(self, loop: asyncio.AbstractEventLoop, running: Running) -> None:
        loop.remove_reader(STANDARD_INPUT)
        running.end("closed")

    def ready(self, server: Server) -> None:
        super().ready(server)
        _write_report("ready")


def main() -> None:
    """Run the member that the options on standard input describe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    # Unbuffered, so that the loop sees whatever follows the options.
    with os.fdopen(os.dup(STANDARD_INPUT), "rb", buffering=0) as source:
        given: Mapping[str, object] = pickle.load(source)  # noqa: S301 (our parent)
    is_ready = False
    try:
        config = settle(given)
        logger = open_log(config, given, _Forwarded())
        running = Running(config, logger, _Child(logger))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(running.run(()))
            finally:
                is_ready = running.is_serving
    except Exception as error:
        shown = translate_error(error, is_start=not is_ready)
        kind = "config" if isinstance(shown, ConfigError) else "stopped" if is_ready else "start"
        text = str(shown) if shown is not error or kind == "config" else f"{shown!r}"
        _write_report(kind, text=text)
        sys.exit(1)
