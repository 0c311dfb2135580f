"""The store: keys over revisions.

The rules of this module:

- One write transaction that changes something takes one new main revision; its changes get sub
  revisions in order. `revision` is the main revision of the last committed one.
- Changes enter index and backend at once, under the new revision; only the transaction itself reads
  above `revision` before `commit` raises it. A transaction may stay open between turns; the backend
  must not be sealed while it is open: see `is_writing`.
- A write transaction always ends with a commit. Callers perform every check that may refuse a
  request before the first write.
- The store refuses reads below `compacted_revision`. Reads that started before a compaction
  continue, and the compaction keeps the rows they need until they end.
"""

from kvorum.api.codec import key_value
from kvorum.api.errors import COMPACTED, FUTURE_REV, StatusError
from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc.compaction import Compactor
from kvorum.state.mvcc.hashes import HashKV, HashRows
from kvorum.state.mvcc.history import KeyFacts, bound
from kvorum.state.mvcc.index import Index
from kvorum.state.mvcc.observers import Hub, Lessor
from kvorum.state.mvcc.pins import Pins
from kvorum.state.mvcc.ranges import RangeOptions, RangeResult, read_range, visible_run
from kvorum.state.mvcc.slices import Slices, run_to_end
from kvorum.state.mvcc.transaction import WriteTransaction
from kvorum.storage.backend import Backend


class Store:
    """Every key at every revision since the last compaction.

    `restore_store` creates it, also on an empty backend.
    """

    __slots__ = (
        "_hub",
        "_index",
        "_lease_of",
        "_lessor",
        "_pins",
        "_put_row",
        "backend",
        "changes_in_transactions",
        "compacted_revision",
        "compaction",
        "delete_operations",
        "deletes",
        "first_revision",
        "is_writing",
        "limits",
        "put_bytes",
        "ranges",
        "revision",
        "transactions",
        "transactions_of_many",
    )

    def __init__(
        self, backend: Backend, lessor: Lessor, hub: Hub, index: Index, limits: WorkLimits
    ) -> None:
        self.backend = backend
        self.limits = limits
        """The limits of everything that works on these keys."""
        self._lessor = lessor
        self._hub = hub
        self._index = index
        self._pins = Pins()
        # Bind these methods once: a put calls them and little else.
        self._put_row = backend.put_row
        self._lease_of = lessor.lease_of
        self.compaction = Compactor(backend, index, self._pins, limits)
        self.revision = 1
        self.compacted_revision = -1
        self.is_writing = False  # whether a transaction is open, which forbids seals and writes
        # Totals since the start, for metrics. Plain puts cost nothing to count: see `puts`.
        self.first_revision = 1
        self.transactions = 0
        self.transactions_of_many = 0  # transactions of more than one operation, reads included
        self.ranges = 0  # reads inside writes and transactions; others are counted where timed
        self.put_bytes = 0
        self.changes_in_transactions = 0
        self.deletes = 0
        self.delete_operations = 0

    @property
    def puts(self) -> int:
        """The number of puts; every revision that no transaction took is a plain put."""
        plain = self.revision - self.first_revision - self.transactions
        return plain + self.changes_in_transactions - self.deletes

    @property
    def index_bytes(self) -> int:
        """Estimated memory of the index in bytes."""
        return self._index.size_bytes

    @property
    def key_count(self) -> int:
        """The number of keys that exist."""
        return len(self._index.live)

    def count_reads(self, number: int) -> None:
        """Count the reads of one request; etcd's metrics count each read as a range."""
        self.ranges += number
        self.transactions_of_many += number > 1

    # Writing.

    def put(self, key: bytes, value: bytes, lease: int) -> int:
        """Put one key in a transaction of its own; return the new main revision."""
        assert not self.is_writing, "a write transaction is open"
        main = self.revision + 1
        revision = main << 32
        create, version, previous = self._index.put(key, revision)
        kv = key_value(key, create, main, version, value, lease)
        self._put_row(revision, kv, previous)
        held = self._lease_of(key)
        if held != lease:
            if held:
                self._lessor.detach(held, key)
            if lease:
                self._lessor.attach(lease, key)
        self.revision = main
        self.put_bytes += len(key) + len(value)
        if self._hub.is_watched:
            self._hub.publish_change(key, revision, kv, 0 if previous & 1 else previous)
        return main

    def begin(self) -> WriteTransaction:
        """Begin a write transaction, which must be committed before any other write."""
        assert not self.is_writing, "a write transaction is open"
        return WriteTransaction(self, self._index, self.backend, self._lessor, self._hub)

    # Reading.

    def get(self, key: bytes, revision: int = 0) -> bytes | None:
        """Return the encoded KeyValue of a key, None if it does not exist."""
        found = self.revision_of(key, revision)
        return self.backend.row(found) if found else None

    def revision_of(self, key: bytes, revision: int = 0) -> int:
        """Return the revision integer of a key's value, 0 if it does not exist."""
        if revision <= 0 and not self.is_writing:
            return self._index.newest(key)
        return self._index.at(key, bound(self.readable(revision)))

    def facts_of(self, key: bytes, revision: int) -> KeyFacts:
        """Return create revision, revision and version of a key's existing revision integer."""
        facts = self._index.facts(key, revision)
        assert facts is not None and facts.revision == revision, f"{key!r} has no {revision:x}"
        return facts

    def range(self, options: RangeOptions) -> RangeResult:
        """Read a range of any length in one call."""
        return run_to_end(self.range_slices(options))

    def range_slices(self, options: RangeOptions) -> Slices[RangeResult]:
        """Read a range in slices, all at the revision of the first slice."""
        revision = self.revision
        main = self.readable(options.revision)
        self._pins.hold(main)
        try:
            kvs, count, more = yield from read_range(
                self._index, self.backend, options, main, self.limits
            )
        finally:
            self._pins.release(main)
        return RangeResult(kvs, count, more, revision)

    def visible(
        self, first: bytes, end: bytes | None, main: int
    ) -> tuple[list[bytes], list[int], bytes | None]:
        """Check one slice of a range's keys at a main revision that the caller holds.

        Returns the keys that exist, their revision integers, and the start of the rest, None if
        nothing is left.
        """
        return visible_run(self._index, first, end, bound(main), self.limits.slice_keys)

    def hold(self, main: int) -> None:
        """Protect the rows that a read at this main revision sees, until `release`."""
        self._pins.hold(main)

    def release(self, main: int) -> None:
        """Undo one `hold` of this main revision."""
        self._pins.release(main)

    def readable(self, revision: int) -> int:
        """Return the main revision to read at; 0 and below mean the current one.

        Raises StatusError if the revision is compacted or in the future.
        """
        if revision <= 0:
            return self.revision
        if revision > self.revision:
            raise StatusError(FUTURE_REV)
        if revision < self.compacted_revision:
            raise StatusError(COMPACTED)
        return revision

    def row(self, revision: int) -> bytes:
        """Return the stored bytes of a revision integer."""
        return self.backend.row(revision)

    def free_all(self) -> Slices[None]:
        """Free the index, in slices, after another store has replaced this one."""
        return self._index.free_all()

    # Compaction and hashes.

    def compact(self, revision: int) -> None:
        """Schedule a compaction and refuse reads below its revision from now on.

        `compaction` removes the rows in steps.
        """
        if revision <= self.compacted_revision:
            raise StatusError(COMPACTED)
        if revision > self.revision:
            raise StatusError(FUTURE_REV)
        self.compaction.schedule(revision, self.compacted_revision)
        self.compacted_revision = revision

    def hash_kv(self, revision: int) -> HashKV | HashRows:
        """Return the hash of all keys at a revision, 0 for the current one, or the job for it.

        The caller must call `finish_hash` after the job, even if the job failed. Raises StatusError
        if the revision is in the future, or compacted without a kept hash of that compaction.
        """
        # A compaction at revision 0 is possible, but here 0 means the current revision.
        kept = self.compaction.hash_of(revision) if revision else None
        if kept is not None:
            return kept
        main = self.readable(revision)
        compacted = self.compacted_revision
        self._pins.hold(compacted)
        return HashRows.of_revision(self.backend, main, compacted, self.limits.hash_rows_per_scan)

    def finish_hash(self, job: HashRows) -> None:
        """Release the revision that `hash_kv` held for a job, so that compactions can continue."""
        self._pins.release(job.compact_revision)
