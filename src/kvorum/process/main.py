"""The `kvorum` command: parses arguments, runs a server, returns an exit code.

Exit codes are etcd's: 2 for a command line that cannot be parsed, 1 for a refused configuration or
start. After a graceful shutdown, the process dies of the signal that asked for it, or exits with 0
if it is the first process of a container. If a member stops because of an error, the code is 1;
after a defect it is 2.
"""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TextIO

from kvorum.process.settings.checks import ADVERTISE_FORGOTTEN, check, settle
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.settings.environment import (
    EnvironmentRefusedError,
    file_in_environment,
    from_environment,
)
from kvorum.process.settings.flags import FlagError, parse_arguments, without_secrets
from kvorum.process.settings.help import USAGE, flags_text, version_text
from kvorum.process.settings.suggestions import ignored, suggestions
from kvorum.server.telemetry.logs import Logger, open_logger, plain_logger

LARGE_BLOCK_BYTES = 256 * 1024
"""The C library returns freed blocks of this size and more to the system at once. The parts of a
long answer, which are freed one by one while they are joined, would else stay resident beside the
whole."""


def main() -> None:
    """Run the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the server handles it, an interrupt ends the process, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    with ExitStack() as held:
        code = _run(arguments, held)
    return code if code >= 0 else _die_of(-code)


def _run(arguments: Sequence[str], held: ExitStack) -> int:
    """Return an exit code, or the negative number of the signal that ended a server."""
    if arguments and arguments[0] == "config":
        from kvorum.process import config_check

        return config_check.run(arguments[1:], os.environ)
    if arguments and arguments[0] in ("gateway", "grpc-proxy"):
        from kvorum.process import proxies

        return proxies.run(arguments)
    try:
        given, rest = parse_arguments(arguments)
        if given.get("help"):
            _print(sys.stderr, USAGE)
            _print(sys.stdout, flags_text())
            return 0
        if rest:
            raise ConfigError(f'"{rest[0]}" is not a valid flag')
        if given.get("version"):
            _print(sys.stdout, version_text())
            return 0
        asked = _ask(given)
        if asked.given.get("ephemeral"):
            # Imported late: only ephemeral members need it.
            from kvorum.process.ephemeral_resources import EphemeralResources

            resources = EphemeralResources()
            held.callback(resources.leave)
            asked = asked._replace(given=resources.furnish(asked.given))
        config = settle(asked.given)
        logger = open_logger(
            config.logger,
            config.log_outputs,
            config.log_level,
            config.log_format,
            config.log_rotation_text if config.log_rotation else None,
        )
    except FlagError as error:
        _print(sys.stderr, f"{error}\n{USAGE}")
        return 2
    except (ConfigError, EnvironmentRefusedError) as error:
        plain_logger().warning("failed to verify flags", error=str(error))
        return 1
    try:
        check(config, asked.given)
    except ConfigError as error:
        # For a wrong file, log to the terminal, as etcd does, and not to the configured outputs.
        problem_logger = plain_logger() if asked.path else logger
        problem_logger.warning("failed to verify flags", error=str(error))
        if str(error) == ADVERTISE_FORGOTTEN:
            logger.warning("advertise client URLs are not set", error=str(error))
        return 1
    if asked.path:
        logger.info(
            "loaded server configuration, other configuration command line flags and "
            "environment variables will be ignored if provided",
            path=asked.path,
        )
    for message, fields in (*asked.warnings, *suggestions(config, asked.given)):
        logger.warning(message, **fields)
    return _serve(config, logger, arguments)


class ServerOptions(NamedTuple):
    """The operator's options, from flags and environment variables or from a file."""

    given: dict[str, object]
    warnings: Sequence[tuple[str, dict[str, Any]]]
    path: str = ""


def _ask(flags: dict[str, object]) -> ServerOptions:
    path = str(flags.get("config-file", "")) or file_in_environment(os.environ)
    if not path:
        found, warnings = from_environment(os.environ, flags)
        return ServerOptions(flags | found, warnings)
    # Imported late, so that a start without a file does not wait for the YAML parser.
    from kvorum.process.settings.file import read_file

    content = read_file(path)
    if content.problems:
        raise ConfigError(content.problems[0].text)
    return ServerOptions(content.given, ignored(flags, os.environ, content.unknown), path)


def _serve(config: Config, logger: Logger, arguments: Sequence[str]) -> int:
    # Full collections would examine every key and every imported module again and again; the loop
    # collects young objects instead.
    gc.disable()
    # Imported late, so that the error for a mistyped flag comes quickly.
    from kvorum.storage.platform.processes import return_large_blocks

    return_large_blocks(LARGE_BLOCK_BYTES)
    import uvloop

    from kvorum.member.errors import MemberStopped
    from kvorum.process.discovery.registry import DiscoveryError, FullClusterError
    from kvorum.process.own_process import OwnProcess
    from kvorum.process.refusals import REFUSALS, text_of, title_of
    from kvorum.process.startup import Running

    arguments = without_secrets(arguments)
    logger.info("Running: ", args=["kvorum", *arguments])
    # SIGQUIT prints the stacks of a hanging process, as in Go programs.
    faulthandler.register(signal.SIGQUIT, chain=True)
    process = OwnProcess(logger)
    if config.ephemeral:
        from kvorum.process.ephemeral import EphemeralProcess

        process = EphemeralProcess(config, logger)
    running = Running(config, logger, process)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(running.run(arguments))
    except MemberStopped as error:
        logger.critical("the member stopped", error=str(error))
        return 1
    except DiscoveryError as error:
        logger.warning(
            error.title,
            discovery_token=config.discovery_token,
            discovery_endpoints=list(config.discovery_endpoints),
            error=str(error),
        )
        if isinstance(error, FullClusterError):
            logger.warning(
                "do not reuse discovery token; generate a new one to bootstrap a cluster"
            )
        return 1
    except REFUSALS as error:
        title = f"failed to start etcd: {title_of(error)}"
        if running.is_serving:
            title = "the member stopped"
        logger.critical(title, error=text_of(error))
        return 1
    except Exception as error:
        logger.critical(
            "the server met an unforeseen error",
            error=repr(error),
            stacktrace="".join(traceback.format_exception(error)),
        )
        return 2
    return -(process.signal or 0)


def _die_of(number: int) -> int:
    """End this process by the signal, as its sender expects."""
    if os.getpid() == 1:
        return 0
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _print(stream: TextIO, text: str) -> None:
    print(text, file=stream)
