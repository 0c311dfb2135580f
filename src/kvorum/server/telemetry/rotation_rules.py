"""The rules of log rotation, parsed from JSON, with etcd's error texts.

As in etcd, the case of keys does not matter, unknown keys are ignored, and the last of several
equal keys wins. The parser reports a syntax error first, then the first value of a wrong type.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from kvorum.process.settings.config import ConfigError

MEBIBYTE = 1024 * 1024
SIZE_DEFAULT = 100
"""The size that 0 stands for, in MiB."""

_SYNTAX = "improperly formatted log rotation config: "
_TYPES = "invalid log rotation config: json: cannot unmarshal "
_KEYS = {
    "filename": "string",
    "maxsize": "int",
    "maxage": "int",
    "maxbackups": "int",
    "localtime": "bool",
    "compress": "bool",
}
_BLANKS = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = (b"true", b"false", b"null")


@dataclass(frozen=True, slots=True)
class RotationRules:
    """When a file is rotated, and when old files are deleted or compressed."""

    bytes_max: int = SIZE_DEFAULT * MEBIBYTE
    days_max: int = 0
    """Age at which old files are deleted; 0 or less: age does not matter."""
    backups_max: int = 0
    """How many old files are kept beside the current one; 0 or less: all."""
    local_time: bool = False
    """Whether the names of old files contain local time instead of UTC."""
    compress: bool = False


class _Number(str):
    """A number as the document spells it."""

    __slots__ = ()


class _Object(list[tuple[str, object]]):
    """The keys and values of an object, in their order."""

    __slots__ = ()


def rotation_rules(text: str) -> RotationRules:
    """Parse `--log-rotation-config-json`; raise ConfigError if it is invalid."""
    problem = syntax_problem(text.encode(errors="surrogateescape"))
    if problem:
        raise ConfigError(_SYNTAX + problem)
    values: dict[str, Any] = {}
    try:
        document = json.loads(
            text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number
        )
    except RecursionError:
        raise ConfigError(f"{_SYNTAX}exceeded max depth") from None
    if document is not None:
        if not isinstance(document, _Object):
            kind = _kind(document)
            raise ConfigError(f"{_TYPES}{kind} into Go value of type embed.logRotationConfig")
        for key, value in document:
            name = key.lower()
            if name in _KEYS and value is not None:
                values[name] = _typed(name, value)
    size = values.get("maxsize", 0)
    if size < 0:
        raise ConfigError(f"invalid log rotation config: maxsize is {size}; expected MiB, or 0")
    return RotationRules(
        bytes_max=(size or SIZE_DEFAULT) * MEBIBYTE,
        days_max=values.get("maxage", 0),
        backups_max=values.get("maxbackups", 0),
        local_time=values.get("localtime", False),
        compress=values.get("compress", False),
    )


def _kind(value: object) -> str:
    """Return Go's name for the type of a JSON value."""
    if isinstance(value, _Number):
        return "number"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, _Object) else "array"


def _typed(name: str, value: object) -> object:
    """Return the value of a key; raise ConfigError if its type is wrong."""
    expected, kind = _KEYS[name], _kind(value)
    if expected == "int" and isinstance(value, _Number):
        if re.fullmatch("-?[0-9]+", value) and -(2**63) <= int(value) < 2**63:
            return int(value)
        kind += f" {value}"
    elif expected == kind:
        return value
    field = f"logRotationConfig.Logger.{name}"
    raise ConfigError(f"{_TYPES}{kind} into Go struct field {field} of type {expected}")


class _InvalidJsonError(Exception):
    """A syntax error, in Go's words."""


def syntax_problem(data: bytes) -> str:
    """Return the syntax error of a JSON text, in Go's words; empty if it has none."""
    try:
        place = _after_value(data, _blanks(data, 0))
        place = _blanks(data, place)
        if place < len(data):
            raise _unexpected(data, place, "after top-level value")
    except _InvalidJsonError as wrong:
        return str(wrong)
    return ""


def _unexpected(data: bytes, place: int, where: str) -> _InvalidJsonError:
    if place >= len(data):
        return _InvalidJsonError("unexpected end of JSON input")
    character = chr(data[place])
    shown = character if character.isprintable() else ascii(character)[1:-1]
    shown = {"'": r"\'", "\\": r"\\"}.get(character, shown)
    return _InvalidJsonError(f"invalid character '{shown}' {where}")


def _blanks(data: bytes, place: int) -> int:
    found = _BLANKS.match(data, place)
    assert found is not None
    return found.end()


def _after_value(data: bytes, place: int) -> int:
    """Return the end of the value at `place`, without recursion into nested values."""
    closing: list[bytes] = []
    while True:
        first = data[place : place + 1]
        if first in (b"{", b"["):
            closing.append(b"}" if first == b"{" else b"]")
            place = _blanks(data, place + 1)
            if data[place : place + 1] != closing[-1]:
                place = _to_value(data, place, closing[-1])
                continue
        else:
            place = _after_scalar(data, place)
        while closing:
            place = _blanks(data, place)
            after = data[place : place + 1]
            if after == b",":
                place = _to_value(data, _blanks(data, place + 1), closing[-1])
                break
            if after != closing[-1]:
                where = "object key:value pair" if closing[-1] == b"}" else "array element"
                raise _unexpected(data, place, f"after {where}")
            closing.pop()
            place += 1
        else:
            return place


def _to_value(data: bytes, place: int, closing: bytes) -> int:
    """Return the start of the next value in an object or array; in an object it follows a key."""
    if closing == b"]":
        return place
    if data[place : place + 1] != b'"':
        raise _unexpected(data, place, "looking for beginning of object key string")
    place = _blanks(data, _after_scalar(data, place))
    if data[place : place + 1] != b":":
        raise _unexpected(data, place, "after object key")
    return _blanks(data, place + 1)


def _after_scalar(data: bytes, place: int) -> int:
    first = data[place : place + 1]
    if first == b'"':
        return _after_string(data, place)
    if first and first in b"-0123456789":
        return _after_number(data, place)
    for literal in _LITERALS:
        if first and literal.startswith(first):
            for offset, expected in enumerate(literal):
                if data[place + offset : place + offset + 1] != bytes((expected,)):
                    where = f"in literal {literal.decode()} (expecting '{chr(expected)}')"
                    raise _unexpected(data, place + offset, where)
            return place + len(literal)
    raise _unexpected(data, place, "looking for beginning of value")


def _after_string(data: bytes, place: int) -> int:
    found = _STRING.match(data, place)
    assert found is not None
    end = found.end()
    if data[end : end + 1] == b'"':
        return end + 1
    if data[end : end + 1] != b"\\":
        raise _unexpected(data, end, "in string literal")
    if data[end + 1 : end + 2] != b"u":
        raise _unexpected(data, end + 1, "in string escape code")
    digits = re.compile(rb"[0-9a-fA-F]*").match(data, end + 2)
    assert digits is not None
    raise _unexpected(data, digits.end(), "in \\u hexadecimal character escape")


def _after_number(data: bytes, place: int) -> int:
    found = _NUMBER.match(data, place)
    if found is None:
        raise _unexpected(data, place + 1, "in numeric literal")
    end = found.end()
    following, text = data[end : end + 1], found[0]
    if following == b"." and not set(text) & set(b".eE"):
        raise _unexpected(data, end + 1, "after decimal point in numeric literal")
    if following in (b"e", b"E") and not set(text) & set(b"eE"):
        end += 2 if data[end + 1 : end + 2] in (b"+", b"-") else 1
        raise _unexpected(data, end, "in exponent of numeric literal")
    return end
