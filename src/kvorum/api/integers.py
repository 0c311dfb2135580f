"""Parse numbers and booleans as Go's flags do."""

import re

TRUE = ("1", "t", "T", "true", "TRUE", "True")
FALSE = ("0", "f", "F", "false", "FALSE", "False")

_INTEGER = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<hexadecimal>0[xX](?:_?[0-9a-fA-F])+)|(?P<binary>0[bB](?:_?[01])+)"
    r"|(?P<octal>0[oO]?(?:_?[0-7])+)|(?P<decimal>0|[1-9](?:_?[0-9])*))",
    re.ASCII,
)
_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}


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
