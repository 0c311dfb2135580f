"""The messages of puts, reads and deletions as bytes, without protobuf.

A program that makes no other calls never loads protobuf, which takes longer than all the rest, and
to join bytes is faster than to fill a message. Requests are exactly what protobuf would write.

Answers are read here if they are short and have the usual shape: fields that are known, one header,
the shortest numbers. For any other answer the functions return None, and protobuf reads it, or says
what is wrong with it; a long one it reads faster.
"""

import re
from typing import Final

from kvorum.client.values import DeleteResult, KeyValue, PutResult, RangeResult

SHORT_BYTES_MAX: Final = 16 << 10
"""The longest answer that is read here."""
_INT64_LIMIT: Final = 1 << 63
_NUMBER: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_HEADER: Final = re.compile(
    rb"(?:\x08%b)?(?:\x10%b)?(?:\x18(%b))?(?:\x20%b)?" % (_NUMBER, _NUMBER, _NUMBER, _NUMBER)
)
"""The ids of cluster and member, the revision and the term."""


# Requests.


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
    """Return a RangeRequest; the numbers are its other fields, in their order, from 3 on."""
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


# Answers.


def read_put(answer: bytes) -> PutResult | None:
    """Return what a put did, if it is told in the usual shape: no previous value was asked for."""
    try:
        if answer[0] != 0x0A or answer[1] + 2 != len(answer):
            return None
        return PutResult(_revision(answer, 2, len(answer)), None)
    except IndexError:
        return None


def read_delete(answer: bytes) -> DeleteResult | None:
    """Return what a deletion did, if it is told in the usual shape."""
    found = _read(answer, 0x1A, 0x10, 0)
    return None if found is None else DeleteResult(found[2], found[1], found[0])


def read_range(answer: bytes) -> RangeResult | None:
    """Return what a range found, if it is told in the usual shape."""
    found = _read(answer, 0x12, 0x20, 0x18)
    return None if found is None else RangeResult(found[0], found[2], bool(found[3]), found[1])


def _read(
    answer: bytes, kvs_tag: int, count_tag: int, more_tag: int
) -> tuple[list[KeyValue], int, int, int] | None:
    """Return the keys, the revision and two numbers of an answer."""
    end = len(answer)
    if end > SHORT_BYTES_MAX:
        return None
    at = count = more = 0
    revision = -1
    kvs: list[KeyValue] = []
    try:
        while at < end:
            tag, size = answer[at], answer[at + 1]
            at += 2
            if size >= 0x80:
                size, at = _long(answer, at - 1)
            if tag == kvs_tag or tag == 0x0A:
                if at + size > end:
                    return None
                if tag == 0x0A:
                    if revision >= 0:
                        return None
                    revision = _revision(answer, at, at + size)
                elif (kv := _key_value(answer, at, at + size)) is not None:
                    kvs.append(kv)
                else:
                    return None
                at += size
            elif tag == count_tag:
                count = size
            elif tag == more_tag:
                more = size
            else:
                return None
    except IndexError:
        return None
    return kvs, max(revision, 0), count, more


def _key_value(data: bytes, at: int, end: int) -> KeyValue | None:
    key = value = b""
    create_revision = mod_revision = version = lease = 0
    while at < end:
        tag, number = data[at], data[at + 1]
        at += 2
        if number >= 0x80:
            number, at = _long(data, at - 1)
        if tag == 0x0A:
            key = data[at : at + number]
            at += number
        elif tag == 0x2A:
            value = data[at : at + number]
            at += number
        elif tag == 0x10:
            create_revision = number
        elif tag == 0x18:
            mod_revision = number
        elif tag == 0x20:
            version = number
        elif tag == 0x30:
            lease = number
        else:
            return None
    if at != end:
        return None
    return KeyValue(key, value, create_revision, mod_revision, version, lease)


def _revision(data: bytes, at: int, end: int) -> int:
    """Return the revision of a header; raises IndexError if its shape is not the usual one."""
    header = _HEADER.fullmatch(data, at, end)
    if header is None:
        raise IndexError
    return _long(data, header.start(1))[0] if header[1] else 0


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; raises IndexError if it is not written shortly.

    It may have 63 bits, and no more bytes than it needs.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _INT64_LIMIT or (shift and not byte):
                raise IndexError
            return value, at
        shift += 7
