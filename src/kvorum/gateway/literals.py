"""What a string or a number of JSON stands for in a field: text, bytes, an integer.

Each rule is Go's: of protojson, and of the base64 package that it uses.
"""

import json
import re
from binascii import a2b_base64
from typing import Final

# What may precede a surrogate escape that is not half of a pair.
_WHOLE: Final = re.compile(
    rb"(?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F]))*+", re.DOTALL
)
_URL_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")
# A number in quotes may be followed by whatever could not go on with it; even `1e,` is one.
_NUMBER: Final = re.compile(
    rb"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?+(?:[eE](?=.)((?:[+-](?=[0-9]))?+[0-9]*+))?+(?![-+._a-zA-Z0-9])",
    re.DOTALL,
)
_DIGITS_MAX: Final = 20
_EXPONENT_MAX: Final = (1 << 31) - 1
# What Go's TrimSpace takes off; Python's strip takes more.
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def unescape(literal: bytes) -> bytes | None:
    """Return what a string in its quotes says, in UTF-8; None if that is no text."""
    try:
        text: str = json.loads(literal.decode())
        return text.encode()
    except ValueError:
        return None


def first_lone_surrogate(text: bytes, start: int, end: int) -> int:
    """Return the offset of the first escape that is half a character, -1 if there is none.

    What lies between the offsets must be JSON.
    """
    if text.find(b"\\u", start, end) < 0:
        return -1
    match = _WHOLE.match(text, start, end)
    assert match is not None
    return -1 if match.end() == end else match.end()


def plain_base64(text: bytes) -> bytes | None:
    """Decode the standard alphabet, padded, with nothing else; None if it is not that."""
    try:
        content = a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    # Python lets padding follow where none is needed.
    return content if len(text) == (len(content) + 2) // 3 * 4 else None


def base64_bytes(text: bytes) -> bytes | None:
    """Decode the standard alphabet, or the URL's if one of its own characters is there.

    Padding is needed if the length is a multiple of four, and not allowed otherwise. Line breaks
    are skipped, but count.
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
    """Return the number that a text begins with, if it is integral, of 20 digits at most.

    After the number may come what cannot be part of one, except for space at the text's end.
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
    """Return a number of 32 bits; 0 for no text."""
    if not text:
        return 0
    digits = text.lstrip(b"+-").lstrip(b"0")
    if len(digits) > len(str(_EXPONENT_MAX)):
        return None
    value = int(digits or b"0")
    if value > _EXPONENT_MAX:
        return None
    return -value if text[:1] == b"-" else value
