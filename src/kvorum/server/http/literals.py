"""Convert JSON strings and numbers to field values: text, bytes, integers.

All rules are those of Go's protojson and of the base64 package that it uses.
"""

import json
import re
from binascii import a2b_base64
from typing import Final

# Matches text up to the first surrogate escape that is not half of a pair.
_WHOLE: Final = re.compile(
    rb"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]))*+", re.DOTALL
)
_URL_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")
# A number in quotes may precede any text that could not continue it; even `1e,` is a number.
_NUMBER: Final = re.compile(
    rb"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?+(?:[eE](?=.)((?:[+-](?=[0-9]))?+[0-9]*+))?+(?![-+._a-zA-Z0-9])",
    re.DOTALL,
)
_DIGITS_MAX: Final = 20
_EXPONENT_MAX: Final = (1 << 31) - 1
# The characters that Go's TrimSpace removes; Python's strip removes more.
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def unescape(literal: bytes) -> bytes | None:
    """Decode a JSON string with its quotes to UTF-8; None if it is not valid text."""
    try:
        text: str = json.loads(literal.decode())
        return text.encode()
    except ValueError:
        return None


def first_lone_surrogate(text: bytes, start: int, end: int) -> int:
    """Return the offset of the first escape of a lone surrogate; -1 if there is none.

    The text between the offsets must be valid JSON.
    """
    if text.find(b"\\u", start, end) < 0:
        return -1
    match = _WHOLE.match(text, start, end)
    assert match is not None
    return -1 if match.end() == end else match.end()


def plain_base64(text: bytes) -> bytes | None:
    """Decode padded base64 in the standard alphabet; None for any other text."""
    try:
        content = a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    # Python accepts padding even where none is needed.
    return content if len(text) == (len(content) + 2) // 3 * 4 else None


def base64_bytes(text: bytes) -> bytes | None:
    """Decode base64 in the standard alphabet, or the URL alphabet if `-` or `_` occurs.

    Padding is required if the length is a multiple of four, and forbidden otherwise. Line breaks
    are skipped but count towards the length.
    """
    length = len(text)
    text = text.replace(b"\n", b"").replace(b"\r", b"")
    if b"-" in text or b"_" in text:
        if b"+" in text or b"/" in text:
            return None
        text = text.translate(_URL_ALPHABET)
    if length & 3:
        if b"=" in text:
            return None
        text += b"=" * (-len(text) & 3)
    return plain_base64(text)


def integer(text: bytes) -> int | None:
    """Return the number at the start of a text, if it is integral with at most 20 digits.

    Text that cannot continue a number may follow, but the text must not end with white space.
    """
    match = _NUMBER.match(text)
    if match is None:
        return None
    if match.end() != len(text):
        content = text.decode(errors="replace")
        if content.rstrip(_SPACES) != content:
            return None
    sign, whole, fraction, exponent = match.groups(b"")
    digits = whole.lstrip(b"0")
    fraction = fraction.rstrip(b"0")
    if not digits and not fraction:
        return 0
    shift = _exponent(exponent)
    if shift is None:
        return None
    if shift >= 0:
        if len(fraction) > shift or len(digits) + shift > _DIGITS_MAX:
            return None
        digits += fraction.ljust(shift, b"0")
    else:
        point = len(digits) + shift
        if fraction or not 0 < point <= _DIGITS_MAX or digits[point:].strip(b"0"):
            return None
        digits = digits[:point]
    return -int(digits) if sign else int(digits)


def _exponent(text: bytes) -> int | None:
    """Parse an exponent; 0 for an empty text, None if it exceeds 32 bits."""
    if not text:
        return 0
    digits = text.lstrip(b"+-").lstrip(b"0")
    if len(digits) > len(str(_EXPONENT_MAX)):
        return None
    value = int(digits or b"0")
    if value > _EXPONENT_MAX:
        return None
    return -value if text[:1] == b"-" else value
