"""A member's log as records of `logging`: loggers `kvorum` and, for its parts, `kvorum.<part>`."""

import logging
from collections.abc import Mapping

from kvorum.settings.config import Config, ConfigError
from kvorum.telemetry.logs import LEVELS, Line, Logger, Output, escaped, open_logger

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "dpanic": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}

# A program that says nothing about logs gets none; otherwise warnings would go to its terminal.
logging.getLogger("kvorum").addHandler(logging.NullHandler())


class LoggingOutput:
    """Takes lines, and makes records of those that somebody wants."""

    def __init__(self, member: str) -> None:
        """Make one for the member of that name."""
        self._member = member

    def write(self, line: Line) -> None:
        """Log a line; the record has `fields`, `caller` and the member's name as `member`."""
        name = f"kvorum.{line.logger}" if line.logger else "kvorum"
        logger, level = logging.getLogger(name), _LEVELS[line.level]
        if not logger.isEnabledFor(level):
            return
        extra = {"fields": line.fields, "caller": line.caller, "member": self._member}
        logger.log(level, "%s", _Text(line), extra=extra)


class _Text:
    """The text of a line, which is made when somebody reads it."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def __str__(self) -> str:
        return text_of(self._line)


def text_of(line: Line) -> str:
    """Return the message of a line, and its fields."""
    return escaped(line.message + "".join(f" {key}={value}" for key, value in line.fields.items()))


def open_log(config: Config, given: Mapping[str, object], output: Output) -> Logger:
    """Return the log of a member: with that output, unless others were given; or ConfigError."""
    if "log-outputs" in given:
        return open_logger(config.logger, config.log_outputs, config.log_level, config.log_format)
    if config.log_level not in LEVELS:
        expected = ", ".join(LEVELS)
        raise ConfigError(f'unrecognized level: "{config.log_level}"; expected one of {expected}')
    return Logger([output], config.log_level)
