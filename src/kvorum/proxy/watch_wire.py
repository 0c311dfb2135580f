"""A parser of WatchResponse messages that keeps their fields as bytes.

The parser cuts a message into its header and events without decoding them, so that the proxy can
reassemble them with another watch id. Of an event it reads only the fields that decide which
watchers get it. With a namespace, it encodes events again without the prefix of their keys. Bytes
that are no WatchResponse raise ValueError.
"""

from typing import Final

from kvorum.api.codec import key_field, read_varint
from kvorum.api.pb.etcdserverpb import WatchResponse
from kvorum.api.responses import event_field

_SIGN: Final = 1 << 63
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class EncodedEvent:
    """An event as the encoded fields of a response, with and without the previous value."""

    __slots__ = ("field", "is_deletion", "plain", "revision")

    def __init__(self, revision: int, is_deletion: bool, field: bytes, plain: bytes) -> None:
        self.revision = revision
        self.is_deletion = is_deletion
        self.field = field
        self.plain = plain
        """The field without the previous value."""


class ParsedResponse:
    """A parsed WatchResponse."""

    __slots__ = (
        "canceled",
        "compact_revision",
        "created",
        "events",
        "header",
        "reason",
        "revision",
        "watch_id",
    )

    def __init__(self) -> None:
        self.header = b""
        """The header's encoded field."""
        self.revision = 0
        """The revision in the header."""
        self.watch_id = 0
        self.created = False
        self.canceled = False
        self.compact_revision = 0
        self.reason = ""
        self.events: list[EncodedEvent] = []


class Reader:
    """Reads the messages of one stream."""

    __slots__ = ("_before_revision", "_prefix_bytes")

    def __init__(self, prefix_bytes: int = 0) -> None:
        """Read messages, and strip `prefix_bytes` from the front of every key."""
        self._prefix_bytes = prefix_bytes
        # The bytes before the revision are the same in all headers of one member and term.
        self._before_revision = b""

    def read(self, data: bytes) -> ParsedResponse:
        """Parse a message."""
        response = ParsedResponse()
        at, size = 0, len(data)
        while at < size:
            begin = at
            tag, at = read_varint(data, at)
            if tag & 7 == _LENGTH:
                length, at = read_varint(data, at)
                end = at + length
                if end > size:
                    raise ValueError(f"field {tag >> 3} of a WatchResponse is cut off")
                if tag == 0x5A:
                    response.events.append(self._event(data, begin, at, end))
                elif tag == 0x0A:
                    response.header = data[begin:end]
                    response.revision = self._revision(data, at, end)
                elif tag == 0x32:
                    response.reason = data[at:end].decode("utf-8", "replace")
                at = end
            elif tag & 7 == _VARINT:
                value, at = read_varint(data, at)
                if tag == 0x10:
                    response.watch_id = value - 2 * _SIGN if value >= _SIGN else value
                elif tag == 0x18:
                    response.created = value != 0
                elif tag == 0x20:
                    response.canceled = value != 0
                elif tag == 0x28:
                    response.compact_revision = value
                elif tag == 0x38:
                    raise ValueError("a WatchResponse is a fragment, which was not asked for")
            else:
                at = _after(data, tag, at, size)
        return response

    def _revision(self, data: bytes, at: int, end: int) -> int:
        known = self._before_revision
        if known and data.startswith(known, at):
            return read_varint(data, at + len(known))[0]
        begin = at
        while at < end:
            tag, at = read_varint(data, at)
            if tag == 0x18:
                self._before_revision = data[begin:at]
                return read_varint(data, at)[0]
            at = _after(data, tag, at, end)
        return 0

    def _event(self, data: bytes, field: int, at: int, end: int) -> EncodedEvent:
        is_deletion = False
        kv, kv_end, previous, previous_end = -1, -1, -1, -1
        while at < end:
            tag, at = read_varint(data, at)
            if tag == 0x12:
                length, kv = read_varint(data, at)
                at = kv_end = kv + length
            elif tag == 0x1A:
                length, previous = read_varint(data, at)
                at = previous_end = previous + length
            elif tag == 0x08:
                value, at = read_varint(data, at)
                is_deletion = value == 1
            else:
                at = _after(data, tag, at, end)
        if kv < 0 or kv_end > end or previous_end > end:
            raise ValueError("an event of a WatchResponse has no key, or is cut off")
        revision = _mod_revision(data, kv, kv_end)
        if not self._prefix_bytes:
            whole = data[field:end]
            if previous < 0:
                return EncodedEvent(revision, is_deletion, whole, whole)
            key, _ = _key(data, kv)
            plain = event_field(key, revision, data[kv:kv_end], is_deletion, None)
            return EncodedEvent(revision, is_deletion, whole, plain)
        key, stripped = self._stripped(data, kv, kv_end)
        plain = event_field(key, revision, stripped, is_deletion, None)
        if previous < 0:
            return EncodedEvent(revision, is_deletion, plain, plain)
        _, before = self._stripped(data, previous, previous_end)
        whole = event_field(key, revision, stripped, is_deletion, before)
        return EncodedEvent(revision, is_deletion, whole, plain)

    def _stripped(self, data: bytes, at: int, end: int) -> tuple[bytes, bytes]:
        """Return the key of a KeyValue without its prefix, and the KeyValue with that key."""
        key, after = _key(data, at)
        key = key[self._prefix_bytes :]
        return key, key_field(key) + data[after:end]


def header_at(header: bytes, revision: int) -> bytes:
    """Return a header's field with another revision."""
    response = WatchResponse.FromString(header)
    response.header.revision = revision
    return response.SerializeToString()


def _key(data: bytes, at: int) -> tuple[bytes, int]:
    """Return a KeyValue's key, which is its first field, and the offset of the next field."""
    if data[at] != 0x0A:
        raise ValueError("an event's KeyValue does not begin with its key")
    length, at = read_varint(data, at + 1)
    return data[at : at + length], at + length


def _mod_revision(data: bytes, at: int, end: int) -> int:
    while at < end:
        tag, at = read_varint(data, at)
        if tag == 0x18:
            return read_varint(data, at)[0]
        at = _after(data, tag, at, end)
    raise ValueError("an event of a WatchResponse has no revision")


def _after(data: bytes, tag: int, at: int, end: int) -> int:
    """Return the end of a field whose value begins at `at`."""
    kind = tag & 7
    if kind == _VARINT:
        _, at = read_varint(data, at)
    elif kind == _LENGTH:
        length, at = read_varint(data, at)
        at += length
    elif kind in (_FIXED64, _FIXED32):
        at += 8 if kind == _FIXED64 else 4
    else:
        raise ValueError(f"a field of a WatchResponse has the wire type {kind}")
    if at > end:
        raise ValueError("a field of a WatchResponse is cut off")
    return at
