"""Encode protobuf by concatenation: numbers, fields, and frequent messages.

Building a message object only to serialise it costs more than the rest of a put. Every function
here gives exactly protobuf's bytes; property tests check that.

Only this module, `responses` and `writing` write bytes of the API's messages (etcdserverpb, mvccpb,
membershippb, v3electionpb). Formats of files, of entries and of messages between members belong to
the packages that own them: wal, snap, lease, member.requests, raft.wire, peer.
"""

from struct import iter_unpack
from typing import Final

_UINT64_LIMIT: Final = 1 << 64
_INT64_MIN: Final = -(1 << 63)


def _two_groups(continued: int) -> list[bytes]:
    """Return all numbers of 14 bits, low group first; built in one pass to keep starts short."""
    groups = bytearray(2 << 14)
    groups[0::2] = bytes(range(0x80, 0x100)) * (1 << 7)
    groups[1::2] = b"".join([bytes((high | continued,)) * (1 << 7) for high in range(1 << 7)])
    return [pair for (pair,) in iter_unpack("2s", groups)]


# A varint is 7 bits a byte; the tables hold 14 bits an entry, so that most numbers are
# encoded by one or two look-ups instead of a loop over bytes.
_FINAL: Final = (*[bytes((value,)) for value in range(0x80)], *_two_groups(0)[0x80:])
_CONTINUED: Final = tuple(_two_groups(0x80))
CONTINUED: Final = _CONTINUED
"""For other modules that write parts of varints; a second table would take a mebibyte."""


def varint(value: int) -> bytes:
    """Encode an int64 or uint64; a negative number takes ten bytes, as in protobuf."""
    if 0 <= value < 0x10000000:
        if value < 0x4000:
            return _FINAL[value]
        return _CONTINUED[value & 0x3FFF] + _FINAL[value >> 14]
    if value < 0:
        if value < _INT64_MIN:
            raise OverflowError(f"{value} is below the range of int64")
        value += _UINT64_LIMIT
    elif value >= _UINT64_LIMIT:
        raise OverflowError(f"{value} is above the range of uint64")
    encoded = b""
    while value >= 0x4000:
        encoded += _CONTINUED[value & 0x3FFF]
        value >>= 14
    return encoded + _FINAL[value]


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode the varint at an offset; return it as uint64, and the offset after it.

    Raise ValueError if the data ends within it or it has more than 64 bits.
    """
    try:
        byte = data[offset]
        if byte < 0x80:
            return byte, offset + 1
        value = byte & 0x7F
        for shift in range(7, 70, 7):
            offset += 1
            byte = data[offset]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift == 63 and byte > 1:
                    break
                return value, offset + 1
    except IndexError:
        raise ValueError(f"varint cut off at offset {offset}") from None
    raise ValueError(f"varint of more than 64 bits, up to offset {offset}")


def scalar(tag: bytes, value: int) -> bytes:
    """Encode a field that is a number, a flag or an enum; nothing for zero."""
    return tag + varint(value) if value else b""


def field_head(tag: bytes, length: int) -> bytes:
    """Encode the tag and length that precede the payload of a bytes, string or message field."""
    return tag + varint(length)


def length_delimited(tag: bytes, payload: bytes) -> bytes:
    """Encode a bytes, string or message field, present even if its payload is empty."""
    return tag + varint(len(payload)) + payload


def before_revision(cluster_id: int, member_id: int) -> bytes:
    """Return a header's bytes before the revision, for this member."""
    return scalar(b"\x08", cluster_id) + scalar(b"\x10", member_id) + b"\x18"


class HeaderEncoder:
    """Encodes `ResponseHeader` as field 1, its number in every response.

    The encoder caches the bytes that stay the same between responses; the term is set when it
    changes.
    """

    __slots__ = ("_field", "_first", "_high", "_identity", "_last", "_revision", "_start", "_term")

    def __init__(self, cluster_id: int, member_id: int, raft_term: int) -> None:
        self._identity = scalar(b"\x08", cluster_id) + scalar(b"\x10", member_id)
        self.set_raft_term(raft_term)

    def set_raft_term(self, raft_term: int) -> None:
        """Use this term from now on."""
        self._term = scalar(b"\x20", raft_term)
        self._revision = -1
        self._field = b""
        # Revisions from `_first` to `_last` share the bytes before and after their low 14 bits.
        self._first, self._last = 1, 0
        self._start = self._high = b""

    def field(self, revision: int) -> bytes:
        """Return the header field with this revision; 0 leaves the revision out."""
        # The replies to a batch of reads share a revision, and so these bytes.
        if revision != self._revision:
            if not self._first <= revision <= self._last:
                return self._encode(revision)
            self._field = self._start + _CONTINUED[revision & 0x3FFF] + self._high
            self._revision = revision
        return self._field

    def _encode(self, revision: int) -> bytes:
        body = self._identity + scalar(b"\x18", revision) + self._term
        if revision >= 0x4000:
            self._first = revision & ~0x3FFF
            self._last = self._first | 0x3FFF
            self._start = b"\x0a" + varint(len(body)) + self._identity + b"\x18"
            self._high = varint(revision >> 14) + self._term
        self._field = length_delimited(b"\x0a", body)
        self._revision = revision
        return self._field


def key_value(
    key: bytes, create_revision: int, mod_revision: int, version: int, value: bytes, lease: int
) -> bytes:
    """Encode the `KeyValue` of a put. The same bytes are stored, hashed and sent."""
    # Protobuf leaves out zeros, but none of these is zero for a key that was put.
    assert key and create_revision and mod_revision and version, (key, mod_revision)
    mod = varint(mod_revision)
    create = mod if create_revision == mod_revision else varint(create_revision)
    key_length, value_length = len(key), len(value)
    if key_length < 0x4000 and 0 < value_length < 0x4000 and 0 < version < 0x4000 and not lease:
        # The usual put: inlined look-ups of the small numbers save a third of the time.
        return b"".join(
            (
                b"\x0a",
                _FINAL[key_length],
                key,
                b"\x10",
                create,
                b"\x18",
                mod,
                b"\x20",
                _FINAL[version],
                b"\x2a",
                _FINAL[value_length],
                value,
            )
        )
    encoded = b"\x0a%b%b\x10%b\x18%b\x20%b" % (
        varint(key_length),
        key,
        create,
        mod,
        varint(version),
    )
    if value:
        encoded += b"\x2a" + varint(value_length) + value
    return encoded + b"\x30" + varint(lease) if lease else encoded


def key_field(key: bytes) -> bytes:
    """Encode the key of a `KeyValue`, its first field."""
    return b"\x0a" + varint(len(key)) + key


def tombstone(key: bytes, mod_revision: int = 0) -> bytes:
    """Encode the `KeyValue` of a deletion: stored without a revision, sent in events with one."""
    return key_field(key) + scalar(b"\x18", mod_revision)


def put_event(kv: bytes, prev_kv: bytes | None = None) -> bytes:
    """Encode an `Event` of type PUT around encoded key-values."""
    event = b"\x12" + varint(len(kv)) + kv
    return event if prev_kv is None else event + b"\x1a" + varint(len(prev_kv)) + prev_kv


def delete_event(kv: bytes, prev_kv: bytes | None = None) -> bytes:
    """Encode an `Event` of type DELETE around encoded key-values."""
    return b"\x08\x01" + put_event(kv, prev_kv)


# Requests that a member makes on its own.


def compaction_request(revision: int) -> bytes:
    """Encode a CompactionRequest that does not wait for the disk."""
    return scalar(b"\x08", revision)


def lease_revoke_request(lease_id: int) -> bytes:
    """Encode a LeaseRevokeRequest."""
    return scalar(b"\x08", lease_id)


def lease_keep_alive_request(lease_id: int) -> bytes:
    """Encode a LeaseKeepAliveRequest."""
    return scalar(b"\x08", lease_id)


def alarm_request(action: int, member_id: int, alarm: int) -> bytes:
    """Encode an AlarmRequest."""
    return scalar(b"\x08", action) + scalar(b"\x10", member_id) + scalar(b"\x18", alarm)


def cluster_version_request(version: str) -> bytes:
    """Encode a ClusterVersionSetRequest."""
    return length_delimited(b"\x0a", version.encode())


USER_FIELD: Final = 0x12
REVISION_FIELD: Final = 0x18
"""Tags of fields of `RequestHeader`, with their wire types."""


def caller_identity(user: str, revision: int) -> bytes:
    """Encode the fields of `RequestHeader` that identify the caller; they follow the id."""
    name = user.encode("utf-8", "surrogateescape")
    return (length_delimited(b"\x12", name) if name else b"") + scalar(b"\x18", revision)
