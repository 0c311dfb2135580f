"""The packed revisions of one key.

An entry of the index is one of

- an int: the only revision the key has, which is either a put with version 1, or a lone
  tombstone (bit 0 set);
- bytes, or a bytearray once it is long: a head, then 12 bytes per revision, newest last. The
  head holds create revision and version of the first remaining revision, and the number of the
  record that begins the newest generation.

A revision is `main << 32 | sub << 1 | tombstone`; records are big-endian, so that they sort as
revisions do. A generation ends with a tombstone. Functions here are pure, except that `appended`
extends a bytearray in place, so that a key written a million times is not copied a million times.
"""

from struct import Struct
from typing import Final, NamedTuple

Entry = int | bytes | bytearray

SUB_MASK: Final = (1 << 32) - 1
RECORD_BYTES: Final = 12
_HEAD: Final = Struct(">QQI")
_HEAD_BYTES: Final = _HEAD.size
_RECORD: Final = Struct(">QI")
_TOMBSTONE_BITS: Final = bytes(byte & 1 for byte in range(256))
_BYTEARRAY_FROM_BYTES = 600


class KeyFacts(NamedTuple):
    """The part of a key's state at a revision that the index knows without the row."""

    create_revision: int
    revision: int
    version: int


def bound(main: int) -> int:
    """Return the greatest revision with this main revision."""
    return main << 32 | SUB_MASK


def make_entry(revision: int, create_revision: int, version: int) -> Entry:
    """Return the entry of a key whose oldest remaining revision is this one."""
    if revision & 1 or (version == 1 and create_revision == revision >> 32):
        return revision
    return _HEAD.pack(create_revision, version, 0) + revision.to_bytes(RECORD_BYTES, "big")


def newest(entry: Entry) -> int:
    """Return the newest revision of an entry."""
    return entry if isinstance(entry, int) else int.from_bytes(entry[-RECORD_BYTES:], "big")


def appended(entry: Entry, revision: int) -> tuple[Entry, int, int, int]:
    """Append a newer revision; return the entry, create revision, version, previous revision.

    For a tombstone, create revision and version are meaningless.
    """
    record = revision.to_bytes(RECORD_BYTES, "big")
    if isinstance(entry, int):
        previous = entry
        if previous & 1:
            return _HEAD.pack(0, 0, 1) + _record(entry) + record, revision >> 32, 1, previous
        create = previous >> 32
        return _HEAD.pack(create, 1, 0) + _record(entry) + record, create, 2, previous
    previous = int.from_bytes(entry[-RECORD_BYTES:], "big")
    count = (len(entry) - _HEAD_BYTES) // RECORD_BYTES
    create, version, generation = _HEAD.unpack_from(entry)
    if previous & 1:
        if isinstance(entry, bytearray):
            _HEAD.pack_into(entry, 0, create, version, count)
            entry += record
        else:
            entry = _HEAD.pack(create, version, count) + entry[_HEAD_BYTES:] + record
        return entry, revision >> 32, 1, previous
    if generation:
        create = _main(entry, generation)
        version = count - generation + 1
    else:
        version += count
    if len(entry) > _BYTEARRAY_FROM_BYTES and isinstance(entry, bytes):
        entry = bytearray(entry)
    entry += record
    return entry, create, version, previous


def at(entry: Entry, limit: int) -> int:
    """Return the newest revision up to a limit if it is a put; 0 otherwise."""
    if isinstance(entry, int):
        return 0 if entry > limit or entry & 1 else entry
    revision = int.from_bytes(entry[-RECORD_BYTES:], "big")
    if revision > limit:
        number = _find(entry, limit)
        if number < 0:
            return 0
        revision = _revision(entry, number)
    return 0 if revision & 1 else revision


def facts(entry: Entry, limit: int) -> KeyFacts | None:
    """Return the facts of the newest revision up to a limit; None if it is not a put."""
    if isinstance(entry, int):
        return None if entry > limit or entry & 1 else KeyFacts(entry >> 32, entry, 1)
    number = _find(entry, limit)
    if number < 0:
        return None
    revision = _revision(entry, number)
    return None if revision & 1 else KeyFacts(*_create_and_version(entry, number, revision))


def compact_entry(entry: Entry, main: int) -> tuple[Entry | None, bytes]:
    """Return an entry after a compaction, None if nothing remains, and the dropped records.

    A compaction keeps the newest revision up to `main`, unless it is a tombstone below `main`.
    """
    if isinstance(entry, int):
        return (None, _record(entry)) if entry & 1 and entry >> 32 < main else (entry, b"")
    number = _find(entry, bound(main))
    if number < 0:
        return entry, b""
    revision = _revision(entry, number)
    if revision & 1 and revision >> 32 < main:
        number += 1
    if not number:
        return entry, b""
    dropped = bytes(entry[_HEAD_BYTES : _HEAD_BYTES + number * RECORD_BYTES])
    count = (len(entry) - _HEAD_BYTES) // RECORD_BYTES
    if number == count:
        return None, dropped
    first = _revision(entry, number)
    create, _, version = _create_and_version(entry, number, first)
    if number == count - 1:
        return make_entry(first, create, version), dropped
    generation = _HEAD.unpack_from(entry)[2]
    left = bytes(entry[_HEAD_BYTES + number * RECORD_BYTES :])
    return _HEAD.pack(create, version, max(0, generation - number)) + left, dropped


def unpack_revisions(records: bytes) -> list[int]:
    """Return the revisions in dropped records."""
    return [main << 32 | rest for main, rest in _RECORD.iter_unpack(records)]


def _record(revision: int) -> bytes:
    return revision.to_bytes(RECORD_BYTES, "big")


def _revision(entry: bytes | bytearray, number: int) -> int:
    start = _HEAD_BYTES + number * RECORD_BYTES
    return int.from_bytes(entry[start : start + RECORD_BYTES], "big")


def _main(entry: bytes | bytearray, number: int) -> int:
    start = _HEAD_BYTES + number * RECORD_BYTES
    return int.from_bytes(entry[start : start + 8], "big")


def _find(entry: bytes | bytearray, limit: int) -> int:
    """Return the number of the newest record up to a limit, -1 if there is none."""
    low, high = 0, (len(entry) - _HEAD_BYTES) // RECORD_BYTES
    if _revision(entry, high - 1) <= limit:
        return high - 1
    while low < high:
        middle = (low + high) // 2
        if _revision(entry, middle) <= limit:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _create_and_version(
    entry: bytes | bytearray, number: int, revision: int
) -> tuple[int, int, int]:
    create, version, generation = _HEAD.unpack_from(entry)
    if number < generation:
        # An older generation begins after the last tombstone before this record.
        start = _HEAD_BYTES + RECORD_BYTES - 1
        ends = entry[start : start + number * RECORD_BYTES : RECORD_BYTES]
        generation = ends.translate(_TOMBSTONE_BITS).rfind(1) + 1
    if generation:
        return _main(entry, generation), revision, number - generation + 1
    return create, revision, version + number
