"""Parse the text of a flag into a value, with Go's error texts."""

from __future__ import annotations

from kvorum.api.durations import duration
from kvorum.api.integers import FALSE, TRUE, integer
from kvorum.tools.cli.text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.tools.cli.commands import Value


def parse_value(kind: str, text: str) -> Value:
    """Read a value of a kind of flag; raises ValueError."""
    if kind == "bool":
        return boolean(text)
    if kind == "int":
        return signed(text)
    if kind == "uint":
        return unsigned(text)
    if kind == "uint32":
        return unsigned(text, 32)
    if kind == "duration":
        return duration(text)
    if kind == "strings":
        return strings(text)
    return text


def boolean(text: str) -> bool:
    """Read a boolean in any of Go's spellings."""
    if text not in TRUE + FALSE:
        raise ValueError(f"strconv.ParseBool: parsing {quoted(text)}: invalid syntax")
    return text in TRUE


def signed(text: str, bits: int = 64) -> int:
    """Read a number; base prefixes and underscores are allowed."""
    half = 1 << (bits - 1)
    return _number("ParseInt", text, -half, half - 1)


def unsigned(text: str, bits: int = 64) -> int:
    """Read a number that is not negative."""
    return _number("ParseUint", text, 0, (1 << bits) - 1)


def decimal(text: str) -> int:
    """Read a decimal number of 64 bits: no prefixes, no underscores."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"strconv.ParseInt: parsing {quoted(text)}: invalid syntax")
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"strconv.ParseInt: parsing {quoted(text)}: value out of range")
    return value


def hexadecimal(text: str, *, is_signed: bool = False) -> int:
    """Read a hexadecimal number of 64 bits without a prefix: an id of a member or a lease."""
    function = "ParseInt" if is_signed else "ParseUint"
    digits = text[1:] if is_signed and text[:1] in ("+", "-") else text
    if not digits or not all(letter in "0123456789abcdefABCDEF" for letter in digits):
        raise ValueError(f"strconv.{function}: parsing {quoted(text)}: invalid syntax")
    value = int(text, 16)
    low, high = (-(1 << 63), (1 << 63) - 1) if is_signed else (0, (1 << 64) - 1)
    if not low <= value <= high:
        raise ValueError(f"strconv.{function}: parsing {quoted(text)}: value out of range")
    return value


def strings(text: str) -> list[str]:
    """Split at commas; a part may be quoted, as in a line of CSV."""
    if not text:
        return []
    if '"' not in text:
        return text.split(",")
    import csv

    return next(iter(csv.reader([text])))


def _number(function: str, text: str, low: int, high: int) -> int:
    try:
        return integer(text, low, high)
    except ValueError as error:
        problem = str(error).replace("parse error", "invalid syntax")
        raise ValueError(f"strconv.{function}: parsing {quoted(text)}: {problem}") from None
