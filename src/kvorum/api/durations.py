"""Parse and format durations as Go does: in flags, in their options, in logs.

A duration is a number of nanoseconds. An invalid text raises ValueError with Go's words, which
operators know.
"""

import re

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
_QUOTED = [chr(byte) if 0x20 <= byte < 0x80 else f"\\x{byte:02x}" for byte in range(256)]
_QUOTED[ord('"')] = '\\"'
_QUOTED[ord("\\")] = "\\\\"


def duration(text: str) -> int:
    """Parse a Go duration such as `1h30m` or `-1.5s`; return nanoseconds."""
    quoted = _quoted(text)
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
            raise ValueError(f"time: unknown unit {_quoted(part['unit'])} in duration {quoted}")
        unit = _UNIT_NANOSECONDS[part["unit"]]
        total += int(part["whole"] or "0") * unit
        fraction = (part["fraction"] or "").strip(".")
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        rest = rest[part.end() :]
    if total > NANOSECONDS_MAX:
        raise ValueError(f"time: invalid duration {quoted}")
    return -total if text.startswith("-") else total


def _quoted(text: str) -> str:
    """Quote a text as Go's package `time` does: bytes that are not ASCII in hexadecimal."""
    data = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(map(_QUOTED.__getitem__, data)) + '"'


def duration_text(nanoseconds: int) -> str:
    """Format a duration as Go does: `1h30m0s`, `1.5s`, `100ms`, `250µs`, `0s`."""
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


def seconds_text(seconds: float) -> str:
    """Format a number of seconds as Go does."""
    return duration_text(int(seconds * SECOND))
