"""Encode key-value requests on the client: exactly protobuf's bytes, without loading protobuf.

A program that makes no other calls never loads protobuf, which takes longer to load than all the
rest; joining bytes is also faster than filling a message. This module does not use `codec`, whose
tables pay off in a server, but take long to build.
"""

from typing import Final

_INT64_LIMIT: Final = 1 << 63


def put_request(
    key: bytes,
    value: bytes,
    lease: int = 0,
    *,
    previous: bool = False,
    keep_value: bool = False,
    keep_lease: bool = False,
) -> bytes:
    """Return a PutRequest."""
    message = _text(b"\x0a", key) + _text(b"\x12", value)
    if lease or previous or keep_value or keep_lease:
        message += (
            _number(b"\x18", lease)
            + _number(b"\x20", previous)
            + _number(b"\x28", keep_value)
            + _number(b"\x30", keep_lease)
        )
    return message


def delete_request(key: bytes, end: bytes, *, previous: bool) -> bytes:
    """Return a DeleteRangeRequest."""
    return _text(b"\x0a", key) + _text(b"\x12", end) + _number(b"\x18", previous)


def get_request(key: bytes, revision: int, *, serializable: bool) -> bytes:
    """Return the RangeRequest of one key."""
    message = _text(b"\x0a", key)
    if revision or serializable:
        message += _number(b"\x20", revision) + _number(b"\x38", serializable)
    return message


def range_request(key: bytes, end: bytes, numbers: tuple[int, ...]) -> bytes:
    """Return a RangeRequest; `numbers` are its fields from 3 on, in order."""
    message = _text(b"\x0a", key) + _text(b"\x12", end)
    for field, value in enumerate(numbers, 3):
        if value:
            message += _number(bytes((field << 3,)), value)
    return message


def _text(tag: bytes, text: bytes) -> bytes:
    size = len(text)
    if 0 < size < 0x80:
        return tag + bytes((size,)) + text
    return tag + _varint(size) + text if size else b""


def _number(tag: bytes, value: int) -> bytes:
    return tag + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    if not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise ValueError(f"{value} is not a number of 64 bits with a sign")
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
