"""Requests in JSON become the bytes of their messages, by the rules of protobuf's JSON in Go.

A text is read once, from left to right. What nests is kept on a stack of ours, so the depth that is
allowed needs no stack of the machine.

etcd cuts the first value out of a body before it looks at the fields: an error of syntax is told
rather than one of meaning, wherever they are. Here the scanner is asked when something is wrong.
"""

import re
from typing import Final

from google.protobuf.descriptor import Descriptor

from kvorum.api.codec import field_head
from kvorum.gateway.assembly import BOOLEAN, BYTES, INTEGER, STRING, Assembly, Field, MessageType
from kvorum.gateway.json_values import DEPTH_MAX, Malformed, Scanner, skip_blanks
from kvorum.gateway.literals import (
    base64_bytes,
    first_lone_surrogate,
    integer,
    plain_base64,
    unescape,
)

__all__ = ["Decoder", "Malformed"]

_TAB: Final = 0x09
_LINE_FEED: Final = 0x0A
_RETURN: Final = 0x0D
_SPACE: Final = 0x20
_QUOTE: Final = 0x22
_COMMA: Final = 0x2C
_POINT: Final = 0x2E
_ZERO: Final = 0x30
_NINE: Final = 0x39
_COLON: Final = 0x3A
_UPPER_E: Final = 0x45
_OPEN_ARRAY: Final = 0x5B
_CLOSE_ARRAY: Final = 0x5D
_LOWER_E: Final = 0x65
_LOWER_N: Final = 0x6E
_OPEN_OBJECT: Final = 0x7B
_CLOSE_OBJECT: Final = 0x7D

# A number of as many digits is read without further thought.
_DIGITS_MAX: Final = 19

_TEXT: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
# A token of a valid text, as errors show it.
_TOKEN: Final = re.compile(
    _TEXT.pattern + b"|true|false|null|" + _NUMBER.pattern + b"|.", re.DOTALL
)


class Decoder:
    """Decodes the requests of one type."""

    def __init__(self, message: Descriptor) -> None:
        self._message = MessageType.of(message)

    def decode(self, body: bytes) -> bytes:
        """Return the message that the first JSON value of a body stands for, as canonical bytes.

        A body without a value is an empty message. Raises Malformed.
        """
        start = 0 if body[:1] == b"{" else skip_blanks(body, 0)
        if start == len(body):
            return b""
        reading = _Reading(body, start)
        try:
            return reading.message(self._message)
        except IndexError:
            problem = "unexpected EOF"
        except Malformed as error:
            problem = str(error)
        _check_syntax(body, start)
        raise Malformed(problem)


def _check_syntax(body: bytes, start: int) -> None:
    """Raise Malformed if what begins here is not a JSON value."""
    scanner = Scanner()
    if scanner.scan(body, start) < 0 and not scanner.may_end():
        raise Malformed("unexpected EOF")


class _Reading:
    """One reading of a text; the next byte is read at `offset`.

    Errors of syntax are raised as IndexError, or as Malformed without words.
    """

    def __init__(self, text: bytes, start: int) -> None:
        self.text = text
        self.start = start
        self.offset = start
        self.depth = 0

    def message(self, message: MessageType) -> bytes:
        """Read an object as a message, and everything in it."""
        frame = Assembly(message, None)
        stack: list[Assembly] = []
        byte = self._open_object()
        while True:
            if byte == _QUOTE:
                field = self._name(frame)
                if field is not None:
                    if field.message is None:
                        is_list = field.is_repeated
                        frame.put(field, self._list(field) if is_list else self._scalar(field))
                    elif not field.is_repeated or self._open_list():
                        stack.append(frame)
                        frame = Assembly(field.message, field)
                        byte = self._open_object()
                        continue
                byte = self._after_member()
                continue
            self.offset += 1
            self.depth -= 1
            field = frame.field
            if field is None:
                self._check_characters()
                return frame.content()
            ended, frame = frame, stack.pop()
            frame.take(ended, field)
            if field.is_repeated:
                if self._has_item():
                    stack.append(frame)
                    assert field.message is not None
                    frame = Assembly(field.message, field)
                    byte = self._open_object()
                    continue
                frame.end_list(field)
            byte = self._after_member()

    def _next(self) -> int:
        """Skip blanks, and return the byte after them."""
        text = self.text
        byte = text[self.offset]
        while byte in (_SPACE, _LINE_FEED, _RETURN, _TAB):
            self.offset += 1
            byte = text[self.offset]
        return byte

    def _open_object(self) -> int:
        """Go into an object; return the first byte in it: of a name, or its end."""
        if self.text[self.offset] != _OPEN_OBJECT:
            raise self._unexpected()
        self._descend()
        byte = self._next()
        if byte not in (_QUOTE, _CLOSE_OBJECT):
            raise Malformed
        return byte

    def _after_member(self) -> int:
        """Return the first byte of the next name, or the end of the object."""
        byte = self._next()
        if byte == _COMMA:
            self.offset += 1
            byte = self._next()
            if byte != _QUOTE:
                raise Malformed
        elif byte != _CLOSE_OBJECT:
            raise Malformed
        return byte

    def _open_list(self) -> bool:
        """Go into an array, and return True, or past one that is empty."""
        if self.text[self.offset] != _OPEN_ARRAY:
            raise self._unexpected()
        self._descend()
        if self._next() != _CLOSE_ARRAY:
            return True
        self.offset += 1
        self.depth -= 1
        return False

    def _has_item(self) -> bool:
        """Go to the next item of an array, and return True, or past its end."""
        byte = self._next()
        self.offset += 1
        if byte == _COMMA:
            self._next()
            return True
        if byte != _CLOSE_ARRAY:
            raise Malformed
        self.depth -= 1
        return False

    def _descend(self) -> None:
        self.offset += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Malformed

    def _name(self, frame: Assembly) -> Field | None:
        """Read a name, and go to its value; past it, and return None, if nothing is to be set."""
        text = self.text
        start = self.offset
        end = self._quote(start + 1)
        field = frame.fields.get(text[start + 1 : end])
        if field is None:
            # It may be known by another spelling.
            field = frame.fields.get(self._string())
        else:
            self.offset = end + 1
        if self._next() != _COLON:
            raise Malformed
        self.offset += 1
        byte = self._next()
        if field is None:
            self._skip()
            return None
        if frame.seen & field.bit:
            raise self._error(start, f"duplicate field {self._token(start)}")
        frame.seen |= field.bit
        if byte == _LOWER_N and text[self.offset : self.offset + 4] == b"null":
            self.offset += 4
            return None
        if field.oneof:
            if frame.oneofs & field.oneof:
                problem = (
                    f"error parsing {self._token(start)}, oneof {field.oneof_name} is already set"
                )
                raise self._error(start, problem)
            frame.oneofs |= field.oneof
        return field

    def _skip(self) -> None:
        """Go past a value of which nothing is wanted."""
        end = Scanner(self.depth).scan(self.text, self.offset)
        if end < 0:
            raise IndexError
        lone = first_lone_surrogate(self.text[self.offset : end])
        if lone >= 0:
            raise self._syntax_error(self.offset + lone, "invalid escape code in string")
        self.offset = end

    def _list(self, field: Field) -> bytes:
        """Read an array of values that are no messages, and encode the field."""
        items: list[bytes] = []
        if self._open_list():
            items.append(self._scalar(field))
            while self._has_item():
                items.append(self._scalar(field))
        content = b"".join(items)
        return (
            field_head(field.tag, len(content)) + content
            if field.is_packed and content
            else content
        )

    def _scalar(self, field: Field) -> bytes:
        """Read a value that is no message, and encode the field, or an item of its list."""
        start = self.offset
        kind = field.kind
        if kind in (BYTES, STRING):
            content: bytes | None = None
            if self.text[start] == _QUOTE:
                content = self._bytes() if kind == BYTES else self._string()
            if content is None:
                raise self._invalid(field, start)
            if not content and not field.is_always_written:
                return b""
            return field_head(field.item_tag, len(content)) + content
        if kind == INTEGER:
            number = self._integer(True)
        elif kind == BOOLEAN:
            number = self._boolean()
        elif self.text[start] != _QUOTE:
            number = self._integer(False)
        else:
            number = field.numbers.get(self._string())
            if number is None:
                # An unknown name is as good as none.
                return b""
        if number is None or not field.lowest <= number <= field.highest:
            raise self._invalid(field, start)
        return field_head(field.item_tag, number) if number or field.is_always_written else b""

    def _quote(self, offset: int) -> int:
        """Return where the next quotation mark is."""
        end = self.text.find(b'"', offset)
        if end < 0:
            raise IndexError
        return end

    def _bytes(self) -> bytes | None:
        """Read a string of base64, and return what it stands for; None if it is none."""
        start = self.offset + 1
        end = self._quote(start)
        content = plain_base64(self.text[start:end])
        if content is None:
            return base64_bytes(self._string())
        self.offset = end + 1
        return content

    def _string(self) -> bytes:
        """Read a string, and return its content."""
        text = self.text
        start = self.offset
        end = self._quote(start + 1)
        content = text[start + 1 : end]
        if b"\\" not in content:
            if _CONTROL.search(content) is not None:
                raise Malformed
            self.offset = end + 1
            return content
        match = _TEXT.match(text, start)
        if match is None:
            raise Malformed
        self.offset = match.end()
        unescaped = unescape(match.group())
        if unescaped is None:
            raise self._syntax_error(start, "invalid string")
        return unescaped

    def _boolean(self) -> int | None:
        text = self.text
        offset = self.offset
        if text[offset : offset + 4] == b"true":
            self.offset += 4
            return 1
        if text[offset : offset + 5] == b"false":
            self.offset += 5
            return 0
        return None

    def _integer(self, may_be_quoted: bool) -> int | None:
        """Read a number; None if it is not integral, of too many digits, or none at all."""
        text = self.text
        offset = self.offset
        byte = text[offset]
        is_quoted = may_be_quoted and byte == _QUOTE
        if is_quoted:
            offset += 1
            byte = text[offset]
        first = offset
        number = 0
        while _ZERO <= byte <= _NINE and offset - first <= _DIGITS_MAX:
            number = number * 10 + byte - _ZERO
            offset += 1
            byte = text[offset]
        digits = offset - first
        if digits == 1 or (1 < digits <= _DIGITS_MAX and text[first] != _ZERO):
            if is_quoted:
                if byte == _QUOTE:
                    self.offset = offset + 1
                    return number
            elif byte not in (_POINT, _LOWER_E, _UPPER_E):
                self.offset = offset
                return number
        if is_quoted:
            return integer(self._string())
        match = _NUMBER.match(text, self.offset)
        if match is None:
            return None
        self.offset = match.end()
        return integer(match.group())

    def _check_characters(self) -> None:
        """Raise Malformed if the value that was read is not UTF-8."""
        if not self.text.isascii():
            try:
                self.text[self.start : self.offset].decode()
            except UnicodeDecodeError as error:
                problem = self._syntax_error(self.start + error.start, "invalid UTF-8 in string")
                raise problem from None

    def _token(self, offset: int) -> str:
        match = _TOKEN.match(self.text, offset)
        return "" if match is None else match.group().decode(errors="replace")

    def _invalid(self, field: Field, offset: int) -> Malformed:
        token = self._token(offset)
        problem = f"invalid value for {field.type_name} field {field.json_name}: {token}"
        return self._error(offset, problem)

    def _unexpected(self) -> Malformed:
        return self._syntax_error(self.offset, f"unexpected token {self._token(self.offset)}")

    def _error(self, offset: int, problem: str) -> Malformed:
        return Malformed(f"proto: ({self._place(offset)}): {problem}")

    def _syntax_error(self, offset: int, problem: str) -> Malformed:
        return Malformed(f"proto: syntax error ({self._place(offset)}): {problem}")

    def _place(self, offset: int) -> str:
        before = self.text[self.start : offset]
        line = before[before.rfind(b"\n") + 1 :].decode(errors="replace")
        return f"line {before.count(10) + 1}:{len(line) + 1}"
