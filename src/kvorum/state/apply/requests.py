"""The data of entries: `InternalRaftRequest`, encoded by concatenation and decoded again.

A request's bytes go into the entry unchanged; the proposer only adds a header. The header holds an
id, by which the proposer finds the waiter for the result, and the caller's identity, which an
anonymous caller lacks. Fields are in the order of their numbers, so the header comes after requests
with a number below 100 and before the others.

Ids look like etcd's: 16 bits of the member id, then a number that grows by one. Every start draws
the first number at random instead of using the time of day: after a clock was set back, the ids of
an earlier run would repeat. All ids of a member are equally long, so an entry ends with its id
if the header comes last and holds nothing else.
"""

from typing import Final

from kvorum.api.codec import (
    CONTINUED,
    REVISION_FIELD,
    USER_FIELD,
    length_delimited,
    read_varint,
    varint,
)
from kvorum.state.apply.callers import NOBODY, Caller, Front

RANGE: Final = 3
PUT: Final = 4
DELETE_RANGE: Final = 5
TXN: Final = 6
COMPACTION: Final = 7
LEASE_GRANT: Final = 8
LEASE_REVOKE: Final = 9
ALARM: Final = 10
LEASE_CHECKPOINT: Final = 11
AUTH_ENABLE: Final = 1000
AUTH_DISABLE: Final = 1011
AUTHENTICATE: Final = 1012
AUTH_STATUS: Final = 1013
USER_ADD: Final = 1100
USER_DELETE: Final = 1101
USER_GET: Final = 1102
USER_CHANGE_PASSWORD: Final = 1103
USER_GRANT_ROLE: Final = 1104
USER_REVOKE_ROLE: Final = 1105
USER_LIST: Final = 1106
ROLE_LIST: Final = 1107
ROLE_ADD: Final = 1200
ROLE_DELETE: Final = 1201
ROLE_GET: Final = 1202
ROLE_GRANT_PERMISSION: Final = 1203
ROLE_REVOKE_PERMISSION: Final = 1204
CLUSTER_VERSION_SET: Final = 1300
CLUSTER_MEMBER_ATTR_SET: Final = 1301
DOWNGRADE_INFO_SET: Final = 1302
DOWNGRADE_VERSION_TEST: Final = 9900

_HEADER: Final = 100
_HEADER_TAG: Final = varint(_HEADER << 3 | 2)
_TAGS: Final = {kind: varint(kind << 3 | 2) for kind in range(RANGE, LEASE_CHECKPOINT + 1)}

_PUT_TAG: Final = PUT << 3 | 2

# Fields of the header, with their wire types.
_ID: Final = 0x08

_FIXED_BYTES: Final = {1: 8, 5: 4}
"""The length of fixed-size fields by wire type."""

_SUFFIX_BITS: Final = 48
_SUFFIX: Final = (1 << _SUFFIX_BITS) - 1
# `encode` encodes these low bits of an id every time, and reuses the encoded rest.
_LOW_BITS: Final = 14
_LOW: Final = (1 << _LOW_BITS) - 1
_LOW_BYTES: Final = CONTINUED

START_MAX: Final = 1 << 40
"""Ids start at a random number below this."""

_LEAST_WITHOUT_PREFIX: Final = 1 << 42
"""From here to the end of the suffix, all ids are equally long without a prefix."""


class RequestIds:
    """Generates ids, and encodes entries with them."""

    __slots__ = ("_last", "_least", "_prefix", "_tail_end", "_tail_start", "id_bytes")

    def __init__(self, member_id: int, start: int) -> None:
        self._prefix = (member_id & 0xFFFF) << _SUFFIX_BITS
        self._least = 0 if self._prefix else _LEAST_WITHOUT_PREFIX
        self._last = self._prefix | self._least | (start & (START_MAX - 1)) << 8
        self._keep_high(self._last)
        self.id_bytes = len(varint(self._last))
        """How many bytes each id takes."""

    def next_id(self) -> int:
        """Return an id that is not in use."""
        number = self._last + 1
        if not number & _LOW:
            number = self._prefix | (number & _SUFFIX or self._least)
            self._keep_high(number)
        self._last = number
        return number

    def _keep_high(self, number: int) -> None:
        """Encode the part that ids share until their low bits overflow."""
        self._tail_end = varint(number >> _LOW_BITS)
        self._tail_start = _HEADER_TAG + varint(3 + len(self._tail_end)) + b"\x08"

    def next_lease_id(self) -> int:
        """Return an id for a lease: positive."""
        while True:
            lease_id = self.next_id() & ((1 << 63) - 1)
            if lease_id:
                return lease_id

    def encode(self, kind: int, body: bytes, caller: Caller) -> tuple[bytes, bytes]:
        """Return the data of an entry around a caller's request, and its encoded id."""
        number = self._last + 1
        if number & _LOW:
            self._last = number
        else:
            number = self.next_id()
        # Most of the id's ten bytes stay the same for thousands of requests.
        encoded = _LOW_BYTES[number & _LOW] + self._tail_end
        if caller.is_nobody and kind < _HEADER:
            return _TAGS[kind] + varint(len(body)) + body + self._tail_start + encoded, encoded
        header = length_delimited(_HEADER_TAG, b"\x08" + encoded + caller.identity)
        if kind < _HEADER:
            return _TAGS[kind] + varint(len(body)) + body + header, encoded
        return header + length_delimited(varint(kind << 3 | 2), body), encoded


def decode(data: bytes) -> tuple[int, int, bytes, Caller]:
    """Return kind, id, request and caller of an entry; raises ValueError for other data."""
    number, kind, body, caller = 0, 0, b"", NOBODY
    offset, size = 0, len(data)
    while offset < size:
        tag, offset = read_varint(data, offset)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, offset = read_varint(data, offset)
            if field == 1:  # the id's place before InternalRaftRequest had a header
                number = number or value
            continue
        if wire_type != 2:
            raise ValueError(f"wire type {wire_type} of field {field}")
        length, offset = read_varint(data, offset)
        end = offset + length
        if end > size:
            raise ValueError(f"field {field} ends at {end}, behind the {size} bytes given")
        if field == _HEADER:
            found, caller = _read_header(data[offset:end], caller)
            number = found or number
        elif kind:
            raise ValueError(f"two requests, of fields {kind} and {field}")
        else:
            kind, body = field, data[offset:end]
        offset = end
    if not kind or not number:
        raise ValueError(f"no {'id' if kind else 'request'} in it")
    return kind, number, body, caller


def encoded_id(number: int) -> bytes:
    """Return an id as `RequestIds.encode` encodes it."""
    return varint(number)


def extract_anonymous_put(data: bytes) -> bytes | None:
    """Return the request of an entry that is a put and then a header with nothing but an id.

    A follower applies mostly such entries, so this parses them without a loop over fields. Returns
    None for any other entry, even for such a put in another encoding.
    """
    if data[0] != _PUT_TAG:
        return None
    try:
        length, start = data[1], 2
        if length >= 0x80:
            length, start = read_varint(data, 1)
        end = start + length
        # The header's tag, its length of one byte, the tag of the id, and the id up to the end.
        first, last = end + 4, len(data) - 1
        if (
            first <= last
            and data[end : end + 2] == _HEADER_TAG
            and end + 2 + data[end + 2] == last
            and data[end + 3] == _ID
            and _is_varint(data, first, last)
        ):
            return data[start:end]
    except (IndexError, ValueError):
        pass
    return None


def split_user_request(data: bytes) -> tuple[int, int, int, bytes, bytes] | None:
    """Return kind, start and end of the request, encoded id and identity of a user's entry.

    Works like `extract_anonymous_put`, for entries that any member proposed for a user. Returns
    None for any other shape; the identity is the header after the id.
    """
    tag, size = data[0], len(data)
    try:
        length, start = data[1], 2
        if length >= 0x80:
            length, start = read_varint(data, 1)
        end = start + length
        if tag & 0x87 != 2 or data[end : end + 2] != _HEADER_TAG:
            return None
        length, first = data[end + 2], end + 3
        if length >= 0x80:
            length, first = read_varint(data, end + 2)
        if first + length != size or data[first] != _ID:
            return None
        last = first + 1
        while data[last] >= 0x80:
            last += 1
        if last + 1 == size or not _is_varint(data, first + 1, last):
            return None
        return tag >> 3, start, end, data[first + 1 : last + 1], data[last + 1 :]
    except (IndexError, ValueError):
        return None


def caller_of_identity(identity: bytes) -> Caller | None:
    """Return the caller that the rest of a header names; None for an unusual encoding."""
    try:
        caller = _read_header(identity, NOBODY)[1]
    except (IndexError, ValueError):
        return None
    return caller if caller.identity == identity else None


def _is_varint(data: bytes, first: int, last: int) -> bool:
    """Return whether these bytes are one number above 0, as protobuf writes it."""
    end = data[last]
    if not 0 < end < 0x80 or last - first > 9 or (last - first == 9 and end > 1):
        return False
    for place in range(first, last):  # noqa: SIM110 - a generator would cost more than the rest
        if data[place] < 0x80:
            return False
    return True


def _read_header(header: bytes, before: Caller) -> tuple[int, Caller]:
    """Return id and caller of a header; `before` supplies the parts of the caller it lacks."""
    offset, size = 0, len(header)
    number, user, revision = 0, before.user, before.revision
    while offset < size:
        tag, offset = read_varint(header, offset)
        wire_type = tag & 7
        if wire_type == 0:
            value, offset = read_varint(header, offset)
            if tag == _ID:
                number = value
            elif tag == REVISION_FIELD:
                revision = value
        elif wire_type == 2:
            length, offset = read_varint(header, offset)
            if tag == USER_FIELD:
                # Keep any bytes that another member accepted as a name.
                user = header[offset : offset + length].decode("utf-8", "surrogateescape")
            offset += length
        elif wire_type in _FIXED_BYTES:
            offset += _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} in the header of a request")
    if offset > size:
        raise ValueError(f"the header of a request ends within a field, at {size} of {offset}")
    return number, Caller(Front.LOG, user, revision) if user or revision else NOBODY
