"""Where values end, whatever the pieces that they come in; checked against a plain grammar."""

import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.server.http.json_values import DEPTH_MAX, Malformed, Scanner, Values
from tests.server.http.messages import edited, texts


class EndedError(Exception):
    """The text ended before its value."""


class BrokenError(Exception):
    """The text is no JSON."""


BLANKS = b" \t\r\n"
WORDS = [b"true", b"false", b"null"]
NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
# Continuations that make a number of the beginning of one.
NUMBER_ENDS = [b"", b"0", b"1"]
ESCAPES = b'"\\/bfnrt'


class Grammar:
    """JSON by recursive descent: each method reads what it is named for, or says what is wrong."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.offset = 0

    def peek(self) -> bytes:
        if self.offset == len(self.text):
            raise EndedError
        return self.text[self.offset : self.offset + 1]

    def take(self, expected: bytes) -> None:
        if self.peek() not in [bytes([byte]) for byte in expected]:
            raise BrokenError
        self.offset += 1

    def blanks(self) -> None:
        while self.peek() in [b" ", b"\t", b"\r", b"\n"]:
            self.offset += 1

    def value(self) -> None:
        self.blanks()
        first = self.peek()
        if first == b"{":
            self.sequence(b"}", self.member)
        elif first == b"[":
            self.sequence(b"]", self.value)
        elif first == b'"':
            self.string()
        elif first in (b"t", b"f", b"n"):
            word = next(word for word in WORDS if word.startswith(first))
            for letter in word:
                self.take(bytes([letter]))
        else:
            self.number()

    def sequence(self, closing: bytes, part: Callable[[], None]) -> None:
        self.offset += 1
        self.blanks()
        if self.peek() != closing:
            part()
            self.blanks()
            while self.peek() == b",":
                self.offset += 1
                part()
                self.blanks()
        self.take(closing)

    def member(self) -> None:
        self.blanks()
        if self.peek() != b'"':
            raise BrokenError
        self.string()
        self.blanks()
        self.take(b":")
        self.value()

    def string(self) -> None:
        self.offset += 1
        while self.peek() != b'"':
            if self.peek() < b" ":
                raise BrokenError
            is_escape = self.peek() == b"\\"
            self.offset += 1
            if is_escape and self.peek() == b"u":
                self.offset += 1
                for _ in range(4):
                    self.take(b"0123456789abcdefABCDEF")
            elif is_escape:
                self.take(ESCAPES)
        self.offset += 1

    def number(self) -> None:
        """Take as much as may be the beginning of a number; what follows is for others to judge."""
        start = self.offset
        while any(NUMBER.match(self.text[start : self.offset + 1] + end) for end in NUMBER_ENDS):
            self.offset += 1
            if self.offset == len(self.text):
                raise EndedError
        if not NUMBER.match(self.text[start : self.offset]):
            raise BrokenError


def expected(text: bytes) -> tuple[list[bytes], bool, int]:
    """Return the values of a text, whether it is broken after them, and how much is left over."""
    found: list[bytes] = []
    grammar = Grammar(text)
    start = 0
    while True:
        try:
            grammar.blanks()
            start = grammar.offset
            grammar.value()
        except EndedError:
            return found, False, len(text[start:].lstrip(BLANKS))
        except BrokenError:
            return found, True, 0
        found.append(text[start : grammar.offset])
        start = grammar.offset


documents = st.lists(texts(), max_size=3).map(lambda parts: " ".join(parts).encode())
any_documents = st.one_of(documents, documents.flatmap(edited))


def feed(values: Values, piece: bytes, bytes_max: int = 1 << 20) -> list[bytes]:
    """Feed a piece, and read all of it, so many bytes at a time."""
    values.feed(piece)
    found = []
    while values.unread_bytes:
        unread = values.unread_bytes
        value = values.take(bytes_max)
        assert unread - bytes_max <= values.unread_bytes or values.is_broken
        if value is not None:
            found.append(value)
    return found


def fed(pieces: list[bytes], bytes_max: int = 1 << 20) -> tuple[list[bytes], bool, int]:
    values = Values()
    found = [value for piece in pieces for value in feed(values, piece, bytes_max)]
    return found, values.is_broken, values.held_bytes


@given(any_documents)
def test_values_are_those_of_the_grammar(text: bytes) -> None:
    assert fed([text]) == expected(text)


@given(any_documents, st.data())
def test_pieces_make_no_difference(text: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]
    assert fed(pieces) == fed([text])
    assert fed([text[place : place + 1] for place in range(len(text))]) == fed([text])


@given(any_documents, st.integers(1, 20))
def test_slices_make_no_difference(text: bytes, bytes_max: int) -> None:
    assert fed([text], bytes_max) == fed([text])


@pytest.mark.parametrize("text", [b"{}", b"[]", b'""', b"true", b"null", b'{"a":[1,"]}"]}'])
def test_a_value_is_returned_with_its_last_byte(text: bytes) -> None:
    values = Values()
    assert feed(values, text[:-1]) == []
    assert values.held_bytes == len(text) - 1
    assert feed(values, text[-1:]) == [text]
    assert values.held_bytes == 0


def test_a_number_ends_with_the_byte_after_it() -> None:
    values = Values()
    assert feed(values, b"-12") == []
    assert feed(values, b"3.5e1") == []
    assert feed(values, b"\n") == [b"-123.5e1"]
    assert feed(values, b"0") == []
    assert feed(values, b"0") == [b"0"]
    assert values.held_bytes == 1


def test_blanks_are_not_held() -> None:
    values = Values()
    assert feed(values, b" \n" * 1000) == []
    assert values.held_bytes == 0


def test_after_what_is_broken_nothing_comes() -> None:
    values = Values()
    assert feed(values, b'{} {"a" 1} {}') == [b"{}"]
    assert values.is_broken
    assert values.held_bytes == 0
    assert feed(values, b"{}") == []


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_depth_has_a_limit(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deepest = opening * (DEPTH_MAX - 1) + opening[:1] + closing * DEPTH_MAX
    assert fed([deepest]) == ([deepest], False, 0)
    found, is_broken, _ = fed([opening * DEPTH_MAX + opening[:1]])
    assert (found, is_broken) == ([], True)
    with pytest.raises(Malformed, match="exceeded max depth"):
        Scanner(1).scan(deepest, 0, len(deepest))
