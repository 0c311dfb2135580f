"""The store as the disk has it: every row is read once, in order."""

from collections.abc import Callable

from kvorum.backend import Backend
from kvorum.mvcc.compaction import stored_revisions
from kvorum.mvcc.history import bound
from kvorum.mvcc.index import Index
from kvorum.mvcc.keyvalue import fields_of, key_of, lease_of
from kvorum.mvcc.neighbours import Hub, Lessor
from kvorum.mvcc.store import Store

ROWS_PER_SCAN = 5_000
_LAST_REVISION = bound((1 << 63) - 1)


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
    count = 0
    newest = 0
    first = 0
    while rows := backend.scan_rows(first, _LAST_REVISION, ROWS_PER_SCAN):
        _read(index, rows, leases)
        newest = rows[-1][0]
        first = newest + 1
        count += len(rows)
        if progress is not None:
            progress(count)
    index.restored()
    for key, lease in leases.items():
        lessor.reattach(lease, key)
    store = Store(backend, lessor, hub, index)
    finished, scheduled = stored_revisions(backend)
    store.revision = store.first_revision = max(1, newest >> 32, finished, scheduled)
    store.compacted_revision = max(finished, scheduled)
    store.compaction.resume(finished, scheduled)
    backend.end_turn()
    return store


def _read(index: Index, rows: list[tuple[int, bytes]], leases: dict[bytes, int]) -> None:
    for revision, kv in rows:
        if not kv:
            continue  # a mark that raises the revision, left by a restored snapshot
        key = key_of(kv)
        if revision & 1:
            index.restore(key, revision, 0, 0)
            leases.pop(key, None)
            continue
        if index.is_known(key):
            index.restore(key, revision, 0, 0)
        else:
            fields = fields_of(kv)
            index.restore(key, revision, fields.create_revision, fields.version)
        lease = lease_of(kv)
        if lease:
            leases[key] = lease
        else:
            leases.pop(key, None)
