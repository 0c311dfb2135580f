"""Find the end of JSON values, and detect invalid JSON, in text that arrives in pieces.

The scanner reads a text byte by byte, in any pieces, and never looks back. It accepts the same
texts as Go's encoding/json, with the same error texts: the grammar of RFC 8259, any bytes from 0x20
on in a string (it does not check UTF-8), and a limited depth.
"""

import re
from collections import deque
from typing import Final

DEPTH_MAX: Final = 10_000
"""Nesting depth of arrays and objects."""


class Malformed(ValueError):  # noqa: N818 (it says what the text is)
    """A request's text is invalid; the client receives the exception's message."""


# The scanner's states. In those below _BLANK_STATES, blanks may come first.
_VALUE: Final = 0
_FIRST_ITEM: Final = 1
_FIRST_NAME: Final = 2
_NAME: Final = 3
_COLON: Final = 4
_AFTER_MEMBER: Final = 5
_AFTER_ITEM: Final = 6
_BLANK_STATES: Final = 7
_STRING: Final = 7
_ESCAPE: Final = 8
_HEX: Final = 9  # four of them
_MINUS: Final = 13
_ZERO: Final = 14
_DIGITS: Final = 15
_POINT: Final = 16
_FRACTION: Final = 17
_EXPONENT: Final = 18
_EXPONENT_SIGN: Final = 19
_EXPONENT_DIGITS: Final = 20
_WORD: Final = 21  # one state for each letter of true, false and null except the first letters
_STATES: Final = 31

# Steps that do more than set the state.
_OPEN_OBJECT: Final = 64
_OPEN_ARRAY: Final = 65
_CLOSE: Final = 66
_STRING_BEGINS: Final = 67
_STRING_ENDS: Final = 68
_WORD_ENDS: Final = 69
_NUMBER_ENDED: Final = 70  # before this byte
_REFUSED: Final = 71

_CONTEXTS: Final = (
    "looking for beginning of value",
    "looking for beginning of value",
    "looking for beginning of object key string",
    "looking for beginning of object key string",
    "after object key",
    "after object key:value pair",
    "after array element",
    "in string literal",
    "in string escape code",
    *["in \\u hexadecimal character escape"] * 4,
    "in numeric literal",
    "",
    "",
    "after decimal point in numeric literal",
    "",
    "in exponent of numeric literal",
    "in exponent of numeric literal",
    "",
    *[
        f"in literal {word} (expecting '{letter}')"
        for word in ("true", "false", "null")
        for letter in word[1:]
    ],
)
"""The error text about an invalid byte, by state."""

_NUMBER_STATES: Final = (_ZERO, _DIGITS, _FRACTION, _EXPONENT_DIGITS)
"""States in which a number may end."""


def _steps() -> bytes:
    """Make the transition table: 256 steps for each state, one for each byte."""
    table = bytearray([_REFUSED]) * (_STATES << 8)

    def on(state: int, characters: bytes, step: int) -> None:
        for character in characters:
            table[state << 8 | character] = step

    digits, hexadecimals = b"0123456789", b"0123456789abcdefABCDEF"
    for state in range(_BLANK_STATES):
        on(state, b" \t\r\n", state)
    words = {b"t": _WORD, b"f": _WORD + 3, b"n": _WORD + 7}
    for state in (_VALUE, _FIRST_ITEM):
        on(state, b"{", _OPEN_OBJECT)
        on(state, b"[", _OPEN_ARRAY)
        on(state, b'"', _STRING_BEGINS)
        on(state, b"-", _MINUS)
        on(state, b"0", _ZERO)
        on(state, digits[1:], _DIGITS)
        for letter, first in words.items():
            on(state, letter, first)
    on(_FIRST_ITEM, b"]", _CLOSE)
    on(_FIRST_NAME, b'"', _STRING_BEGINS)
    on(_FIRST_NAME, b"}", _CLOSE)
    on(_NAME, b'"', _STRING_BEGINS)
    on(_COLON, b":", _VALUE)
    on(_AFTER_MEMBER, b",", _NAME)
    on(_AFTER_MEMBER, b"}", _CLOSE)
    on(_AFTER_ITEM, b",", _VALUE)
    on(_AFTER_ITEM, b"]", _CLOSE)
    on(_STRING, bytes(range(0x20, 0x100)), _STRING)
    on(_STRING, b"\\", _ESCAPE)
    on(_STRING, b'"', _STRING_ENDS)
    on(_ESCAPE, b'"\\/bfnrt', _STRING)
    on(_ESCAPE, b"u", _HEX)
    for place in range(4):
        on(_HEX + place, hexadecimals, _HEX + place + 1 if place < 3 else _STRING)
    for state in _NUMBER_STATES:
        on(state, bytes(range(0x100)), _NUMBER_ENDED)
    on(_MINUS, b"0", _ZERO)
    on(_MINUS, digits[1:], _DIGITS)
    on(_DIGITS, digits, _DIGITS)
    for state in (_ZERO, _DIGITS):
        on(state, b".", _POINT)
    on(_POINT, digits, _FRACTION)
    on(_FRACTION, digits, _FRACTION)
    for state in (_ZERO, _DIGITS, _FRACTION):
        on(state, b"eE", _EXPONENT)
    on(_EXPONENT, b"+-", _EXPONENT_SIGN)
    for state in (_EXPONENT, _EXPONENT_SIGN, _EXPONENT_DIGITS):
        on(state, digits, _EXPONENT_DIGITS)
    for rest, first in ((b"rue", _WORD), (b"alse", _WORD + 3), (b"ull", _WORD + 7)):
        for place in range(len(rest)):
            is_last = place == len(rest) - 1
            on(first + place, rest[place : place + 1], _WORD_ENDS if is_last else first + place + 1)
    return bytes(table)


_STEPS: Final = _steps()
# Most bytes of a large value are inside strings; match those at once.
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*+')
_BLANK: Final = re.compile(rb"[ \t\r\n]*+")
_JOINED_BYTES: Final = 1024


def skip_blanks(text: bytes, offset: int, end: int) -> int:
    """Return the offset of the first byte that is not a blank, or the end."""
    match = _BLANK.match(text, offset, end)
    assert match is not None
    return match.end()


class Scanner:
    """Scans one value, which is nested `depth` levels deep."""

    def __init__(self, depth: int = 0) -> None:
        self._depth_max = DEPTH_MAX - depth
        self._state = _VALUE
        # For each open array or object: whether it is an object.
        self._objects: list[bool] = []
        self._is_name = False

    def scan(self, text: bytes, offset: int, limit: int) -> int:
        """Scan from an offset to a limit; return the end of the value, or -1 if it goes on.

        A number ends only at the byte after it. Raises Malformed for invalid JSON.
        """
        state = self._state
        while offset < limit:
            step = _STEPS[state << 8 | text[offset]]
            if step == state == _STRING:
                match = _PLAIN.match(text, offset, limit)
                assert match is not None
                offset = match.end()
                continue
            if step < _STATES:
                state = step
            elif step == _STRING_BEGINS:
                self._is_name = state in (_NAME, _FIRST_NAME)
                state = _STRING
            elif step == _STRING_ENDS and self._is_name:
                state = _COLON
            elif step in (_OPEN_OBJECT, _OPEN_ARRAY):
                if len(self._objects) == self._depth_max:
                    raise _refused(text[offset], "exceeded max depth")
                self._objects.append(step == _OPEN_OBJECT)
                state = _FIRST_NAME if step == _OPEN_OBJECT else _FIRST_ITEM
            elif step == _REFUSED:
                raise _refused(text[offset], _CONTEXTS[state])
            else:
                if step == _CLOSE:
                    self._objects.pop()
                # The byte that ended a number is not part of the number.
                if step != _NUMBER_ENDED:
                    offset += 1
                if not self._objects:
                    self._state = _VALUE
                    return offset
                state = _AFTER_MEMBER if self._objects[-1] else _AFTER_ITEM
                continue
            offset += 1
        self._state = state
        return -1

    def may_end(self) -> bool:
        """Return whether the value would be complete if the text ended here: only for a number."""
        return not self._objects and self._state in _NUMBER_STATES


def _refused(byte: int, context: str) -> Malformed:
    return Malformed(f"invalid character {_quoted(byte)} {context}")


_SPOKEN: Final = {
    0x07: "\\a",
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0B: "\\v",
    0x0C: "\\f",
    0x0D: "\\r",
    0x27: "\\'",
    0x5C: "\\\\",
    0xAD: "\\u00ad",
}


def _quoted(byte: int) -> str:
    """Return a byte as a character literal of Go."""
    if byte in _SPOKEN:
        return f"'{_SPOKEN[byte]}'"
    if byte < 0x20 or byte == 0x7F:
        return f"'\\x{byte:02x}'"
    if 0x80 <= byte <= 0xA0:
        return f"'\\u{byte:04x}'"
    return f"'{chr(byte)}'"


class Values:
    """Divides a text that arrives in pieces into consecutive JSON values.

    Blanks may separate values. The caller limits the bytes read at a time; the work is proportional
    to the bytes, however they are divided into pieces.
    """

    def __init__(self) -> None:
        self.is_broken = False
        """Whether the text is invalid JSON; no further values follow."""
        self.held_bytes = 0
        """Bytes read of an incomplete value."""
        self.unread_bytes = 0
        """Bytes fed but not read."""
        self._scanner = Scanner()
        self._held = bytearray()
        # The first piece is read up to `_offset`.
        self._pieces: deque[bytes] = deque()
        self._offset = 0

    def feed(self, piece: bytes) -> None:
        """Add to the text."""
        if not piece or self.is_broken:
            return
        self.unread_bytes += len(piece)
        if self._pieces and len(self._pieces[-1]) < _JOINED_BYTES:
            # Join small pieces: a bytes object of one byte takes about fifty bytes of memory.
            self._pieces[-1] += piece
        else:
            self._pieces.append(piece)

    def take(self, bytes_max: int) -> bytes | None:
        """Read at most `bytes_max` bytes; return the next value if it ends within them.

        Values come without blanks. A number ends only at the byte after it, any other value at its
        own last byte.
        """
        while bytes_max > 0 and self._pieces:
            piece = self._pieces[0]
            offset = self._offset
            limit = min(len(piece), offset + bytes_max)
            start = offset if self._held else skip_blanks(piece, offset, limit)
            try:
                end = self._scanner.scan(piece, start, limit)
            except Malformed:
                self._break()
                return None
            read = limit if end < 0 else end
            self._offset = read
            self.unread_bytes -= read - offset
            bytes_max -= read - offset
            if read == len(piece):
                self._pieces.popleft()
                self._offset = 0
            part = piece[start:read]
            if end < 0:
                self._held += part
                self.held_bytes += len(part)
            elif self._held:
                value = bytes(self._held) + part
                self._held.clear()
                self.held_bytes = 0
                return value
            else:
                return part
        return None

    def _break(self) -> None:
        self.is_broken = True
        self._pieces.clear()
        self._held.clear()
        self.held_bytes = self.unread_bytes = 0
