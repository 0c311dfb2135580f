"""Reads fields of stored `KeyValue` bytes without parsing them into a message.

The stored form is canonical: key, create revision, mod revision, version, value, lease, in this
order, without fields that are zero or empty. A tombstone has only the key.
"""

from typing import NamedTuple

from kvorum.api.codec import read_varint

_CREATE, _MOD, _VERSION, _VALUE, _LEASE = 0x10, 0x18, 0x20, 0x2A, 0x30


class KeyValueFields(NamedTuple):
    """The fields of a stored `KeyValue`."""

    key: bytes
    create_revision: int
    mod_revision: int
    version: int
    value: bytes
    lease: int


def key_of(kv: bytes) -> bytes:
    """Return the key."""
    length = kv[1]
    if length < 0x80:
        return kv[2 : 2 + length]
    length, start = read_varint(kv, 1)
    return kv[start : start + length]


def fields_of(kv: bytes) -> KeyValueFields:
    """Return every field."""
    length, start = read_varint(kv, 1)
    offset = start + length
    numbers = {_CREATE: 0, _MOD: 0, _VERSION: 0, _LEASE: 0}
    value = b""
    while offset < len(kv):
        tag = kv[offset]
        number, offset = read_varint(kv, offset + 1)
        if tag == _VALUE:
            value = kv[offset : offset + number]
            offset += number
        else:
            numbers[tag] = number
    lease = numbers[_LEASE]
    return KeyValueFields(
        kv[start : start + length],
        numbers[_CREATE],
        numbers[_MOD],
        numbers[_VERSION],
        value,
        lease - (1 << 64) if lease >> 63 else lease,
    )


def value_span(kv: bytes) -> tuple[int, int, int]:
    """Return the offsets of the value's field, of its first byte, and of its end.

    All three are equal if the value is empty.
    """
    length, offset = read_varint(kv, 1)
    offset += length
    while offset < len(kv) and kv[offset] < _VALUE:
        _, offset = read_varint(kv, offset + 1)
    if offset < len(kv) and kv[offset] == _VALUE:
        length, start = read_varint(kv, offset + 1)
        return offset, start, start + length
    return offset, offset, offset


def value_of(kv: bytes) -> bytes:
    """Return the value."""
    _, start, end = value_span(kv)
    return kv[start:end]


def without_value(kv: bytes) -> bytes:
    """Return the encoded KeyValue without its value."""
    field, _, end = value_span(kv)
    return kv[:field] + kv[end:]


def lease_of(kv: bytes) -> int:
    """Return the lease, 0 for none."""
    _, _, end = value_span(kv)
    if end == len(kv):
        return 0
    lease, _ = read_varint(kv, end + 1)
    return lease - (1 << 64) if lease >> 63 else lease
