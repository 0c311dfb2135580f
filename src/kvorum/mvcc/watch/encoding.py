"""`WatchResponse` by concatenation.

Rules: every function gives exactly the bytes protobuf gives. A header is the encoded field 1
of the response; a watch id is the encoded field 2, or nothing for 0; an event is the encoded
field 11, made once and shared by all who watch it.
"""

from collections.abc import Sequence

from kvorum.api.codec import delete_event, put_event, tombstone, varint

CREATED = b"\x18\x01"
CANCELED = b"\x20\x01"
FRAGMENT = b"\x38\x01"

NO_WATCHER = -1
"""The watch id of a response that is about no watcher or about the whole stream."""


def watch_id_field(watch_id: int) -> bytes:
    """Encode a watch id."""
    return b"\x10" + varint(watch_id) if watch_id else b""


NO_WATCHER_FIELD = watch_id_field(NO_WATCHER)


def event_field(key: bytes, main: int, kv: bytes, deleted: bool, prev_kv: bytes | None) -> bytes:
    """Encode the event of a change from the bytes stored for it."""
    # A stored tombstone has no revision; the event of the deletion does.
    event = delete_event(tombstone(key, main), prev_kv) if deleted else put_event(kv, prev_kv)
    return b"\x5a" + varint(len(event)) + event


def refusal(header: bytes, reason: str) -> bytes:
    """Encode the answer to a create request that is refused."""
    text = reason.encode()
    return header + NO_WATCHER_FIELD + CREATED + CANCELED + b"\x32" + varint(len(text)) + text


def compaction(header: bytes, watch_id: bytes, compacted_revision: int) -> bytes:
    """Encode the end of a watcher that needs revisions which were compacted."""
    return header + watch_id + CANCELED + b"\x28" + varint(compacted_revision)


def fragments(
    header: bytes, watch_id: bytes, events: Sequence[bytes], size_limit: int
) -> list[bytes]:
    """Encode one response, or several below the limit if it and its events are too many.

    A fragment holds at least one event, however large; all but the last are marked.
    """
    size = len(header) + len(watch_id)
    if len(events) < 2 or size + sum(map(len, events)) < size_limit:
        return [b"".join((header, watch_id, *events))]
    responses = []
    size += len(FRAGMENT)
    first, total = 0, size
    for index, event in enumerate(events):
        total += len(event)
        if total >= size_limit and index > first:
            responses.append(b"".join((header, watch_id, FRAGMENT, *events[first:index])))
            first, total = index, size + len(event)
    responses.append(b"".join((header, watch_id, *events[first:])))
    return responses
