"""The configuration file: YAML whose keys are the flags, at the paths that `places` defines.

A file is complete: options that it does not name have their defaults. As with etcd, the case of
keys does not matter, a null value counts as left out, and unknown keys have no effect. The parser
reports mistakes in etcd's order and words, so that the first is the one at which etcd would stop.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvorum.api.durations import SECOND, duration
from kvorum.network.urls import Url, url
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.settings.documents import Document, Json, number_text, parse_yaml
from kvorum.process.settings.file_keys import SECTIONS, path_in_etcd, place_of, type_of
from kvorum.process.settings.flags import ALL
from kvorum.process.settings.rows import FlagRow

KEYS: Mapping[str, FlagRow] = {place: flag for flag in ALL if (place := place_of(flag)) is not None}
"""The flag of each key, by the key's path in the file."""
_DEFAULT = Config()
_KINDS = {flag.name: flag.kind for flag in ALL}

_RANGES = {
    "uint": (0, 2**64 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "int": (-(2**63), 2**63 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "time.Duration": (-(2**63), 2**63 - 1),
}
_UNCHECKED = ("initial-cluster-state", "v2-deprecation")
"""Flags with a fixed set of words, whose values are not checked while a file is parsed."""
_DEFAULT_IF_EMPTY = (*_UNCHECKED, "host-whitelist", "self-signed-cert-validity")
_LATER = (
    *("feature-gates", "peer-transport-security", "listen-peer-urls", "listen-client-urls"),
    *("listen-client-http-urls", "initial-advertise-peer-urls", "advertise-client-urls"),
    *("listen-metrics-urls", "cors"),
)
"""Keys whose text is parsed after the whole file, in this order."""


class ConfigProblem(NamedTuple):
    """A mistake in a file, and advice for correcting it."""

    text: str
    advice: str = ""


class Content(NamedTuple):
    """The parsed content of a file."""

    given: dict[str, object]
    """The flags of an equivalent command line, by name."""
    problems: list[ConfigProblem]
    """The mistakes in etcd's words and order."""
    unknown: list[str]
    """Unknown keys, which have no effect."""
    document: Document


class _MistypedError(Exception):
    """A value whose type differs from its key's."""

    def __init__(self, value: Json, expected: str, *, shows_number: bool = False) -> None:
        found = {bool: "bool", str: "string", list: "array", dict: "object"}.get(type(value))
        if found is None:
            number = value if isinstance(value, int | float) else 0
            found = f"number {number_text(number)}" if shows_number else "number"
        super().__init__(found)
        self.found = found
        self.value = value
        self.expected = expected

    def problem(self, place: str) -> ConfigProblem:
        """Return the mistake for a key's value, or for the whole file if `place` is empty."""
        where = f"struct field {path_in_etcd(place)} of" if place else "value of"
        text = (
            "error unmarshaling JSON: while decoding JSON: "
            f"json: cannot unmarshal {self.found} into Go {where} type {self.expected}"
        )
        return ConfigProblem(text, f"{place or 'the file'} has to be {self._wanted()}")

    def _wanted(self) -> str:
        expected, value = self.expected, self.value
        if expected == "time.Duration":
            with suppress(ValueError):
                return f"in nanoseconds: {duration(str(value))} for {value}"
            return "a whole number of nanoseconds"
        if expected in _RANGES:
            low, high = _RANGES[expected]
            return f"a whole number from {low} to {high}"
        if expected == "bool":
            return "true or false, without quotes"
        if expected == "[]string":
            return f"a list: [{value}]" if isinstance(value, str) else "a list of texts"
        if expected in ("string", "config.V2DeprecationEnum"):
            if isinstance(value, list):
                return "one text, its parts separated by commas"
            return "a text; put it in quotes"
        return "a mapping of keys to values"


def read_file(path: str) -> Content:
    """Return the content of a configuration file; raise ConfigError if reading fails."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        operation = "read" if isinstance(error, IsADirectoryError) else "open"
        raise ConfigError(f"{operation} {path}: {reason}") from None
    return read_content(data)


def read_content(data: bytes) -> Content:
    """Parse a configuration file's bytes; raise ConfigError if they are not valid YAML."""
    try:
        document = parse_yaml(data)
    except ValueError as error:
        raise ConfigError(f"error converting YAML to JSON: {error}") from None
    content = Content({}, [], [], document)
    texts: dict[str, str] = {}
    if isinstance(document.value, dict):
        _read_section(document.value, "", content, texts)
        _parse_texts(texts, document.value, content)
        _follow_command_line(content.given)
    elif document.value is not None:
        mistyped = _MistypedError(document.value, "embed.configYAML")
        content.problems.append(mistyped.problem(""))
    return content


def _read_section(
    section: Mapping[str, Json], prefix: str, content: Content, texts: dict[str, str]
) -> None:
    for key in sorted(section):
        place, value = prefix + key.lower(), section[key]
        flag = KEYS.get(place)
        try:
            if place in SECTIONS and value is not None:
                if not isinstance(value, dict):
                    raise _MistypedError(value, SECTIONS[place])
                _read_section(value, f"{place}.", content, texts)
            elif flag is not None and value is not None:
                _take(flag, _typed(value, type_of(flag)), content, texts)
            elif flag is None and place not in SECTIONS:
                content.unknown.append(prefix + key)
        except _MistypedError as mistyped:
            content.problems.append(mistyped.problem(place))


def _typed(value: Json, expected: str) -> bool | int | str | tuple[str, ...]:
    """Return a value with its key's type; raise _MistypedError if the type differs."""
    if expected == "bool":
        if isinstance(value, bool):
            return value
    elif expected == "[]string":
        if isinstance(value, list):
            return tuple(str(_typed("" if each is None else each, "string")) for each in value)
    elif expected in _RANGES:
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = _RANGES[expected]
            if value == int(value) and low <= value <= high:
                return int(value)
            raise _MistypedError(value, expected, shows_number=True)
    elif isinstance(value, str):
        return value
    raise _MistypedError(value, expected)


def _take(
    flag: FlagRow,
    value: bool | int | str | tuple[str, ...],
    content: Content,
    texts: dict[str, str],
) -> None:
    """Store a key's value, or its text for parsing later."""
    if value == () or (not value and flag.name in _DEFAULT_IF_EMPTY):
        content.given.pop(flag.name, None)
    elif isinstance(value, str) and flag.name not in _UNCHECKED:
        texts[flag.name] = value
    elif isinstance(value, int) and flag.kind.name == "duration":
        content.given[flag.name] = value / SECOND
    else:
        content.given[flag.name] = value


def _parse_texts(texts: Mapping[str, str], document: Mapping[str, Json], content: Content) -> None:
    names = [name for name in texts if name not in _LATER]
    for name in (*names, *_LATER):
        if name == "peer-transport-security":
            if name in document and document[name] is None:
                content.problems.append(
                    ConfigProblem(f"invalid {name}", f"give {name} a mapping, or leave it out")
                )
            continue
        if name not in texts or (name in _LATER and not texts[name]):
            continue
        kind = _KINDS[name]
        try:
            parse = _urls if kind.name == "urls" else kind.parse
            content.given[name] = parse(texts[name])
        except ValueError as error:
            setting_up = "" if kind.name == "gates" else f"unexpected error setting up {name}: "
            content.problems.append(ConfigProblem(f"{setting_up}{error}"))


def _follow_command_line(given: dict[str, object]) -> None:
    """Add defaults where leaving out a key differs in meaning from leaving out its flag."""
    if "listen-client-urls" in given:
        given.setdefault("advertise-client-urls", _DEFAULT.advertise_client_urls)
    initial_cluster = given.setdefault("initial-cluster", _DEFAULT.initial_cluster)
    finds_members = given.get("discovery-srv") or given.get("discovery-endpoints")
    if finds_members and initial_cluster == _DEFAULT.initial_cluster:
        del given["initial-cluster"]


def _urls(text: str) -> tuple[Url, ...]:
    """Parse URLs separated by commas; unlike the command line, keep duplicates."""
    return tuple(sorted(map(url, text.split(",")), key=lambda one: one.text))
