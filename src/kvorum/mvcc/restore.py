"""The store as the disk has it: every row is read once, in order.

At the start in one go; when a snapshot was installed in slices, for others wait for the loop.
"""

from collections.abc import Callable
from typing import Final

from kvorum.api.codec import varint
from kvorum.backend import Backend
from kvorum.mvcc.compaction import stored_revisions
from kvorum.mvcc.history import bound
from kvorum.mvcc.index import Index
from kvorum.mvcc.keyvalue import fields_of
from kvorum.mvcc.neighbours import Hub, Lessor
from kvorum.mvcc.slices import Slices
from kvorum.mvcc.store import Store

ROWS_PER_SCAN: Final = 10_000
ROWS_PER_SLICE: Final = 500
_LAST_REVISION: Final = bound((1 << 63) - 1)


def restore_store(
    backend: Backend,
    lessor: Lessor,
    hub: Hub,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """Return the store of a backend; `progress` is told now and then how many rows were read.

    The lessor knows its leases already. The revision is the greatest of all rows and of the
    compactions, scheduled or finished: rows at the greatest revision may have been deleted.
    """
    index = Index()
    leases: dict[bytes, int] = {}
    count = first = 0
    while rows := backend.scan_rows(first, _LAST_REVISION, ROWS_PER_SCAN):
        _read(index, rows, leases)
        first = rows[-1][0] + 1
        count += len(rows)
        if progress is not None:
            progress(count)
    index.restored()
    for key, lease in leases.items():
        lessor.reattach(lease, key)
    return _store(backend, lessor, hub, index)


def restore_slices(backend: Backend, lessor: Lessor, hub: Hub) -> Slices[Store]:
    """Return what `restore_store` does."""
    index = Index()
    leases: dict[bytes, int] = {}
    first = 0
    while rows := backend.scan_rows(first, _LAST_REVISION, ROWS_PER_SLICE):
        _read(index, rows, leases)
        first = rows[-1][0] + 1
        yield
    yield from index.restored_slices()
    for count, (key, lease) in enumerate(leases.items(), 1):
        lessor.reattach(lease, key)
        if count % ROWS_PER_SLICE == 0:
            yield
    return _store(backend, lessor, hub, index)


def _store(backend: Backend, lessor: Lessor, hub: Hub, index: Index) -> Store:
    store = Store(backend, lessor, hub, index)
    finished, scheduled = stored_revisions(backend)
    newest = index.newest_revision >> 32
    store.revision = store.first_revision = max(1, newest, finished, scheduled)
    store.compacted_revision = max(finished, scheduled)
    store.compaction.resume(finished, scheduled)
    backend.end_turn()
    return store


def _read(index: Index, rows: list[tuple[int, bytes]], leases: dict[bytes, int]) -> None:
    """Note rows in the index, and the lease of the newest value of each key."""
    entries = index.entries
    index.newest_revision = rows[-1][0]
    width = wider = 0  # bytes of a main revision; the first revision that needs more
    for revision, kv in rows:
        if not kv:
            continue  # a mark that raises the revision, left by a restored snapshot
        if revision >= wider:
            width = len(varint(revision >> 32))
            wider = 1 << 7 * width + 32
        # Most rows created their key, with a value and no lease: version 1 means that the create
        # revision is the row's own. Looking at four bytes takes a fifth of parsing six fields:
        #   0a length key... 10 create... 18 mod... 20 version 2a length value...
        # If the create revision is shorter, a byte of mod that is not its last stands for 18.
        start = 2 + kv[1]
        value = start + 2 * width + 5
        if kv[1] < 0x80 and value < len(kv) and kv[start + width + 1] == 0x18:
            length = kv[value]
            if length < 0x80:
                end = value + 1 + length
            else:
                end = value + 2 + (length & 0x7F | kv[value + 1] << 7)
            if end == len(kv) and kv[value - 2] == 1 and kv[value - 1] == 0x2A:
                key = kv[2:start]
                if key not in entries and not revision & 1:
                    entries[key] = revision
                    continue
        fields = fields_of(kv)
        index.restore(fields.key, revision, fields.create_revision, fields.version)
        if fields.lease:
            leases[fields.key] = fields.lease
        elif leases:
            leases.pop(fields.key, None)
