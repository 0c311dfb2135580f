"""Structured logs in etcd's formats: one JSON object per line, or tab-separated text.

A line has a level, a time, its caller, a message and named fields. A message that is logged more
than `SAMPLED_FIRST` times within a second is then written only every `SAMPLED_THEN`-th time.
Writing a line never raises: a log that cannot be written must not stop a member.

Much of the logged text comes from clients and peers. The log escapes control characters, so that
such text cannot start a new line or change how a terminal shows the rest.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from kvorum.process.settings.config import ConfigError
from kvorum.process.settings.flags import FlagError
from kvorum.server.telemetry.journal import Journal
from kvorum.server.telemetry.rotation import RotatingFile
from kvorum.server.telemetry.rotation_rules import RotationRules, rotation_rules

LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3, "dpanic": 4, "panic": 5, "fatal": 6}
SAMPLED_FIRST = 100
SAMPLED_THEN = 100
STREAMS = {"default": 2, "stderr": 2, "stdout": 1}
JOURNAL = "systemd/journal"
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_PACKAGE = str(Path(__file__).parents[2]) + os.sep

# Control characters, line and paragraph separators, direction marks, and surrogates.
_OBEYED = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)

Fields = dict[str, Any]
Opened = TypeVar("Opened")


class Line(NamedTuple):
    """One log entry before formatting."""

    level: str
    moment: datetime
    logger: str
    caller: str
    message: str
    fields: Fields


Format = Callable[[Line], str]


def _timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_text(unix_seconds: float) -> str:
    """Format a Unix time like the timestamps of lines."""
    return _timestamp(datetime.fromtimestamp(unix_seconds, UTC))


def as_json(line: Line) -> str:
    """Format a line as etcd does by default."""
    entry: Fields = {"level": line.level, "ts": _timestamp(line.moment)}
    if line.logger:
        entry["logger"] = line.logger
    entry |= {"caller": line.caller, "msg": line.message} | line.fields
    return escaped(json.dumps(entry, separators=(",", ":"), ensure_ascii=False, default=str))


def escaped(text: str) -> str:
    """Escape the control characters in a text; JSON stays valid JSON."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def as_console(line: Line) -> str:
    """Format a line as etcd's console format does: separated by tabs."""
    parts = [_timestamp(line.moment), line.level]
    parts += [line.logger] if line.logger else []
    parts += [line.caller, line.message]
    parts += [json.dumps(line.fields, ensure_ascii=False, default=str)] if line.fields else []
    return "\t".join(map(escaped, parts))


def for_terminal(line: Line) -> str:
    """Format a line for a person to read."""
    text = f"{line.moment:%H:%M:%S}.{line.moment.microsecond // 1000:03} {line.level:5} "
    text += line.message
    text += "".join(f"  {name}={_plain(value)}" for name, value in line.fields.items())
    return escaped(text)


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if {" ", '"', "="} & set(text) else text


class LogSink(Protocol):
    """A destination of lines."""

    def write(self, line: Line) -> None:
        """Write a line without ever raising."""


class Sink(NamedTuple):
    """A descriptor, and the format of its lines."""

    descriptor: int
    format: Format

    def write(self, line: Line) -> None:
        """Write a line; ignore a failure."""
        data = _encoded(self.format(line))
        try:
            while data:
                data = data[os.write(self.descriptor, data) :]
        except OSError:
            return


class RotatedSink(NamedTuple):
    """A rotated file, and the format of its lines."""

    file: RotatingFile
    format: Format

    def write(self, line: Line) -> None:
        """Write a line; ignore a failure."""
        self.file.write(_encoded(self.format(line)))


class JournalSink(NamedTuple):
    """The journal, and the format of its lines."""

    journal: Journal
    format: Format

    def write(self, line: Line) -> None:
        """Send a line."""
        self.journal.send(line.level, line.caller, self.format(line))


def _encoded(text: str) -> bytes:
    return (text + "\n").encode(errors="backslashreplace")


class Logger:
    """Writes lines at or above a level to all its sinks."""

    __slots__ = ("_counts", "_level", "_name", "_second", "_sinks")

    def __init__(self, sinks: Sequence[LogSink], level: str = "info", name: str = "") -> None:
        self._sinks = sinks
        self._level = LEVELS[level]
        self._name = name
        self._counts: dict[tuple[str, str], int] = {}
        self._second = 0

    def named(self, name: str) -> "Logger":
        """Return a logger whose lines carry the name."""
        other = Logger(self._sinks, name=name)
        other._level = self._level
        return other

    def debug(self, message: str, /, **fields: object) -> None:
        """Write a line for developers."""
        if self._level == 0:
            self.write("debug", message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """Write a line about a change of state."""
        self.write("info", message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Write a line about a condition that needs attention."""
        self.write("warn", message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Write a line about a failure."""
        self.write("error", message, fields)

    def critical(self, message: str, /, **fields: object) -> None:
        """Write the last line before the process ends."""
        self.write("fatal", message, fields)

    def at(self, caller: str) -> "PlacedLogger":
        """Return a logger with a fixed caller; see `kvorum.raft.logger.with_caller`."""
        return PlacedLogger(self, caller)

    def write(
        self, level: str, message: str, fields: Fields, depth: int = 2, caller: str = ""
    ) -> None:
        """Write a line; underscores in the names of fields become hyphens."""
        if LEVELS[level] < self._level or not self._is_sampled(level, message):
            return
        if not caller:
            frame = sys._getframe(depth)
            caller = f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        line = Line(level, datetime.now(UTC), self._name, caller, message, named)
        for sink in self._sinks:
            sink.write(line)

    def _is_sampled(self, level: str, message: str) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._counts.clear()
        count = self._counts[level, message] = self._counts.get((level, message), 0) + 1
        return count <= SAMPLED_FIRST or (count - SAMPLED_FIRST) % SAMPLED_THEN == 0


class PlacedLogger:
    """A logger with a fixed caller, because compiled code has no frame that names the caller."""

    __slots__ = ("_caller", "_logger")

    def __init__(self, logger: Logger, caller: str) -> None:
        self._logger = logger
        self._caller = caller

    def debug(self, message: str, /, **fields: object) -> None:
        """As `Logger.debug`."""
        self._logger.write("debug", message, fields, caller=self._caller)

    def info(self, message: str, /, **fields: object) -> None:
        """As `Logger.info`."""
        self._logger.write("info", message, fields, caller=self._caller)

    def warning(self, message: str, /, **fields: object) -> None:
        """As `Logger.warning`."""
        self._logger.write("warn", message, fields, caller=self._caller)

    def error(self, message: str, /, **fields: object) -> None:
        """As `Logger.error`."""
        self._logger.write("error", message, fields, caller=self._caller)

    def critical(self, message: str, /, **fields: object) -> None:
        """As `Logger.critical`."""
        self._logger.write("fatal", message, fields, caller=self._caller)


def plain_logger() -> Logger:
    """Return the logger for the time before the flags are parsed."""
    return Logger([Sink(2, _format_for("", 2))])


def rules_for(outputs: Sequence[str], rotation: str) -> RotationRules:
    """Return the rotation rules of the one file among the outputs; raise ConfigError."""
    files = [output for output in outputs if output not in STREAMS]
    if len(files) > 1 or (len(outputs) == 1 and not files):
        raise ConfigError(
            "--log-outputs requires a single file path when --log-rotate-config-json is defined"
        )
    return rotation_rules(rotation)


def open_logger(
    logger: str,
    outputs: Sequence[str],
    level: str,
    form: str,
    rotation: str | None = None,
    open_journal: Callable[[], Journal] = Journal,
) -> Logger:
    """Open the outputs that the flags name; raise ConfigError or FlagError in etcd's words.

    With `rotation`, the JSON text of the rules, the one file among the outputs is rotated.
    """
    if logger == "capnslog":
        raise ConfigError("--logger=capnslog is removed in v3.5")
    if logger != "zap":
        raise ConfigError(f'unknown logger option "{logger}"')
    if "default" in outputs and len(outputs) > 1:
        raise ConfigError('multi logoutput for "default" is not supported yet')
    rules = None if rotation is None else rules_for(outputs, rotation)
    if JOURNAL in outputs and len(outputs) > 1:
        given = " ".join(json.dumps(output) for output in outputs)
        raise ConfigError(
            f"running with systemd/journal but other '--log-outputs' values ([{given}]) are "
            "configured with 'default'; override 'default' value with something else"
        )
    journal = open_journal() if JOURNAL in outputs else None
    if level not in LEVELS:
        raise FlagError(f'unrecognized level: "{level}"; expected one of {", ".join(LEVELS)}')
    if form not in ("", "json", "console"):
        raise ConfigError(f"unknown log format: {form}, supported values json, console")
    if journal is not None:
        return Logger([JournalSink(journal, as_console if form == "console" else as_json)], level)
    sinks: list[LogSink] = []
    for output in outputs:
        descriptor = STREAMS.get(output)
        if descriptor is None and rules is not None:
            file = opened(output, lambda path: RotatingFile(path, rules))
            sinks.append(RotatedSink(file, _format_for(form, file.descriptor)))
            continue
        if descriptor is None:
            descriptor = opened(output, lambda path: os.open(path, _APPENDED, 0o666))
        sinks.append(Sink(descriptor, _format_for(form, descriptor)))
    return Logger(sinks, level)


def opened(path: str, open_file: Callable[[str], Opened]) -> Opened:
    """Open a file by its path; raise ConfigError in etcd's words if that fails."""
    try:
        return open_file(path)
    except OSError as error:
        text = (error.strerror or str(error)).lower()
        raise ConfigError(f'couldn\'t open sink "{path}": open {path}: {text}') from None


def _format_for(form: str, descriptor: int) -> Format:
    if form == "json" or (not form and not os.isatty(descriptor)):
        return as_json
    return as_console if form == "console" else for_terminal
