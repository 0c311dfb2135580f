"""Restores the store from the disk by reading every row once, in order.

A starting member does this in one go. A member that installs a snapshot does it in slices, because
other requests wait for the loop, and from the image, while another process converts the image into
a database.
"""

from collections.abc import Callable, Iterator
from typing import Final

from kvorum.api.codec import varint
from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc.compaction import stored_revisions
from kvorum.state.mvcc.history import RECORD_BYTES, bound
from kvorum.state.mvcc.index import Index
from kvorum.state.mvcc.keyvalue import fields_of
from kvorum.state.mvcc.observers import Hub, Lessor
from kvorum.state.mvcc.slices import Slices
from kvorum.state.mvcc.store import Store
from kvorum.storage.backend import Backend, CorruptionError
from kvorum.storage.backend.encoding import open_rows, parse_row_key, row_key
from kvorum.storage.backend.native import NativeRows, Row

_LAST_REVISION: Final = bound((1 << 63) - 1)


def restore_store(
    backend: Backend,
    lessor: Lessor,
    hub: Hub,
    limits: WorkLimits,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """Return the store of a backend; call `progress` now and then with the count of rows read.

    The lessor must have its leases already. The store's revision is the greatest of all rows and
    of the scheduled and finished compactions: a compaction may have deleted the newest rows.
    """
    index = Index(limits)
    leases: dict[bytes, int] = {}
    count = 0
    rows_per_scan = limits.restore_rows_per_scan
    for rows in _read_pages(backend, index, leases, rows_per_scan):
        count += rows
        if progress is not None:
            progress(count)
    for rows in _read_all(backend, index, leases, rows_per_scan):
        count += rows
        if progress is not None:
            progress(count)
    if backend.is_flushed and count != (stored := backend.count_stored_rows()):
        raise CorruptionError(
            backend.path, "bucket key", f"it has {stored} rows, {count} were read"
        )
    index.build_sets()
    for key, lease in leases.items():
        lessor.reattach(lease, key)
    return _store(backend, lessor, hub, index, limits)


class RowIndex:
    """The index built from all rows, and the lease of each key's newest value."""

    __slots__ = ("index", "leases")

    def __init__(self, limits: WorkLimits) -> None:
        self.index = Index(limits)
        self.leases: dict[bytes, int] = {}


def note_slices(
    pieces: Iterator[list[Row]], native: NativeRows | None, limits: WorkLimits
) -> Slices[RowIndex]:
    """Build the index from pieces of rows that are in order and already checked."""
    noted = RowIndex(limits)
    index, leases = noted.index, noted.leases
    for sealed in pieces:
        if not sealed:
            continue
        if native is None or not native.note_rows(index.entries, leases, sealed):
            _read(index, open_rows(sealed), leases)
        index.newest_revision = parse_row_key(sealed[-1][0])
        yield
    return noted


def restore_slices(
    backend: Backend,
    lessor: Lessor,
    hub: Hub,
    limits: WorkLimits,
    noted: RowIndex | None = None,
) -> Slices[Store]:
    """Restore the store in slices; `noted`, if given, replaces reading the rows."""
    rows_per_slice = limits.restore_rows_per_slice
    if noted is None:
        noted = RowIndex(limits)
        for _ in _read_all(backend, noted.index, noted.leases, rows_per_slice):
            yield
    index, leases = noted.index, noted.leases
    newest = backend.scan_rows(index.newest_revision, _LAST_REVISION, 2)
    assert len(newest) == (1 if index.newest_revision else 0), (
        f"the newest row that was noted is {index.newest_revision}, but not the backend's"
    )
    yield from index.build_sets_in_slices()
    for count, (key, lease) in enumerate(leases.items(), 1):
        lessor.reattach(lease, key)
        if count % rows_per_slice == 0:
            yield
    return _store(backend, lessor, hub, index, limits)


def _store(backend: Backend, lessor: Lessor, hub: Hub, index: Index, limits: WorkLimits) -> Store:
    store = Store(backend, lessor, hub, index, limits)
    finished, scheduled = stored_revisions(backend)
    newest = index.newest_revision >> 32
    store.revision = store.first_revision = max(1, newest, finished, scheduled)
    store.compacted_revision = max(finished, scheduled)
    store.compaction.resume(finished, scheduled)
    backend.end_turn()
    return store


def _read_pages(
    backend: Backend, index: Index, leases: dict[bytes, int], limit: int
) -> Iterator[int]:
    """Add rows page by page in one turn, up to the first unusual one; yield counts of rows."""
    pages = backend.row_pages()
    while pages is not None:
        count, newest = pages.note(index.entries, leases, limit)
        if not count:
            return
        index.newest_revision = newest
        yield count


def _read_all(
    backend: Backend, index: Index, leases: dict[bytes, int], limit: int
) -> Iterator[int]:
    """Add the rows after the index's newest, `limit` at a time; yield counts of rows."""
    native = backend.native
    first = index.newest_revision + 1 if index.newest_revision else 0
    if native is not None and backend.is_flushed:
        while sealed := backend.scan_sealed_rows(row_key(first), limit):
            if not native.note_rows(index.entries, leases, sealed):
                break
            index.newest_revision = parse_row_key(sealed[-1][0])
            first = index.newest_revision + 1
            yield len(sealed)
    while rows := backend.scan_rows(first, _LAST_REVISION, limit):
        _read(index, rows, leases)
        first = rows[-1][0] + 1
        yield len(rows)


def _read(index: Index, rows: list[tuple[int, bytes]], leases: dict[bytes, int]) -> None:
    """Add rows to the index, and record the lease of each key's newest value."""
    entries = index.entries
    index.newest_revision = rows[-1][0]
    width = wider = 0  # bytes of a main revision; the first revision that needs more
    for revision, kv in rows:
        if not kv:
            continue  # an empty row that raises the revision, left by a restored snapshot
        if revision >= wider:
            width = len(varint(revision >> 32))
            wider = 1 << 7 * width + 32
        start = 2 + kv[1]
        if kv[1] < 0x80 and not revision & 1:
            key = kv[2:start]
            known = entries.get(key)
            if known is None:
                if _is_first(kv, start, width):
                    entries[key] = revision
                    continue
            elif (
                isinstance(known, bytearray)
                and not known[-1] & 1
                and not leases
                and _ends_with_value(kv, start)
            ):
                # Append one record to a long history; the code below takes three times as long.
                known += revision.to_bytes(RECORD_BYTES, "big")
                continue
        fields = fields_of(kv)
        index.restore(fields.key, revision, fields.create_revision, fields.version)
        if fields.lease:
            leases[fields.key] = fields.lease
        elif leases:
            leases.pop(fields.key, None)


def _is_first(kv: bytes, start: int, width: int) -> bool:
    """Return whether a row certainly created its key, with a value and no lease.

    Version 1 means that the create revision is the row's own. Checking four bytes takes a fifth of
    the time of parsing six fields:

        0a length key... 10 create... 18 mod... 20 version 2a length value...

    If the create revision is shorter than `width`, the byte compared with 18 belongs to mod and is
    not its last one, so it cannot be 18.
    """
    value = start + 2 * width + 5
    if value >= len(kv) or kv[start + width + 1] != 0x18:
        return False
    length, begin = kv[value], value + 1
    if length >= 0x80:
        length, begin = length & 0x7F | kv[begin] << 7, value + 2
    return begin + length == len(kv) and kv[value - 2] == 1 and kv[value - 1] == 0x2A


def _ends_with_value(kv: bytes, offset: int) -> bool:
    """Return whether a value and no lease follows the key, which ends at the offset."""
    length = len(kv)
    while offset < length and kv[offset] != 0x2A:
        offset += 1
        while kv[offset] & 0x80:
            offset += 1
        offset += 1
    offset += 1
    size = shift = 0
    while offset < length:
        byte = kv[offset]
        offset += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return offset + size == length
        shift += 7
    return False
