"""Encode answers as JSON like etcd's gateway: Go's protojson in its compact form.

The encoder does not parse messages into objects: it converts their canonical bytes, which have the
fields in order, directly to text. It keeps nested messages on its own stack. The native edge, if it
is built, writes the keys of long answers.
"""

from binascii import b2a_base64
from json.encoder import encode_basestring
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from kvorum.api.codec import read_varint
from kvorum.network.edge import native_key_values

_MESSAGE: Final = 0
_BYTES: Final = 1
_STRING: Final = 2
_UNSIGNED: Final = 3
_SIGNED: Final = 4
_ENUM: Final = 5
_BOOLEAN: Final = 6

_KINDS: Final = {
    FieldDescriptor.TYPE_MESSAGE: _MESSAGE,
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_STRING: _STRING,
    FieldDescriptor.TYPE_UINT32: _UNSIGNED,
    FieldDescriptor.TYPE_UINT64: _UNSIGNED,
    FieldDescriptor.TYPE_INT32: _SIGNED,
    FieldDescriptor.TYPE_INT64: _SIGNED,
    FieldDescriptor.TYPE_ENUM: _ENUM,
    FieldDescriptor.TYPE_BOOL: _BOOLEAN,
}
"""Kinds by field type, for all types that the API uses."""
_QUOTED: Final = (
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
)
_UINT64_LIMIT: Final = 1 << 64
_NARROW: Final = {
    FieldDescriptor.TYPE_ENUM: range(-(1 << 31), 1 << 31),
    FieldDescriptor.TYPE_INT32: range(-(1 << 31), 1 << 31),
    FieldDescriptor.TYPE_UINT32: range(1 << 32),
}
"""The values of types that do not use all of a varint; protobuf cuts others off."""
# Length of a varint of 2**63 or more: a negative number, or an unsigned one of the upper half.
_NEGATIVE_BYTES: Final = 10

_KEY_VALUE: Final = "mvccpb.KeyValue"
_write_key_values: Final = native_key_values()
_NATIVE_BYTES_MIN: Final = 1024
"""Shorter lists are encoded in Python: a native call costs as much as a few keys."""

# Escapes within the lines of a stream; etcd passes lines through another encoder, which adds them.
_ESCAPES: Final = str.maketrans(
    {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
)


# Text after the last value of a field, by `_Field.closing`.
_CLOSINGS: Final = (b"", b'"', b"]", b'"]')
_ENDS: Final = tuple(closing + b"}" for closing in _CLOSINGS)


class _Field:
    """Rules for encoding one field."""

    def __init__(self, descriptor: FieldDescriptor, index: int) -> None:
        self.kind = _KINDS[descriptor.type]
        self.index = index
        self.is_repeated: bool = descriptor.is_repeated
        self.is_packed: bool = descriptor.is_packed
        self.has_length = self.is_packed or self.kind <= _STRING
        # Other fields are omitted if they are zero or empty.
        self.is_always_written: bool = descriptor.has_presence or descriptor.is_repeated
        is_quoted = descriptor.type in _QUOTED
        self.closing = (1 if is_quoted else 0) + (2 if self.is_repeated else 0)
        opening = b'"' if is_quoted else b"{" if self.kind == _MESSAGE else b""
        list_opening = b"[" if self.is_repeated else b""
        # Text before a value: in the first field, in a later field, in a further list item.
        self.first = b'"%b":%b%b' % (descriptor.name.encode(), list_opening, opening)
        self.later = tuple(closing + b"," + self.first for closing in _CLOSINGS)
        self.item = (b'",' if is_quoted else b",") + opening
        self.names: dict[int, bytes] = {}
        if descriptor.enum_type is not None:
            numbers = descriptor.enum_type.values_by_number.items()
            self.names = {number: f'"{value.name}"'.encode() for number, value in numbers}
        self.values: range | None = _NARROW.get(descriptor.type)
        self.message: _Message | None = None
        message = descriptor.message_type
        self.is_key_values = (
            self.is_repeated and message is not None and message.full_name == _KEY_VALUE
        )


class _Message:
    """The fields of a message; a field's index is its tag."""

    def __init__(self) -> None:
        self.fields: list[_Field | None] = []


def _message(descriptor: Descriptor, known: dict[str, _Message]) -> _Message:
    """Return the fields of a message and of all messages in it."""
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    message = known[descriptor.full_name] = _Message()
    for index, field_descriptor in enumerate(descriptor.fields):
        field = _Field(field_descriptor, index)
        if field_descriptor.message_type is not None:
            field.message = _message(field_descriptor.message_type, known)
        tag = field_descriptor.number << 3 | (2 if field.has_length else 0)
        message.fields += [None] * (tag + 1 - len(message.fields))
        message.fields[tag] = field
    return message


class _NotCanonical(ValueError):  # noqa: N818 (it says what the bytes are)
    """The bytes of a message are not in the form that protobuf writes."""


class Encoder:
    """Encodes answers of one message type."""

    def __init__(self, message: Descriptor) -> None:
        self._message = _message(message, {})
        self._class = GetMessageClass(message)

    def encode(self, message: bytes) -> bytes:
        """Return a message as JSON; raise protobuf's DecodeError for invalid bytes."""
        return b"".join(self._pieces(message, False))

    def encode_line(self, message: bytes) -> bytes:
        """Return a message as a stream's line; raise protobuf's DecodeError for invalid bytes."""
        return b'{"result":%b}\n' % b"".join(self._pieces(message, True))

    def _pieces(self, message: bytes, is_line: bool) -> list[bytes]:
        try:
            return _pieces(self._message, message, is_line)
        except (ValueError, IndexError):
            # The bytes may be valid but not canonical: let protobuf rewrite them.
            parsed = self._class.FromString(message)
            parsed.DiscardUnknownFields()
            return _pieces(self._message, parsed.SerializeToString(deterministic=True), is_line)


def _pieces(message: _Message, data: bytes, is_line: bool) -> list[bytes]:
    """Return the JSON of canonical bytes; raise ValueError or IndexError for others."""
    pieces = [b"{"]
    # For each enclosing message: its fields, the last field written, and its end.
    stack: list[tuple[list[_Field | None], _Field, int]] = []
    fields = message.fields
    last: _Field | None = None
    end = len(data)
    offset = 0
    while True:
        if offset == end:
            pieces.append(b"}" if last is None else _ENDS[last.closing])
            if not stack:
                return pieces
            fields, last, end = stack.pop()
            continue
        begin = offset
        tag = data[offset]
        offset += 1
        if tag >= 0x80:
            tag, offset = read_varint(data, begin)
        field = fields[tag]
        if field is None:
            raise _NotCanonical
        start = offset
        number = data[offset]
        offset += 1
        if number >= 0x80:
            byte = data[offset]
            if byte < 0x80:
                number = number & 0x7F | byte << 7
                offset += 1
            else:
                number, offset = read_varint(data, start)
        if last is None:
            prefix = field.first
        elif field.index > last.index:
            prefix = field.later[last.closing]
        elif field is last and field.is_repeated and not field.is_packed:
            prefix = field.item
        else:
            raise _NotCanonical
        if (
            field.is_key_values
            and end - begin >= _NATIVE_BYTES_MIN
            and _write_key_values is not None
        ):
            text, after = _write_key_values(data, begin, end, tag)
            if after > begin:
                # The native text includes its braces.
                pieces += (prefix[:-1], text)
                last = field
                offset = after
                continue
        if not number and not field.is_always_written:
            continue
        length = offset - start
        if field.has_length:
            start = offset
            offset += number
        if offset > end:
            raise _NotCanonical
        pieces.append(prefix)
        if field.message is not None:
            stack.append((fields, field, end))
            fields = field.message.fields
            last = None
            end = offset
            offset = start
            continue
        last = field
        if not field.has_length:
            pieces.append(_number(field, number, length == _NEGATIVE_BYTES))
        elif field.kind == _BYTES:
            pieces.append(b2a_base64(data[start:offset], newline=False))
        elif field.kind == _STRING:
            pieces.append(_string(data[start:offset].decode(), is_line))
        else:
            pieces.append(_packed(field, data[start:offset]))


def _number(field: _Field, number: int, is_negative: bool) -> bytes:
    """Return the text of a number, a boolean or an enum."""
    kind = field.kind
    if kind == _BOOLEAN:
        return b"true" if number else b"false"
    if is_negative and kind != _UNSIGNED:
        number -= _UINT64_LIMIT
    if kind == _ENUM:
        name = field.names.get(number)
        if name is not None:
            return name
    if field.values is not None and number not in field.values:
        raise _NotCanonical
    return str(number).encode()


def _packed(field: _Field, content: bytes) -> bytes:
    """Return the texts of a packed field's numbers, separated by commas."""
    items: list[bytes] = []
    offset = 0
    while offset < len(content):
        start = offset
        number, offset = read_varint(content, start)
        items.append(_number(field, number, offset - start == _NEGATIVE_BYTES))
    return b",".join(items)


def _string(text: str, is_line: bool) -> bytes:
    """Return a text in quotes."""
    literal: str = encode_basestring(text)
    return (literal.translate(_ESCAPES) if is_line else literal).encode(errors="replace")


def error_body(code: int, message: str) -> bytes:
    """Return an error as the answer to a call."""
    return _error(code, message, False)


def error_line(code: int, message: str) -> bytes:
    """Return an error as the last line of a stream."""
    return b'{"error":%b}\n' % _error(code, message, True)


def _error(code: int, message: str, is_line: bool) -> bytes:
    parts: list[bytes] = []
    if code:
        parts.append(b'"code":%d' % code)
    if message:
        parts.append(b'"message":' + _string(message, is_line))
    return b"{%b}" % b",".join(parts)
