"""Decode JSON requests to protobuf bytes, by the rules of Go's protojson.

The decoder reads a text once, from left to right. It keeps nested messages on its own stack, so
that the allowed depth does not exhaust Python's.

etcd cuts the first value out of a body before it parses the fields, and so reports a syntax error
rather than a wrong field, wherever the two are. This module runs the scanner after any error to
give the same answer.
"""

import re
from typing import Final

from google.protobuf.descriptor import Descriptor

from kvorum.api.codec import field_head
from kvorum.server.http.assembly import (
    BOOLEAN,
    BYTES,
    INTEGER,
    STRING,
    Assembly,
    Field,
    MessageType,
)
from kvorum.server.http.json_values import DEPTH_MAX, Malformed, Scanner, skip_blanks
from kvorum.server.http.literals import (
    base64_bytes,
    first_lone_surrogate,
    integer,
    plain_base64,
    unescape,
)

__all__ = ["JsonDecoder", "Malformed"]

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

# Numbers of at most so many digits take the fast path.
_DIGITS_MAX: Final = 19

_TEXT: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
# A token of a valid text, for error texts.
_TOKEN: Final = re.compile(
    _TEXT.pattern + b"|true|false|null|" + _NUMBER.pattern + b"|.", re.DOTALL
)


class JsonDecoder:
    """Decodes requests of one message type."""

    def __init__(self, message: Descriptor) -> None:
        self._message = MessageType.of(message)

    def begin(self, body: bytes) -> "Reading":
        """Start decoding a body in slices; the caller advances the `Reading`."""
        return Reading(self._message, body)

    def decode(self, body: bytes) -> bytes:
        """Decode the first JSON value of a body to a message's canonical bytes.

        A body without a value is an empty message. Raises Malformed.
        """
        reading = Reading(self._message, body)
        while not reading.advance(len(body)):
            pass
        return reading.message


class Reading:
    """Decodes one text in slices that the caller chooses; the next byte is at `offset`.

    The private methods raise syntax errors as IndexError, or as Malformed without a text.
    """

    def __init__(self, message: MessageType, text: bytes) -> None:
        start = 0 if text[:1] == b"{" else skip_blanks(text, 0, len(text))
        self.message = b""
        """The message's bytes, once it is complete."""
        self.text = text
        self.start = start
        self.offset = start
        self.depth = 0
        self._type = message
        # The innermost message being read, the messages around it, and the next byte.
        self._frame: Assembly | None = None
        self._stack: list[Assembly] = []
        self._byte = 0
        # The field whose list of scalars is being read, and its items so far.
        self._list_field: Field | None = None
        self._scalars = bytearray()
        # The scanner of a value to skip, and the value's start.
        self._skipping: Scanner | None = None
        self._skip_start = 0
        # The error found, and the scanner that looks for a syntax error to report instead.
        self._problem = ""
        self._checking: Scanner | None = None

    def advance(self, bytes_max: int) -> bool:
        """Read about `bytes_max` bytes; return whether the message is complete.

        A string or a number is read in one step, however long it is. Raises Malformed.
        """
        if self._checking is None:
            try:
                return self._read(self.offset + bytes_max)
            except IndexError:
                self._problem = "unexpected EOF"
            except Malformed as error:
                self._problem = str(error)
            self._checking = Scanner()
            self.offset = self.start
        self._check_syntax(self._checking, self.offset + bytes_max)
        return False

    def _check_syntax(self, scanner: Scanner, limit: int) -> None:
        """Continue to look for a syntax error; raise it, or the error found before."""
        end = len(self.text)
        if scanner.scan(self.text, self.offset, min(limit, end)) < 0:
            if limit < end:
                self.offset = limit
                return
            if not scanner.may_end():
                raise Malformed("unexpected EOF")
        raise Malformed(self._problem)

    def _read(self, limit: int) -> bool:
        """Read a message and its nested messages up to a limit; return whether it is complete."""
        frame = self._frame
        stack = self._stack
        if frame is None:
            if self.start == len(self.text):
                return True
            frame = Assembly(self._type, None)
            byte = self._open_object()
        else:
            byte = self._byte
        while self.offset < limit:
            if self._list_field is not None:
                if not self._read_scalars(self._list_field, frame, limit):
                    break
                byte = self._after_member()
            elif self._skipping is not None:
                if not self._skip(self._skipping, limit):
                    break
                byte = self._after_member()
            elif byte == _QUOTE:
                field = self._name(frame)
                if field is None:
                    continue
                if field.message is not None:
                    if not field.is_repeated or self._open_list():
                        stack.append(frame)
                        frame = Assembly(field.message, field)
                        byte = self._open_object()
                        continue
                elif not field.is_repeated:
                    frame.put(field, self._scalar(field))
                elif self._open_list():
                    self._list_field = field
                    continue
                byte = self._after_member()
            else:
                self.offset += 1
                self.depth -= 1
                field = frame.field
                if field is None:
                    self._check_characters()
                    self.message = frame.content()
                    return True
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
        self._frame = frame
        self._byte = byte
        return False

    def _next(self) -> int:
        """Skip blanks, and return the byte after them."""
        text = self.text
        byte = text[self.offset]
        while byte in (_SPACE, _LINE_FEED, _RETURN, _TAB):
            self.offset += 1
            byte = text[self.offset]
        return byte

    def _open_object(self) -> int:
        """Enter an object; return its first byte, which starts a name or ends the object."""
        if self.text[self.offset] != _OPEN_OBJECT:
            raise self._unexpected()
        self._descend()
        byte = self._next()
        if byte not in (_QUOTE, _CLOSE_OBJECT):
            raise Malformed
        return byte

    def _after_member(self) -> int:
        """Move to the next name, or the object's end, and return its first byte."""
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
        """Enter an array; return False after passing an empty one."""
        if self.text[self.offset] != _OPEN_ARRAY:
            raise self._unexpected()
        self._descend()
        if self._next() != _CLOSE_ARRAY:
            return True
        self.offset += 1
        self.depth -= 1
        return False

    def _has_item(self) -> bool:
        """Move to the next item of an array; return False after passing the array's end."""
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
        """Read a name and move to its value; return None if the value is to be skipped."""
        text = self.text
        start = self.offset
        end = self._quote(start + 1)
        field = frame.fields.get(text[start + 1 : end])
        if field is None:
            # The name may contain escapes.
            field = frame.fields.get(self._string())
        else:
            self.offset = end + 1
        if self._next() != _COLON:
            raise Malformed
        self.offset += 1
        byte = self._next()
        if field is None:
            self._begin_skip()
            return None
        if frame.seen & field.bit:
            raise self._error(start, f"duplicate field {self._token(start)}")
        frame.seen |= field.bit
        if byte == _LOWER_N and text[self.offset : self.offset + 4] == b"null":
            self._begin_skip()
            return None
        if field.oneof:
            if frame.oneofs & field.oneof:
                problem = (
                    f"error parsing {self._token(start)}, oneof {field.oneof_name} is already set"
                )
                raise self._error(start, problem)
            frame.oneofs |= field.oneof
        return field

    def _begin_skip(self) -> None:
        self._skipping = Scanner(self.depth)
        self._skip_start = self.offset

    def _skip(self, scanner: Scanner, limit: int) -> bool:
        """Continue to skip a value; return whether it has ended."""
        text, length = self.text, len(self.text)
        end = scanner.scan(text, self.offset, min(limit, length))
        if end < 0:
            if limit >= length:
                raise IndexError
            self.offset = limit
            return False
        lone = first_lone_surrogate(text, self._skip_start, end)
        if lone >= 0:
            raise self._syntax_error(lone, "invalid escape code in string")
        self.offset = end
        self._skipping = None
        return True

    def _read_scalars(self, field: Field, frame: Assembly, limit: int) -> bool:
        """Continue to read an array of scalars; return whether it has ended."""
        scalars = self._scalars
        while True:
            scalars += self._scalar(field)
            if not self._has_item():
                break
            if self.offset >= limit:
                return False
        content = bytes(scalars)
        if field.is_packed and content:
            content = field_head(field.tag, len(content)) + content
        frame.put(field, content)
        self._scalars = bytearray()
        self._list_field = None
        return True

    def _scalar(self, field: Field) -> bytes:
        """Read a scalar, and return the encoded field or list item."""
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
                # Ignore unknown enum names, as protojson with DiscardUnknown does.
                return b""
        if number is None or not field.lowest <= number <= field.highest:
            raise self._invalid(field, start)
        return field_head(field.item_tag, number) if number or field.is_always_written else b""

    def _quote(self, offset: int) -> int:
        """Return the offset of the next quotation mark."""
        end = self.text.find(b'"', offset)
        if end < 0:
            raise IndexError
        return end

    def _bytes(self) -> bytes | None:
        """Read a base64 string and return its bytes; None if it is not base64."""
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
        """Read a number; return None if it is not integral, too long, or not a number."""
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
        """Raise Malformed if the decoded value is not UTF-8."""
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
        # `translate` is used because `count` takes a hundred times as long if most bytes are
        # line breaks.
        lines = len(before) - len(before.translate(None, b"\n")) + 1
        return f"line {lines}:{len(line) + 1}"
