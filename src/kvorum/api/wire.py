"""Parse clients' messages as strictly as etcd does.

Protobuf's parser for Python drops the bits of a number beyond 64, while etcd's refuses the message.
A number with such bits has ten bytes in a row that are easy to find, and rare elsewhere. Only a
message with such bytes is walked field by field.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kvorum.api.codec import read_varint

MALFORMED: Final = "proto: cannot parse invalid wire-format data"
NOT_UTF8: Final = "string field contains invalid UTF-8"
FIELDS_WALKED_MAX = 10_000
"""The number of fields to walk; fields after them are left to protobuf."""

_Message = TypeVar("_Message", bound=Message)
_SUSPECT: Final = re.compile(rb"[\x80-\xff]{9}[^\x00\x01]")
_NUMBERS: Final = frozenset(
    (
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_BOOL,
        FieldDescriptor.CPPTYPE_ENUM,
    )
)
_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)


def parse_message(kind: type[_Message], data: bytes) -> _Message:
    """Parse a message; raise DecodeError, with etcd's text, if etcd would refuse it."""
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise DecodeError(NOT_UTF8 if "UTF-8" in str(error) else MALFORMED) from error
    if not data.isascii() and _SUSPECT.search(data) is not None:
        try:
            _walk(kind.DESCRIPTOR, data, 0, len(data), FIELDS_WALKED_MAX)
        except ValueError as error:
            raise DecodeError(MALFORMED) from error
    return message


def field_runs(data: bytes, run_bytes: int) -> Iterator[bytes]:
    """Divide the bytes of a message into runs of whole fields, each of about this size.

    Each run is a valid message, and all of them merged are the original one. A malformed part, or a
    group, cannot be divided and ends up in the last run.
    """
    start = at = 0
    try:
        while at < len(data):
            if at - start >= run_bytes:
                yield data[start:at]
                start = at
            tag, at = read_varint(data, at)
            wire_type = tag & 7
            if wire_type == _LENGTH:
                length, at = read_varint(data, at)
                at += length
            elif wire_type == _VARINT:
                _, at = read_varint(data, at)
            elif wire_type == _FIXED64:
                at += 8
            elif wire_type == _FIXED32:
                at += 4
            else:
                break
    except (IndexError, ValueError):
        pass
    if start < len(data):
        yield data[start:]


def _walk(descriptor: Any, data: bytes, at: int, end: int, fields_left: int) -> int:
    """Check the numbers of a message that protobuf accepted; return the fields left to walk.

    Raise ValueError if a number has more than 64 bits.
    """
    groups = 0
    while at < end and fields_left:
        fields_left -= 1
        tag, at = read_varint(data, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, at = read_varint(data, at)
        elif wire_type == _LENGTH:
            length, at = read_varint(data, at)
            # Fields within a group are unknown, whatever their numbers.
            field = None if groups else descriptor.fields_by_number.get(tag >> 3)
            if field is not None and field.message_type is not None:
                fields_left = _walk(field.message_type, data, at, at + length, fields_left)
            elif field is not None and field.is_repeated and field.cpp_type in _NUMBERS:
                packed = at
                while packed < at + length and fields_left:
                    fields_left -= 1
                    _, packed = read_varint(data, packed)
            at += length
        elif wire_type == _GROUP:
            groups += 1
        elif wire_type == _GROUP_END:
            groups -= 1
        else:
            at += 8 if wire_type == _FIXED64 else 4
    return fields_left
