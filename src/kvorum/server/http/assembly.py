"""Assemble the canonical bytes of a protobuf message from fields in any order.

Canonical bytes are those that protobuf itself writes. Large parts are copied only once, when the
whole message is joined, however deep they are nested, so that the work is proportional to the size.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from kvorum.api.codec import field_head

MESSAGE: Final = 0
BYTES: Final = 1
STRING: Final = 2
INTEGER: Final = 3
ENUM: Final = 4
BOOLEAN: Final = 5

_TYPES: Final = {
    FieldDescriptor.TYPE_MESSAGE: (MESSAGE, "message", 0, 0),
    FieldDescriptor.TYPE_BYTES: (BYTES, "bytes", 0, 0),
    FieldDescriptor.TYPE_STRING: (STRING, "string", 0, 0),
    FieldDescriptor.TYPE_INT32: (INTEGER, "int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (INTEGER, "int64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (INTEGER, "uint32", 0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (INTEGER, "uint64", 0, (1 << 64) - 1),
    FieldDescriptor.TYPE_ENUM: (ENUM, "enum", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_BOOL: (BOOLEAN, "bool", 0, 1),
}
"""Kind, name in errors, lowest and highest number by field type, for all types of the API."""

# Parts below this size are joined at once, larger ones together with the whole message.
_PART_BYTES_MAX: Final = 4096


class Field:
    """Rules for decoding one field."""

    def __init__(self, descriptor: FieldDescriptor, index: int) -> None:
        self.kind, self.type_name, self.lowest, self.highest = _TYPES[descriptor.type]
        self.json_name: str = descriptor.json_name
        self.index = index
        self.bit = 1 << index
        self.is_repeated: bool = descriptor.is_repeated
        self.is_packed: bool = descriptor.is_packed
        wire_type = 0 if self.kind >= INTEGER and not self.is_packed else 2
        self.tag = field_head(b"", descriptor.number << 3 | wire_type)
        self.item_tag = b"" if self.is_packed else self.tag
        # Other fields are omitted if they are zero or empty.
        self.is_always_written: bool = descriptor.has_presence or descriptor.is_repeated
        oneof = descriptor.containing_oneof
        self.oneof = 0 if oneof is None else 1 << oneof.index
        self.oneof_name = "" if oneof is None else oneof.full_name
        self.numbers: dict[bytes, int] = {}
        if descriptor.enum_type is not None:
            self.numbers = {
                value.name.encode(): value.number for value in descriptor.enum_type.values
            }
        self.message: MessageType | None = None


class MessageType:
    """The fields of a message, by protobuf name and by JSON name."""

    def __init__(self) -> None:
        self.fields: dict[bytes, Field] = {}
        self.empty: list[object] = []

    @classmethod
    def of(cls, descriptor: Descriptor) -> "MessageType":
        """Return the type of a message, with the types of all messages in it."""
        return _type(descriptor, {})


def _type(descriptor: Descriptor, known: dict[str, MessageType]) -> MessageType:
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    message = known[descriptor.full_name] = MessageType()
    message.empty = [b""] * len(descriptor.fields)
    in_order = sorted(descriptor.fields, key=lambda field: field.number)
    for index, field_descriptor in enumerate(in_order):
        field = Field(field_descriptor, index)
        if field_descriptor.message_type is not None:
            field.message = _type(field_descriptor.message_type, known)
        message.fields[field_descriptor.name.encode()] = field
        message.fields[field_descriptor.json_name.encode()] = field
    return message


class Assembly:
    """A message under assembly; `field` is the enclosing message's field for it, if any."""

    def __init__(self, message: MessageType, field: Field | None) -> None:
        self.fields = message.fields
        self.field = field
        # The bytes of each field, in the order of field numbers; lists of parts are joined later.
        self.parts: list[object] = message.empty.copy()
        self.length = 0
        # The fields read and the oneofs set, as bits.
        self.seen = 0
        self.oneofs = 0
        # Messages of the list being read, with their heads. Small ones are joined as they come,
        # because a million separate objects would take much memory.
        self.items: list[object] = []
        self.small_items = bytearray()

    def content(self) -> bytes:
        """Return the bytes of the message."""
        # In a message below this size no part is a list.
        is_small = self.length < _PART_BYTES_MAX
        return b"".join(self.parts) if is_small else _joined(self.parts)  # type: ignore[arg-type]

    def put(self, field: Field, part: bytes) -> None:
        """Set the bytes of a field."""
        self.parts[field.index] = part
        self.length += len(part)

    def take(self, inner: "Assembly", field: Field) -> None:
        """Add a complete inner message as a field's value or list item."""
        head = field_head(field.tag, inner.length)
        self.length += len(head) + inner.length
        is_small = inner.length < _PART_BYTES_MAX
        part: object = head + inner.content() if is_small else [head, inner.parts]
        if not field.is_repeated:
            self.parts[field.index] = part
        elif isinstance(part, bytes):
            self.small_items += part
        else:
            self._end_small_items()
            self.items.append(part)

    def end_list(self, field: Field) -> None:
        """Set a field to the messages of its list."""
        self._end_small_items()
        items = self.items
        is_small = self.length < _PART_BYTES_MAX
        self.parts[field.index] = b"".join(items) if is_small else items  # type: ignore[arg-type]
        self.items = []

    def _end_small_items(self) -> None:
        if self.small_items:
            self.items.append(bytes(self.small_items))
            self.small_items = bytearray()


def _joined(parts: list[object]) -> bytes:
    """Join parts, which may be nested lists of parts."""
    flat: list[bytes] = []
    stack: list[Iterator[object]] = [iter(parts)]
    while stack:
        for part in stack[-1]:
            if isinstance(part, bytes):
                flat.append(part)
            else:
                assert isinstance(part, list)
                stack.append(iter(part))
                break
        else:
            stack.pop()
    return b"".join(flat)
