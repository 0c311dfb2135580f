"""Entries' data: `InternalRaftRequest` by concatenation, and read back.

A request's bytes go into the entry as they came; only an id is added, which is how the proposer
finds who waits for the result. Fields are in the order of their numbers, so the header with the
id comes behind requests of a number below 100 and before the others.

Ids look as etcd's: 16 bits of the member, then a number that grows by one. Where it begins is drawn
at every start, and not taken from the time of day: a clock that was set back would make the ids
of an earlier life again, and an entry of that life would be taken for a request of this one.
"""

from typing import Final

from kvorum.api.codec import length_delimited, read_varint, varint

RANGE: Final = 3
PUT: Final = 4
DELETE_RANGE: Final = 5
TXN: Final = 6
COMPACTION: Final = 7
LEASE_GRANT: Final = 8
LEASE_REVOKE: Final = 9
ALARM: Final = 10
LEASE_CHECKPOINT: Final = 11
CLUSTER_VERSION_SET: Final = 1300
CLUSTER_MEMBER_ATTR_SET: Final = 1301
DOWNGRADE_INFO_SET: Final = 1302
DOWNGRADE_VERSION_TEST: Final = 9900

_HEADER: Final = 100
_HEADER_TAG: Final = varint(_HEADER << 3 | 2)
_TAGS: Final = {kind: varint(kind << 3 | 2) for kind in range(RANGE, LEASE_CHECKPOINT + 1)}

_SUFFIX: Final = (1 << 48) - 1
# The lower part of an id that is encoded anew every time; the rest is kept.
_LOW_BITS: Final = 14
_LOW: Final = (1 << _LOW_BITS) - 1
_LOW_BYTES: Final = tuple(
    bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)
)

START_MAX: Final = 1 << 40
"""Ids begin at a drawn number below this."""

TOKEN_BYTES: Final = 11
"""The end of an entry whose header comes last: no two that wait at once share it."""

Token = bytes | int


class RequestIds:
    """Makes ids, and entries with them."""

    __slots__ = ("_last", "_prefix", "_tail_end", "_tail_start")

    def __init__(self, member_id: int, start: int) -> None:
        # Never so small that an id would be shorter than the part that is encoded anew.
        start = max(start & (START_MAX - 1), 1 << _LOW_BITS - 8)
        self._prefix = (member_id & 0xFFFF) << 48
        self._last = self._prefix | start << 8
        self._keep_high(self._last)

    def next_id(self) -> int:
        """Return an id that nobody has."""
        number = self._last + 1
        if not number & _LOW:
            number = self._prefix | (number & _SUFFIX or 1 << _LOW_BITS)
            self._keep_high(number)
        self._last = number
        return number

    def _keep_high(self, number: int) -> None:
        """Encode what ids share until their low bits overflow."""
        self._tail_end = varint(number >> _LOW_BITS)
        self._tail_start = _HEADER_TAG + varint(3 + len(self._tail_end)) + b"\x08"

    def next_lease_id(self) -> int:
        """Return an id for a lease: positive."""
        while True:
            lease_id = self.next_id() & ((1 << 63) - 1)
            if lease_id:
                return lease_id

    def encode(self, kind: int, body: bytes) -> tuple[bytes, Token]:
        """Return the data of an entry around a request, and what it is found by."""
        number = self._last + 1
        if number & _LOW:
            self._last = number
        else:
            number = self.next_id()
        if kind > _HEADER:
            header = length_delimited(_HEADER_TAG, b"\x08" + varint(number))
            return header + length_delimited(varint(kind << 3 | 2), body), number
        # Most of the id's ten bytes stay the same for thousands of requests.
        tail = self._tail_start + _LOW_BYTES[number & _LOW] + self._tail_end
        payload = _TAGS[kind] + varint(len(body)) + body + tail
        return payload, payload[-TOKEN_BYTES:]


def decode(data: bytes) -> tuple[int, int, bytes]:
    """Return kind, id and request of an entry; raises ValueError for anything else."""
    number, kind, body = 0, 0, b""
    offset, size = 0, len(data)
    while offset < size:
        tag, offset = read_varint(data, offset)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, offset = read_varint(data, offset)
            if field == 1:  # where the id was before there was a header
                number = number or value
            continue
        if wire_type != 2:
            raise ValueError(f"wire type {wire_type} of field {field}")
        length, offset = read_varint(data, offset)
        end = offset + length
        if end > size:
            raise ValueError(f"field {field} ends at {end}, behind the {size} bytes given")
        if field == _HEADER:
            number = _header_id(data[offset:end]) or number
        elif kind:
            raise ValueError(f"two requests, of fields {kind} and {field}")
        else:
            kind, body = field, data[offset:end]
        offset = end
    if not kind or not number:
        raise ValueError(f"no {'id' if kind else 'request'} in it")
    return kind, number, body


def put_body(data: bytes) -> bytes | None:
    """Return the request of an entry that is a put and a header behind it; None for any other.

    What a follower applies most, read without a loop over fields.
    """
    if data[0] != 0x22:
        return None
    try:
        length, start = data[1], 2
        if length >= 0x80:
            length, start = read_varint(data, 1)
        end = start + length
        # The header is shorter than 128 bytes, and the last thing there.
        if data[end : end + 2] == _HEADER_TAG and end + 3 + data[end + 2] == len(data):
            return data[start:end]
    except (IndexError, ValueError):
        pass
    return None


def _header_id(header: bytes) -> int:
    offset, number = 0, 0
    while offset < len(header):
        tag, offset = read_varint(header, offset)
        value, offset = read_varint(header, offset)
        if tag == 0x08:
            number = value
        elif tag & 7 == 2:
            offset += value
        elif tag & 7:
            raise ValueError(f"wire type {tag & 7} in the header of a request")
    return number
