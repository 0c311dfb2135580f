"""Decodes the answers to puts, reads and deletions without protobuf.

The answers must be short and have the usual shape: known fields, one header, numbers in their
shortest encoding. For any other answer the functions return None, and protobuf decodes it or
reports its error. Protobuf decodes long answers faster.
"""

import re
from typing import Final

from kvorum.client.values import DeleteResult, KeyValue, PutResult, RangeResult

SHORT_BYTES_MAX: Final = 16 << 10
"""The longest answer that this module decodes."""
_INT64_LIMIT: Final = 1 << 63
_NUMBER: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_HEADER: Final = re.compile(
    rb"(?:\x08%b)?(?:\x10%b)?(?:\x18(%b))?(?:\x20%b)?" % (_NUMBER, _NUMBER, _NUMBER, _NUMBER)
)
"""The ids of cluster and member, the revision and the term."""


def read_put(answer: bytes) -> PutResult | None:
    """Return the result of a put; None unless the answer has the usual shape, without `prev_kv`."""
    try:
        if answer[0] != 0x0A or answer[1] + 2 != len(answer):
            return None
        return PutResult(_revision(answer, 2, len(answer)), None)
    except IndexError:
        return None


def read_delete(answer: bytes) -> DeleteResult | None:
    """Return the result of a deletion; None unless the answer has the usual shape."""
    found = _read(answer, 0x1A, 0x10, 0)
    return None if found is None else DeleteResult(found[2], found[1], found[0])


def read_range(answer: bytes) -> RangeResult | None:
    """Return the result of a range; None unless the answer has the usual shape."""
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
    """Return a number and where it ends; raises IndexError if its encoding is unusual.

    The number may have 63 bits, and no more bytes than it needs.
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
