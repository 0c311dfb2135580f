"""A write transaction: several changes under one main revision.

`Store.begin` creates it and `commit` ends it. Its own reads include its writes; other reads do not
before the commit. It deletes many keys in slices, between which other requests may read. There is
no rollback: the caller performs every check that may refuse a request beforehand.
"""

from typing import TYPE_CHECKING

from kvorum.api.codec import key_value, tombstone
from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.index import Index, range_end
from kvorum.state.mvcc.observers import Hub, Lessor
from kvorum.state.mvcc.ranges import RangeOptions, RangeResult, read_range
from kvorum.state.mvcc.slices import Slices, free_in_slices, run_to_end
from kvorum.state.mvcc.watch.history import Change
from kvorum.storage.backend import Backend

if TYPE_CHECKING:
    from kvorum.state.mvcc.store import Store

Deleted = list[tuple[bytes, int]]
"""Deleted keys in order, each with the revision integer of its last value."""


class WriteTransaction:
    """Changes that become visible together."""

    __slots__ = (
        "_backend",
        "_changes",
        "_hub",
        "_index",
        "_lessor",
        "_main",
        "_next",
        "_operations",
        "_store",
    )

    def __init__(
        self, store: "Store", index: Index, backend: Backend, lessor: Lessor, hub: Hub
    ) -> None:
        self._store = store
        self._index = index
        self._backend = backend
        self._lessor = lessor
        self._hub = hub
        self._main = store.revision + 1
        self._next = self._main << 32  # the revision of the next change
        self._changes: list[Change] = []
        self._operations = 0  # puts, deletions and reads; for metrics
        store.is_writing = True

    @property
    def revision(self) -> int:
        """The main revision that this transaction sees; its own new one after its first change."""
        return self._next - 1 >> 32

    def put(self, key: bytes, value: bytes, lease: int) -> None:
        """Put a key."""
        revision = self._next
        create, version, previous = self._index.put(key, revision)
        kv = key_value(key, create, self._main, version, value, lease)
        self._backend.put_row(revision, kv, previous)
        held = self._lessor.lease_of(key)
        if held != lease:
            if held:
                self._lessor.detach(held, key)
            if lease:
                self._lessor.attach(lease, key)
        self._note(key, revision, kv, previous)
        self._next = revision + 2
        self._operations += 1
        self._store.put_bytes += len(key) + len(value)

    def delete_range(self, key: bytes, end: bytes) -> Deleted:
        """Delete a range of any length in one call."""
        return run_to_end(self.delete_range_slices(key, end))

    def delete_one(self, key: bytes) -> int:
        """Delete a key; return its last value's revision integer, 0 if it does not exist."""
        self._store.delete_operations += 1
        self._operations += 1
        return self._delete([key])[0] if self._index.newest(key) else 0

    def delete_range_slices(self, key: bytes, end: bytes) -> Slices[Deleted]:
        """Delete every key of a range, in order; return keys and their last values' revisions."""
        stop = range_end(key, end)
        self._store.delete_operations += 1
        self._operations += 1
        deleted: Deleted = []
        slice_keys = self._store.limits.slice_keys
        while keys := self._index.live.run(key, stop, slice_keys):
            deleted += zip(keys, self._delete(keys), strict=True)
            if len(keys) < slice_keys:
                break
            yield
        return deleted

    def delete_keys_slices(self, keys: list[bytes]) -> Slices[None]:
        """Delete sorted keys, skipping those that do not exist."""
        self._store.delete_operations += len(keys)
        self._operations += len(keys)
        slice_keys = self._store.limits.slice_keys
        for start in range(0, len(keys), slice_keys):
            if start:
                yield
            part = keys[start : start + slice_keys]
            self._delete([key for key in part if self._index.newest(key)])

    def get(self, key: bytes) -> bytes | None:
        """Return the encoded KeyValue of a key, None if it does not exist."""
        self.count_read()
        revision = self._index.newest(key)
        return self._backend.row(revision) if revision else None

    def range(self, options: RangeOptions) -> RangeResult:
        """Read a range of any length in one call."""
        return run_to_end(self.range_slices(options))

    def range_slices(self, options: RangeOptions) -> Slices[RangeResult]:
        """Read a range in slices; the caller must not write until they end."""
        self.count_read()
        main = self._readable(options)
        kvs, count, more = yield from read_range(
            self._index, self._backend, options, main, self._store.limits
        )
        return RangeResult(kvs, count, more, self.revision)

    def count_read(self) -> None:
        """Count one read of this transaction, for metrics."""
        self._operations += 1
        self._store.ranges += 1

    def commit(self) -> int:
        """Make the changes visible to all readers; return the current main revision."""
        store = self._store
        assert store.is_writing and store.revision == self._main - 1, "committed twice"
        store.is_writing = False
        store.transactions_of_many += self._operations > 1
        if self._changes:
            store.revision = self._main
            store.transactions += 1
            store.changes_in_transactions += len(self._changes)
            if self._hub.is_watched:
                self._hub.publish(self._main, self._changes)
                self._changes = []  # the hub owns the old list now
        return store.revision

    def end_slices(self) -> Slices[None]:
        """Free the changes in slices after the commit; needed only if they may be many."""
        return free_in_slices(self._changes, self._store.limits.slice_freed_items)

    def _readable(self, options: RangeOptions) -> int:
        if options.revision <= 0:
            return self.revision
        return self._store.readable(options.revision)

    def _delete(self, keys: list[bytes]) -> list[int]:
        """Delete live keys, in order; return the revisions of their last values."""
        if not keys:
            return []
        self._store.deletes += len(keys)
        revision = self._next | 1
        before = self._index.delete_run(keys, revision)
        kvs = list(map(tombstone, keys))
        revisions = range(revision, revision + 2 * len(keys), 2)
        self._backend.put_rows(revisions, kvs, before)
        self._lessor.detach_all(keys)
        if max(before) >> 32 < self._main:
            self._changes += zip(keys, revisions, kvs, before, strict=True)
        else:
            # This transaction put some of the keys.
            for key, revision, kv, previous in zip(keys, revisions, kvs, before, strict=True):
                self._note(key, revision, kv, previous)
        self._next = revisions[-1] + 1
        return before

    def _note(self, key: bytes, revision: int, kv: bytes, previous: int) -> None:
        if previous >> 32 == self._main:
            # Watchers compare with the state before the transaction, which changed the key twice.
            previous = self._index.at(key, bound(self._main - 1))
        elif previous & 1:
            previous = 0
        self._changes.append((key, revision, kv, previous))
