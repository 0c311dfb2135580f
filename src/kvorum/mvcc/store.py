"""The store: keys over revisions.

The rules of this module:

- One write transaction that changes something takes one new main revision; its changes get sub
  revisions in order. `revision` is the main revision of the last committed one.
- Changes go into index and backend at once, under the new revision; nobody else reads above
  `revision` before `commit` raises it. A transaction may stay open between turns, and the backend
  may not be sealed meanwhile: see `is_writing`.
- A write transaction always ends with a commit. Whatever may refuse a request is checked before.
- Reads below `compacted_revision` are refused; those that began before a compaction go on, and
  what they need stays until they are done.
"""

from kvorum.api.codec import key_value
from kvorum.api.errors import COMPACTED, FUTURE_REV, StatusError
from kvorum.backend import Backend
from kvorum.mvcc.compaction import Compactor
from kvorum.mvcc.hashes import HashKV, HashRows
from kvorum.mvcc.history import Facts, bound
from kvorum.mvcc.index import Index
from kvorum.mvcc.neighbours import Hub, Lessor
from kvorum.mvcc.pins import Pins
from kvorum.mvcc.ranges import RangeOptions, RangeResult, read_range, visible_run
from kvorum.mvcc.slices import KEYS_PER_SLICE, Slices, run_to_end
from kvorum.mvcc.transaction import WriteTransaction


class Store:
    """Every key at every revision since the last compaction.

    Made by `restore_store`, also on an empty backend.
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
        "put_bytes",
        "ranges",
        "revision",
        "transactions",
        "transactions_of_many",
    )

    def __init__(self, backend: Backend, lessor: Lessor, hub: Hub, index: Index) -> None:
        self.backend = backend
        self._lessor = lessor
        self._hub = hub
        self._index = index
        self._pins = Pins()
        # Bound once: a put calls these and little else.
        self._put_row = backend.put_row
        self._lease_of = lessor.lease_of
        self.compaction = Compactor(backend, index, self._pins)
        self.revision = 1
        self.compacted_revision = -1
        self.is_writing = False  # whether a transaction is open; no seal, no other write then
        # For metrics: what was done since the start. Plain puts cost nothing to count.
        self.first_revision = 1
        self.transactions = 0
        self.transactions_of_many = 0  # those with more than one operation, reads included
        self.ranges = 0  # those of writes and transactions; others are counted where they are timed
        self.put_bytes = 0
        self.changes_in_transactions = 0
        self.deletes = 0
        self.delete_operations = 0

    @property
    def puts(self) -> int:
        """How many puts there were: every revision that no transaction took is one."""
        plain = self.revision - self.first_revision - self.transactions
        return plain + self.changes_in_transactions - self.deletes

    @property
    def index_bytes(self) -> int:
        """Roughly how much memory the index takes."""
        return self._index.size_bytes

    @property
    def key_count(self) -> int:
        """How many keys exist."""
        return len(self._index.live)

    def count_reads(self, number: int) -> None:
        """Count the reads of one request, each of which is a range to etcd."""
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
        """Begin to write; the transaction must be committed before anything else is written."""
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

    def facts_of(self, key: bytes, revision: int) -> Facts:
        """Return create revision, revision and version of a key that has this revision integer."""
        facts = self._index.facts(key, revision)
        assert facts is not None and facts.revision == revision, f"{key!r} has no {revision:x}"
        return facts

    def range(self, options: RangeOptions) -> RangeResult:
        """Read a range at once, however long it is."""
        return run_to_end(self.range_slices(options))

    def range_slices(self, options: RangeOptions) -> Slices[RangeResult]:
        """Read a range in slices, all at the revision of the first one."""
        revision = self.revision
        main = self.readable(options.revision)
        self._pins.hold(main)
        try:
            kvs, count, more = yield from read_range(self._index, self.backend, options, main)
        finally:
            self._pins.release(main)
        return RangeResult(kvs, count, more, revision)

    def visible(
        self, first: bytes, end: bytes | None, main: int
    ) -> tuple[list[bytes], list[int], bytes | None]:
        """Look at a slice's worth of a range's keys at a main revision, which the caller holds.

        Returns those that exist, their revision integers, and where the rest begins; None if
        nothing is left.
        """
        return visible_run(self._index, first, end, bound(main), KEYS_PER_SLICE)

    def hold(self, main: int) -> None:
        """Keep what a read at this main revision sees, until `release`."""
        self._pins.hold(main)

    def release(self, main: int) -> None:
        """Release what `hold` kept."""
        self._pins.release(main)

    def readable(self, revision: int) -> int:
        """Return the main revision to read at, 0 and below meaning the current one.

        Raises StatusError if it is compacted or in the future.
        """
        if revision <= 0:
            return self.revision
        if revision > self.revision:
            raise StatusError(FUTURE_REV)
        if revision < self.compacted_revision:
            raise StatusError(COMPACTED)
        return revision

    def row(self, revision: int) -> bytes:
        """Return the stored bytes under a revision integer."""
        return self.backend.row(revision)

    def emptied(self) -> Slices[None]:
        """Free the index of a store that another has replaced."""
        return self._index.emptied()

    # Compaction and hashes.

    def compact(self, revision: int) -> None:
        """Forget what only readers below a revision could see.

        Reads below it are refused from now on; `compaction` frees the space, in steps.
        """
        if revision <= self.compacted_revision:
            raise StatusError(COMPACTED)
        if revision > self.revision:
            raise StatusError(FUTURE_REV)
        self.compaction.schedule(revision, self.compacted_revision)
        self.compacted_revision = revision

    def hash_kv(self, revision: int) -> HashKV | HashRows:
        """Return the hash of all keys at a revision, 0 for the current one, or the job for it.

        After the job, even if it failed, `hash_ended` must be called. Raises StatusError if the
        revision is compacted, unless that compaction's hash is kept, or in the future.
        """
        # A compaction at revision 0 is possible, too, but here 0 means the current one.
        kept = self.compaction.hash_of(revision) if revision else None
        if kept is not None:
            return kept
        main = self.readable(revision)
        compacted = self.compacted_revision
        self._pins.hold(compacted)
        return HashRows.of_revision(self.backend, main, compacted)

    def hash_ended(self, job: HashRows) -> None:
        """Let compactions that waited for a job of `hash_kv` go on."""
        self._pins.release(job.compact_revision)
