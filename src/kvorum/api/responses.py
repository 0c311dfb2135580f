"""Encode the API's responses by concatenation, from encoded parts.

A `header` parameter takes the result of `HeaderEncoder.field`. A function named `..._body` returns
a response without its header, one named `..._field` a single field of it; the others return whole
messages.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvorum.api.codec import (
    delete_event,
    field_head,
    length_delimited,
    put_event,
    scalar,
    tombstone,
    varint,
)

RANGE_KVS: Final = b"\x12"
"""Tag of the key-values in a RangeResponse."""
DELETED_KVS: Final = b"\x1a"
"""Tag of the key-values in a DeleteRangeResponse."""


def repeated(tag: bytes, payloads: Sequence[bytes]) -> bytes:
    """Encode a repeated field of bytes or messages."""
    # Many payloads have the same length, so each tag and length is encoded once.
    heads = {length: field_head(tag, length) for length in set(map(len, payloads))}
    return b"".join([part for payload in payloads for part in (heads[len(payload)], payload)])


# Range, Put, DeleteRange.


def range_body_of_one(kv: bytes) -> bytes:
    """Encode a RangeResponse with a single key-value."""
    return b"\x12" + varint(len(kv)) + kv + b"\x20\x01"


def range_totals(more: bool, count: int) -> bytes:
    """Encode the fields after the key-values of a RangeResponse."""
    return (b"\x18\x01" if more else b"") + scalar(b"\x20", count)


def range_stream_response(range_response: bytes) -> bytes:
    """Encode a RangeStreamResponse."""
    return length_delimited(b"\x0a", range_response)


def put_body(prev_kv: bytes | None) -> bytes:
    """Encode a PutResponse."""
    return b"" if prev_kv is None else length_delimited(b"\x12", prev_kv)


def deleted_field(count: int) -> bytes:
    """Encode the number of keys that a DeleteRange deleted."""
    return scalar(b"\x10", count)


def deleted_body_of_one(prev_kv: bytes | None) -> bytes:
    """Encode a DeleteRangeResponse for one key that existed."""
    count = deleted_field(1)
    return count if prev_kv is None else count + length_delimited(DELETED_KVS, prev_kv)


# Txn.

RANGE_RESPONSE: Final = b"\x0a"
PUT_RESPONSE: Final = b"\x12"
DELETE_RANGE_RESPONSE: Final = b"\x1a"
TXN_RESPONSE: Final = b"\x22"
"""Tags of the responses in a ResponseOp."""

NESTED_TXN_HEADER: Final = b"\x0a\x00"
"""The empty header of a transaction within another one."""


def operation_header(revision: int) -> bytes:
    """Encode the header of an operation's response, which holds only the revision."""
    return length_delimited(b"\x0a", scalar(b"\x18", revision))


def succeeded_field(succeeded: bool) -> bytes:
    """Encode whether a transaction's compares succeeded."""
    return b"\x10\x01" if succeeded else b""


def operation_field(response: bytes, header: bytes, body: list[bytes]) -> list[bytes]:
    """Encode a ResponseOp as a field of a TxnResponse; large parts are not copied."""
    size = len(header) + sum(map(len, body))
    head = field_head(response, size) + header
    return [field_head(b"\x1a", len(head) - len(header) + size) + head, *body]


def txn_body_of_one_put(succeeded: bool, revision: int, prev_kv: bytes | None) -> bytes:
    """Encode the TxnResponse of a single put, the most frequent transaction."""
    response = length_delimited(PUT_RESPONSE, operation_header(revision) + put_body(prev_kv))
    start = b"\x10\x01\x1a" if succeeded else b"\x1a"
    return start + varint(len(response)) + response


# Watch.

CREATED: Final = b"\x18\x01"
CANCELED: Final = b"\x20\x01"
_FRAGMENT: Final = b"\x38\x01"


def watch_id_field(watch_id: int) -> bytes:
    """Encode a watch id; nothing for 0."""
    return scalar(b"\x10", watch_id)


NO_WATCHER: Final = watch_id_field(-1)
"""The watch id of a response that concerns no watcher, or the whole stream."""


def event_field(key: bytes, main: int, kv: bytes, deleted: bool, prev_kv: bytes | None) -> bytes:
    """Encode the event of a change from its stored bytes."""
    # A stored tombstone has no revision; the event of the deletion has one.
    event = delete_event(tombstone(key, main), prev_kv) if deleted else put_event(kv, prev_kv)
    return b"\x5a" + varint(len(event)) + event


def watch_refused(header: bytes, reason: str) -> bytes:
    """Encode the response to a refused create request."""
    return header + NO_WATCHER + CREATED + CANCELED + length_delimited(b"\x32", reason.encode())


def watch_compacted(header: bytes, watch_id: bytes, compacted_revision: int) -> bytes:
    """Encode the cancellation of a watcher that needs compacted revisions."""
    return header + watch_id + CANCELED + scalar(b"\x28", compacted_revision)


def watch_fragments(
    header: bytes, watch_id: bytes, events: Sequence[bytes], size_limit: int
) -> list[bytes]:
    """Encode one response, or several below the limit if one would be too large.

    A fragment holds at least one event, however large; all but the last are marked.
    """
    size = len(header) + len(watch_id)
    if len(events) < 2 or size + sum(map(len, events)) < size_limit:
        return [b"".join((header, watch_id, *events))]
    responses = []
    size += len(_FRAGMENT)
    first, total = 0, size
    for index, event in enumerate(events):
        total += len(event)
        if total >= size_limit and index > first:
            responses.append(b"".join((header, watch_id, _FRAGMENT, *events[first:index])))
            first, total = index, size + len(event)
    responses.append(b"".join((header, watch_id, *events[first:])))
    return responses


# Leases, elections, snapshots, health.


def renewed_body(lease_id: int, ttl: int) -> bytes:
    """Encode a LeaseKeepAliveResponse without its header."""
    return scalar(b"\x10", lease_id) + scalar(b"\x18", ttl)


def leases_field(lease_ids: Iterable[int]) -> bytes:
    """Encode some leases of a LeaseLeasesResponse."""
    return b"".join([length_delimited(b"\x12", scalar(b"\x08", each)) for each in lease_ids])


def lease_keys_field(keys: Sequence[bytes]) -> bytes:
    """Encode some keys of a LeaseTimeToLiveResponse, to follow its other fields."""
    return repeated(b"\x2a", keys)


def leader_body(kv: bytes) -> bytes:
    """Encode a LeaderResponse of an election."""
    return length_delimited(b"\x12", kv)


def snapshot_response(remaining_bytes: int, blob: bytes, version: str) -> bytes:
    """Encode a SnapshotResponse, which has no header here; an empty version is left out."""
    message = scalar(b"\x10", remaining_bytes) + length_delimited(b"\x1a", blob)
    return message + length_delimited(b"\x22", version.encode()) if version else message


HEALTH_SERVING: Final = b"\x08\x01"
HEALTH_NOT_SERVING: Final = b"\x08\x02"
HEALTH_SERVICE_UNKNOWN: Final = b"\x08\x03"
"""The HealthCheckResponses of gRPC's health service."""


def health_list_response(name: str, health: bytes) -> bytes:
    """Encode a HealthListResponse with one service."""
    # A map entry: its key, present even if empty, and its value.
    entry = length_delimited(b"\x0a", name.encode()) + length_delimited(b"\x12", health)
    return length_delimited(b"\x0a", entry)
