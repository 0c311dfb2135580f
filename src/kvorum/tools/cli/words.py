"""Read commands line by line from the standard input, and split them into words as etcd does.

Bytes that are not UTF-8 are kept as surrogates, as in arguments of a command line.
"""

import re
import sys
from collections.abc import Callable
from io import BufferedReader
from typing import cast

SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""The characters that Go treats as spaces."""
READ_BYTES = 4096
"""The most bytes to read ahead; later bytes stay in the input for its next reader."""

_WORD = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'|[^'"\t\n\f\r ][^\t\n\f\r ]*[^'"\t\n\f\r ]?""")
_ESCAPES = {
    letter: meant.encode() for letter, meant in zip('abfnrtv\\"', '\a\b\f\n\r\t\v\\"', strict=True)
}
_CODED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")


class InputLines:
    """The lines of the standard input."""

    def __init__(self, before_read: Callable[[], None] = lambda: None) -> None:
        """Read lines, and call `before_read` before each read that may block."""
        self._source = cast(BufferedReader, sys.stdin.buffer)
        self._before_read = before_read
        self._ahead = b""

    def next(self) -> str | None:
        """Return the next line without its end; None if the input ends before the line does."""
        found = b""
        while b"\n" not in self._ahead:
            if len(self._ahead) == READ_BYTES:
                found, self._ahead = found + self._ahead, b""
            self._before_read()
            more = self._source.read1(READ_BYTES - len(self._ahead))
            if not more:
                return None
            self._ahead += more
        line, _, self._ahead = self._ahead.partition(b"\n")
        return (found + line).decode("utf-8", "surrogateescape")


def split_words(line: str) -> list[str]:
    """Split a line: `"…"` has Go's escapes, `'…'` has none; raises ValueError."""
    words = []
    for word in _WORD.findall(line):
        if word[0] == "'":
            words.append(word[1:-1])
        elif word[0] == '"':
            words.append(read_quoted(word, 0)[0])
        else:
            words.append(word)
    return words


def read_quoted(text: str, at: int) -> tuple[str, int]:
    """Return the quoted string at a position, and the position after it; raises ValueError."""
    if at >= len(text):
        raise ValueError("unexpected EOF")
    if text[at] == "`":
        end = text.find("`", at + 1)
        if end < 0:
            raise ValueError("unexpected EOF")
        return as_text(text[at + 1 : end]), end + 1
    if text[at] != '"':
        raise ValueError("expected quoted string")
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    if end >= len(text):
        raise ValueError("unexpected EOF")
    return _unescaped(as_text(text[at + 1 : end])), end + 1


def as_text(text: str) -> str:
    """Replace every byte that is not UTF-8, as Go does when it reads characters."""
    return "".join("\ufffd" if 0xDC80 <= ord(each) <= 0xDCFF else each for each in text)


def _unescaped(text: str) -> str:
    found = bytearray()
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter != "\\":
            found += letter.encode()
            continue
        plain = _ESCAPES.get(text[at])
        if plain is not None:
            found += plain
            at += 1
            continue
        coded = _CODED.match(text, at)
        if coded is None:
            raise ValueError("invalid syntax")
        found += _coded(*coded.groups())
        at = coded.end()
    return found.decode("utf-8", "surrogateescape")


def _coded(byte: str | None, short: str | None, long: str | None, octal: str | None) -> bytes:
    if byte is not None or octal is not None:
        number = int(byte, 16) if byte is not None else int(octal or "", 8)
        if number > 0xFF:
            raise ValueError("invalid syntax")
        return bytes((number,))
    number = int(short or long or "", 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError("invalid syntax")
    return chr(number).encode()
