"""Where the library reports what it does.

`logging.Logger` fits as it is. The library also logs a line before it stops for good.
"""

from typing import NoReturn, Protocol

from kvorum.raft.errors import FatalError


class Logger(Protocol):
    """Takes one line of text at a level."""

    def debug(self, msg: str, /) -> None:
        """Take a line that only a developer wants."""

    def info(self, msg: str, /) -> None:
        """Take a line about a change of state."""

    def warning(self, msg: str, /) -> None:
        """Take a line about something refused."""

    def error(self, msg: str, /) -> None:
        """Take a line about a mistake of a caller or a peer."""

    def critical(self, msg: str, /) -> None:
        """Take the last line before the node stops."""


def stop(logger: Logger, text: str) -> NoReturn:
    """Write the line and raise FatalError with it."""
    logger.critical(text)
    raise FatalError(text)
