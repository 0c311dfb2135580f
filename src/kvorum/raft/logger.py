"""The interface through which the library logs.

`logging.Logger` fits as it is. The library also logs a line before it stops for good.
"""

from typing import NoReturn, Protocol, TypeVar

from kvorum.raft.errors import FatalError


class Logger(Protocol):
    """Takes one line of text at a level."""

    def debug(self, msg: str, /) -> None:
        """Take a line that only a developer wants."""

    def info(self, msg: str, /) -> None:
        """Take a line about a change of state."""

    def warning(self, msg: str, /) -> None:
        """Take a line about a refused request."""

    def error(self, msg: str, /) -> None:
        """Take a line about a mistake of a caller or a peer."""

    def critical(self, msg: str, /) -> None:
        """Take the last line before the node stops."""


AnyLogger = TypeVar("AnyLogger")


def with_caller(logger: AnyLogger, caller: str) -> AnyLogger:
    """Return a logger for lines of this caller: `logger.at(caller)`, or `logger` without `at`.

    Compiled code has no frames from which a logger could learn its caller, so it logs each line
    through this function. The Python sources do not need it.
    """
    at = getattr(logger, "at", None)
    return logger if at is None else at(caller)


def named(logger: AnyLogger, name: str) -> AnyLogger:
    """Return a logger for a named part: `logger.named(name)`, or `logger` without `named`."""
    make = getattr(logger, "named", None)
    return logger if make is None else make(name)


def log_fields(logger: Logger, level: str, message: str, **fields: object) -> None:
    """Log a line with named fields; append them to the text if the logger takes none."""
    write = getattr(logger, "write", None)
    if write is not None:
        write(level, message, fields)
        return
    text = ", ".join(f"{name.replace('_', '-')}: {value!a}" for name, value in fields.items())
    log = logger.warning if level == "warn" else getattr(logger, level)
    log(f"{message} ({text})" if fields else message)


def stop(logger: Logger, text: str) -> NoReturn:
    """Write the line and raise FatalError with it."""
    logger.critical(text)
    raise FatalError(text)
