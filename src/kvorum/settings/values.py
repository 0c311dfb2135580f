"""How the text of a flag becomes a value: Go's syntax for numbers, booleans, durations and lists.

Every parser takes the text as given and returns a value or raises ValueError with the words
that etcd prints; operators and scripts know those.
"""

import json
import re
from collections.abc import Callable

from kvorum.net.urls import Url, url

TRUE = ("1", "t", "T", "true", "TRUE", "True")
FALSE = ("0", "f", "F", "false", "FALSE", "False")

_INTEGER = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<hexadecimal>0[xX](?:_?[0-9a-fA-F])+)|(?P<binary>0[bB](?:_?[01])+)"
    r"|(?P<octal>0[oO]?(?:_?[0-7])+)|(?P<decimal>0|[1-9](?:_?[0-9])*))",
    re.ASCII,
)
_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}
_UNIT_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
_DURATION_PART = re.compile(r"(?P<whole>[0-9]*)(?P<fraction>\.[0-9]*)?(?P<unit>[^0-9.]*)", re.ASCII)
NANOSECONDS_MAX = 2**63 - 1
SECOND = 1_000_000_000


def integer(text: str, low: int, high: int) -> int:
    """Parse an integer as Go's flags do: base prefixes and underscores are allowed."""
    match = _INTEGER.fullmatch(text)
    if match is None or (match["sign"] and low == 0):
        raise ValueError("parse error")
    base = next(_BASES[name] for name in _BASES if match[name] is not None)
    digits = (match["hexadecimal"] or match["binary"] or match["octal"] or match["decimal"]).lower()
    value = int(digits.lstrip("0").lstrip("xbo").replace("_", "") or "0", base)
    value = -value if match["sign"] == "-" else value
    if not low <= value <= high:
        raise ValueError("value out of range")
    return value


def boolean(text: str) -> bool:
    """Parse a boolean in any of Go's spellings."""
    if text not in TRUE + FALSE:
        raise ValueError("parse error")
    return text in TRUE


def duration(text: str) -> int:
    """Parse a Go duration such as `1h30m` or `-1.5s`; return nanoseconds."""
    quoted = json.dumps(text, ensure_ascii=False)
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(f"time: invalid duration {quoted}")
    total = 0
    while rest:
        part = _DURATION_PART.match(rest)
        if part is None or not (part["whole"] or (part["fraction"] or "").strip(".")):
            raise ValueError(f"time: invalid duration {quoted}")
        if not part["unit"]:
            raise ValueError(f"time: missing unit in duration {quoted}")
        if part["unit"] not in _UNIT_NANOSECONDS:
            raise ValueError(f"time: unknown unit {json.dumps(part['unit'])} in duration {quoted}")
        unit = _UNIT_NANOSECONDS[part["unit"]]
        total += int(part["whole"] or "0") * unit
        fraction = (part["fraction"] or "").strip(".")
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        rest = rest[part.end() :]
    if total > NANOSECONDS_MAX:
        raise ValueError(f"time: invalid duration {quoted}")
    return -total if text.startswith("-") else total


def duration_text(nanoseconds: int) -> str:
    """Write a duration as Go does: `1h30m0s`, `1.5s`, `100ms`, `250µs`, `0s`."""
    if nanoseconds == 0:
        return "0s"
    sign = "-" if nanoseconds < 0 else ""
    left = abs(nanoseconds)
    if left < SECOND:
        unit, size = next((u, s) for u, s in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if left >= s)
        return sign + _decimal(left, size) + unit
    minutes, left = divmod(left, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return sign + text + _decimal(left, SECOND) + "s"


def _decimal(value: int, size: int) -> str:
    whole, rest = divmod(value, size)
    if not rest:
        return str(whole)
    return f"{whole}." + str(rest).rjust(len(str(size)) - 1, "0").rstrip("0")


def urls(text: str) -> tuple[Url, ...]:
    """Parse URLs separated by commas: sorted, each once."""
    if not text:
        return ()
    return tuple(sorted(set(map(url, text.split(","))), key=lambda one: one.text))


def urls_or_star(text: str) -> tuple[str, ...]:
    """Parse origins: `*`, nothing, or URLs."""
    return (text,) if text in ("", "*") else tuple(str(one) for one in urls(text))


def strings(text: str) -> tuple[str, ...]:
    """Split at commas: sorted, each once."""
    return tuple(sorted(set(text.split(","))))


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return a parser that takes only these words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("invalid value")
        return text

    return parse
