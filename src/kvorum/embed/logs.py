"""A member's log as records of `logging`: loggers `kvorum` and, for its parts, `kvorum.<part>`."""

import logging
from collections.abc import Mapping

from kvorum.process.settings.config import Config, ConfigError
from kvorum.server.telemetry.logs import LEVELS, Line, Logger, LogSink, escaped, open_logger

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "dpanic": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}

# Without logging settings the program gets no log; otherwise warnings would go to its terminal.
logging.getLogger("kvorum").addHandler(logging.NullHandler())


class LoggingOutput:
    """Turns log lines into records for enabled loggers."""

    def __init__(self, member: str) -> None:
        """Name the member whose log this is."""
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
    """The text of a line, formatted when a handler needs it."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def __str__(self) -> str:
        return text_of(self._line)


def text_of(line: Line) -> str:
    """Return the message of a line, with its fields."""
    return escaped(line.message + "".join(f" {key}={value}" for key, value in line.fields.items()))


def open_log(config: Config, given: Mapping[str, object], output: LogSink) -> Logger:
    """Return a member's log to `output`, unless log outputs were given; raise ConfigError."""
    if "log-outputs" in given:
        return open_logger(config.logger, config.log_outputs, config.log_level, config.log_format)
    if config.log_level not in LEVELS:
        expected = ", ".join(LEVELS)
        raise ConfigError(f'unrecognized level: "{config.log_level}"; expected one of {expected}')
    return Logger([output], config.log_level)
