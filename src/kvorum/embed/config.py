"""The configuration of an embedded member: the flags of the command, as keyword arguments.

Names are those of the flags, with underscores. A value may be the text of the command line, or a
Python object: a list for comma-separated values, a number of seconds or a `timedelta` for a
duration, a path for a file, a mapping for `initial_cluster` and `feature_gates`. A Config refuses
the same values as the command line, with the same words.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Self, TypeAlias

from kvorum.process.settings.config import ConfigError
from kvorum.process.settings.flags import ALL, FlagError, find, parse_value
from kvorum.process.settings.rows import SECONDS

__all__ = ["Config", "ConfigError", "Value"]

Value: TypeAlias = (
    str
    | bool
    | float
    | timedelta
    | os.PathLike[str]
    | Iterable[str]
    | Mapping[str, str | bool | Iterable[str]]
)
"""The types of an option's value. `float` includes whole numbers for a type checker."""

_FLAGS = {flag.name: flag for flag in ALL if flag.name not in ("version", "config-file")}


class Config:
    """The given options; all others have the command's defaults.

    Addresses and the directory have other defaults: the member listens on free ports of 127.0.0.1,
    and has a temporary directory, which is removed at its end. With `listen_client_urls=()` it
    listens nowhere, and only `Server.client` reaches it. With `ephemeral=True` it stays in memory,
    and never waits for a disk.
    """

    __slots__ = ("given",)

    def __init__(self, **options: Value) -> None:
        """Store options; raise ConfigError for an unknown option or an invalid value."""
        self.given: Mapping[str, object] = dict(_parsed(*each) for each in options.items())
        """The values, keyed by flag names."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Value) -> Self:
        """Read a configuration file of the server; `options` override its content."""
        # Imported late, because loading its parser takes a while.
        from kvorum.process.settings.file import read_file

        content = read_file(os.fspath(path))
        if content.problems:
            first = content.problems[0]
            raise ConfigError(". ".join(filter(None, (first.text, first.advice))))
        config = cls(**options)
        config.given = content.given | dict(config.given)
        return config

    def replaced(self, **options: Value) -> Self:
        """Return a copy with these options replaced."""
        config = type(self)(**options)
        config.given = {**self.given, **config.given}
        return config

    def __repr__(self) -> str:
        shown = (f"{name.replace('-', '_')}={value!r}" for name, value in self.given.items())
        return f"Config({', '.join(shown)})"


def _parsed(option: str, value: Value) -> tuple[str, object]:
    name = option.replace("_", "-")
    try:
        flag = _FLAGS.get(name) or find(name)
        if flag.name not in _FLAGS:
            raise ConfigError(f"{option} is a flag of the command alone; leave it out")
        return name, parse_value(flag, _text(value, is_duration=flag.kind is SECONDS))
    except FlagError as error:
        raise ConfigError(str(error)) from None


def _text(value: Value, *, is_duration: bool) -> str:
    """Return a value as text of a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.9f}s"
    if isinstance(value, int | float):
        return f"{value:.9f}s" if is_duration else str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, one in value.items() for each in _all(one))
    return ",".join(map(str, value))


def _all(value: str | bool | Iterable[str]) -> Iterable[str]:
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (value,) if isinstance(value, str) else value
