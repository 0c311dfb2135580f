"""A store on a disk that may lose power, beside a list of all events that may not.

Operations are kept as a log, as a member keeps them: after a crash the store must be what the
entries up to its consistent index made of it, and the rest is applied again.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvorum.api.errors import COMPACTED, FUTURE_REV, StatusError
from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.state.lease import Lessor
from kvorum.state.mvcc import key_changes
from kvorum.state.mvcc.hashes import HashKV, HashRows
from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.ranges import RangeOptions, RangeResult
from kvorum.state.mvcc.restore import restore_store
from kvorum.state.mvcc.store import Store
from kvorum.state.mvcc.transaction import WriteTransaction
from kvorum.state.mvcc.watch.history import Change
from kvorum.storage.backend import Backend, CommitFlush, StageFlush, open_backend
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles
from tests.state.mvcc.model import Model

DIRECTORY = "/database"
KEYS = st.sampled_from([bytes([letter]) for letter in b"abcdefgh"])
ENDS = st.one_of(st.sampled_from([b"", b"\0"]), KEYS)
VALUES = st.binary(max_size=2)
LEASES = st.sampled_from([0, 0, 7, 8])
RECENT = st.integers(-1, 12)  # how far back a revision is; -1 is in the future

OPTIONS = st.builds(
    RangeOptions,
    key=KEYS,
    range_end=ENDS,
    limit=st.integers(-1, 6),
    revision=st.just(0),
    sort_order=st.integers(0, 2),
    sort_target=st.integers(0, 4),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False, False, True]),
    min_mod_revision=st.sampled_from([0, 0, 0, 3, 9]),
    max_mod_revision=st.sampled_from([0, 0, 0, 7, 15]),
    min_create_revision=st.sampled_from([0, 0, 0, 3, 9]),
    max_create_revision=st.sampled_from([0, 0, 0, 7, 15]),
)
TXN_PARTS = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES, LEASES),
    st.tuples(st.just("delete"), KEYS, ENDS),
    st.tuples(st.just("range"), OPTIONS),
)

PUTS = st.tuples(st.just("put"), KEYS, VALUES, LEASES)
ENTRIES = st.one_of(PUTS, PUTS, PUTS, st.tuples(st.just("delete"), KEYS, ENDS))


class Recorder:
    """A hub that remembers what was published to it."""

    def __init__(self) -> None:
        self.is_watched = True
        self.published: list[tuple[int, list[Change]]] = []

    def publish(self, main: int, changes: Sequence[Change]) -> None:
        self.published.append((main, list(changes)))

    def publish_change(self, key: bytes, revision: int, kv: bytes, previous: int) -> None:
        self.published.append((revision >> 32, [(key, revision, kv, previous)]))


def small_slices(keys: int) -> WorkLimits:
    """Return limits with slices of so many keys."""
    return WorkLimits(slice_keys=keys, compaction_keys_per_step=keys, compaction_rows_per_step=keys)


def set_slice(store: Store, keys: int) -> None:
    """Set the size of the slices of a store, in keys."""
    store.limits = store._index._limits = store.compaction._limits = small_slices(keys)
    # So few that reads in the past find some changes and lack others.
    key_changes.KEPT = 3 * keys


Write = Generator[None, None, object]


class StoreMachine(RuleBasedStateMachine):
    """Anything a member does with a store, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.files.sync_directory("/")
        self.environments = MemoryEnvironments(self.files)
        # Every entry: what it does, and what it answered when it was first applied.
        self.log: list[tuple[str, tuple[object, ...]]] = []
        self.model = Model()
        self.start()
        for lease in (7, 8):
            self.execute("grant", (lease,))

    def start(self) -> None:
        self.backend = self.open_backend()
        self.lessor = Lessor(self.backend, PRODUCTION)
        self.lessor.restore()
        self.hub = Recorder()
        self.store = self.restore_store()
        set_slice(self.store, 2)
        self.flush: StageFlush | CommitFlush | None = None
        self.write: tuple[Write, str, tuple[object, ...]] | None = None
        self.reads: list[tuple[Generator[None, None, RangeResult], object]] = []
        self.jobs: list[tuple[HashRows, int]] = []
        self.compaction_job: HashRows | None = None

    # What planted mistakes replace.

    def open_backend(self) -> Backend:
        return open_backend(self.files, self.environments, DIRECTORY)

    def restore_store(self) -> Store:
        return restore_store(self.backend, self.lessor, self.hub, PRODUCTION)

    # Entries.

    def execute(self, kind: str, arguments: tuple[object, ...]) -> None:
        """Append an entry to the log and apply it."""
        self.log.append((kind, arguments))
        self.apply(kind, arguments)

    def apply(self, kind: str, arguments: tuple[object, ...]) -> None:
        write = self.begin(kind, arguments)
        try:
            while True:
                next(write)
        except StopIteration as end:
            self.check_applied(kind, arguments, end.value)

    def begin(self, kind: str, arguments: tuple[object, ...]) -> Write:
        begin: Callable[..., Write] = getattr(self, f"apply_{kind}")
        return begin(*arguments)

    def check_applied(self, kind: str, arguments: tuple[object, ...], result: object) -> None:
        """Compare what the store did with what the model does."""
        self.backend.set_applied(self.backend.applied_index + 1, 1)
        if kind == "grant":
            return
        before, known = self.model.revision, len(self.model.events)
        expected = self.model.apply(kind, arguments)
        assert result == expected, (kind, arguments)
        assert self.store.revision == self.model.revision
        published, self.hub.published = self.hub.published, []
        if self.model.revision > before:
            state = self.model.state(before)
            changes = [
                (
                    event.key,
                    event.revision,
                    event.row,
                    state[event.key].revision if event.key in state else 0,
                )
                for event in self.model.events[known:]
            ]
            assert published == [(self.model.revision, changes)]
        else:
            assert published == []

    def apply_grant(self, lease: int) -> Write:
        self.lessor.grant(lease, 60, 0.0)
        return None
        yield

    def apply_put(self, key: bytes, value: bytes, lease: int) -> Write:
        return self.store.put(key, value, lease)
        yield

    def apply_delete(self, key: bytes, end: bytes) -> Write:
        transaction = self.store.begin()
        deleted = yield from transaction.delete_range_slices(key, end)
        transaction.commit()
        return deleted

    def apply_txn(self, parts: tuple[tuple[Any, ...], ...]) -> Write:
        transaction = self.store.begin()
        results: list[object] = []
        for part in parts:
            results.append((yield from self.execute_part(transaction, *part)))
            yield
        transaction.commit()
        return results

    def execute_part(self, transaction: WriteTransaction, name: str, *rest: Any) -> Write:
        if name == "put":
            transaction.put(*rest)
            return None
        if name == "delete":
            return (yield from transaction.delete_range_slices(*rest))
        return answer((yield from transaction.range_slices(*rest)))

    def apply_compact(self, main: int) -> Write:
        return refusal(lambda: self.store.compact(main))
        yield

    # Rules: entries.

    @property
    def is_idle(self) -> bool:
        return self.write is None

    @precondition(lambda self: self.is_idle)
    @rule(entries=st.lists(ENTRIES, min_size=1, max_size=6))
    def write_some(self, entries: list[tuple[Any, ...]]) -> None:
        for kind, *arguments in entries:
            self.execute(kind, tuple(arguments))

    @precondition(lambda self: self.is_idle)
    @rule(
        kind=st.sampled_from(["delete", "txn"]),
        key=KEYS,
        end=ENDS,
        parts=st.lists(TXN_PARTS, max_size=4),
        keys=st.integers(1, 4),
    )
    def begin_write(self, kind: str, key: bytes, end: bytes, parts: list[Any], keys: int) -> None:
        set_slice(self.store, keys)
        arguments: tuple[object, ...] = (key, end) if kind == "delete" else (tuple(parts),)
        self.log.append((kind, arguments))
        self.write = (self.begin(kind, arguments), kind, arguments)

    @precondition(lambda self: self.write is not None)
    @rule(steps=st.integers(1, 9))
    def go_on_writing(self, steps: int) -> None:
        assert self.write is not None
        write, kind, arguments = self.write
        try:
            for _ in range(steps):
                next(write)
        except StopIteration as end:
            self.write = None
            self.check_applied(kind, arguments, end.value)

    @precondition(lambda self: self.is_idle)
    @rule(back=st.one_of(st.integers(0, 3), RECENT))
    def compact(self, back: int) -> None:
        self.execute("compact", (self.model.revision - back,))

    # Rules: reads.

    @rule(options=OPTIONS, back=RECENT, is_old=st.booleans(), keys=st.integers(1, 4))
    def read(self, options: RangeOptions, back: int, is_old: bool, keys: int) -> None:
        set_slice(self.store, keys)
        if is_old:
            options = options._replace(revision=max(0, self.model.revision - back))
        refused = self.model.check(options.revision)
        assert refusal(lambda: self.store.readable(options.revision)) == refused
        if refused is None:
            expected = self.model.range(
                options, options.revision or self.model.revision, self.model.revision
            )
            assert answer(self.store.range(options)) == expected
            slices = self.store.range_slices(options)
            if not self.has_ended(slices, 1, expected):
                self.reads.append((slices, expected))

    @precondition(lambda self: self.reads)
    @rule(data=st.data(), steps=st.integers(1, 9), is_closed=st.booleans())
    def go_on_reading(self, data: st.DataObject, steps: int, is_closed: bool) -> None:
        number = data.draw(st.integers(0, len(self.reads) - 1))
        slices, expected = self.reads[number]
        if self.has_ended(slices, steps, expected):
            del self.reads[number]
        elif is_closed:
            slices.close()
            del self.reads[number]

    def has_ended(
        self, slices: Generator[None, None, RangeResult], steps: int, expected: object
    ) -> bool:
        result = None
        try:
            for _ in range(steps):
                next(slices)
        except StopIteration as end:
            result = end.value
        assert result is None or answer(result) == expected
        return result is not None

    @rule(key=KEYS, back=RECENT, limit=st.integers(1, 20))
    def look(self, key: bytes, back: int, limit: int) -> None:
        current = self.model.state(self.model.revision).get(key)
        assert self.store.get(key) == (current.row if current else None)
        assert self.store.revision_of(key) == (current.revision if current else 0)
        main = self.model.revision - back
        if main > 0 and self.model.check(main) is None:
            event = self.model.state(main).get(key)
            assert self.store.get(key, main) == (event.row if event else None)
        # Before it is cleared, the compacted revision may hold more than will be left of it.
        first = max(0, main, self.model.compacted + self.store.compaction.is_pending)
        rows = [row for row in self.model.rows() if row[0] >> 32 >= first]
        last = bound(self.model.revision)
        assert self.backend.scan_rows(first << 32, last, limit) == rows[:limit]
        self.backend.end_turn()

    # Rules: compaction and hashes.

    @precondition(lambda self: self.store.compaction.is_pending)
    @rule(steps=st.integers(1, 40), keys=st.integers(1, 4))
    def clear(self, steps: int, keys: int) -> None:
        set_slice(self.store, keys)
        if self.compaction_job is not None:
            self.hash_compaction(self.compaction_job)
        for _ in range(steps):
            job = self.store.compaction.step()
            if job is not None:
                self.compaction_job = job

    def hash_compaction(self, job: HashRows) -> None:
        value = job.run(self.files, self.environments)
        expected = self.model.hash_kv(job.revision, job.compact_revision, is_compaction=True)
        assert value == expected
        self.store.compaction.take_hash(job, value)
        self.compaction_job = None

    @rule(back=RECENT)
    def begin_hash(self, back: int) -> None:
        main = max(0, self.model.revision - back)
        kept = {each.revision: each for each in self.store.compaction.hashes()}
        if main not in kept and (refused := self.model.check(main)) is not None:
            assert refusal(lambda: self.store.hash_kv(main)) == refused
            return
        found = self.store.hash_kv(main)
        if isinstance(found, HashKV):
            assert found == kept[main]
            previous = found.compact_revision
            expected = self.model.hash_kv(main, previous, is_compaction=True)
            assert found == HashKV(expected, main, previous)
        else:
            assert found.revision == (main or self.model.revision)
            assert found.compact_revision == self.model.compacted
            self.jobs.append((found, self.model.hash_kv(found.revision, self.model.compacted)))

    @precondition(lambda self: self.jobs)
    @rule()
    def finish_hash(self) -> None:
        job, expected = self.jobs.pop()
        assert job.run(self.files, self.environments) == expected
        self.store.finish_hash(job)

    # Rules: the way to the disk.

    @precondition(lambda self: self.flush is not None or not self.store.is_writing)
    @rule(steps=st.integers(1, 4))
    def go_on_flushing(self, steps: int) -> None:
        for _ in range(steps):
            flush = self.flush
            if isinstance(flush, StageFlush):
                self.flush = self.backend.take_staged(flush.run(self.files, self.environments))
            elif isinstance(flush, CommitFlush):
                self.backend.take_committed(flush.run(self.files, self.environments))
                self.flush = None
            elif not self.store.is_writing:
                self.flush = self.backend.seal()

    @rule(is_cut_in_commit=st.booleans(), survives=st.booleans())
    def crash(self, is_cut_in_commit: bool, survives: bool) -> None:
        durable = self.backend.durable_index
        if is_cut_in_commit and isinstance(self.flush, CommitFlush):
            self.cut_commit(self.flush)
        files = self.files.after_power_cut(lambda: survives)
        self.environments = self.environments.after_power_cut(files, lambda: survives)
        self.files = files
        for slices, _ in self.reads:
            slices.close()
        applied = self.model
        self.start()
        assert self.backend.applied_index >= durable, "what was durable is lost"
        # The state is that of the entries up to the index, and no others.
        log, self.log = self.log, self.log[: self.backend.applied_index]
        self.model = Model()
        for kind, arguments in self.log:
            if kind != "grant":
                self.model.apply(kind, arguments)
        self.check_everything()
        for kind, arguments in log[self.backend.applied_index :]:
            self.log.append((kind, arguments))
            self.apply(kind, arguments)
        assert self.model.events[: len(applied.events)] == applied.events

    def cut_commit(self, flush: CommitFlush) -> None:
        class PowerCutError(Exception):
            pass

        def cut(_: object) -> None:
            raise PowerCutError

        self.files.before = cut
        try:
            flush.run(self.files, self.environments)
        except PowerCutError:
            pass
        else:
            raise AssertionError("a commit does not show itself")

    # What always holds.

    @invariant()
    def revisions_agree(self) -> None:
        assert self.store.revision == self.model.revision
        assert self.store.compacted_revision == self.model.compacted
        everything = RangeOptions(b"\0", b"\0", count_only=True)
        assert self.store.range(everything).count == len(self.model.state(self.model.revision))

    @precondition(lambda self: self.is_idle)
    @invariant()
    def leases_agree(self) -> None:
        state = self.model.state(self.model.revision)
        for letter in b"abcdefgh":
            event = state.get(bytes([letter]))
            lease = event.kv.lease if event is not None and event.kv is not None else 0
            assert self.lessor.lease_of(bytes([letter])) == lease

    def check_everything(self) -> None:
        """Read the state at every revision."""
        self.revisions_agree()
        self.leases_agree()
        for main in range(max(1, self.model.compacted), self.model.revision + 1):
            options = RangeOptions(b"\0", b"\0", revision=main)
            expected = self.model.range(options, main, self.model.revision)
            assert answer(self.store.range(options)) == expected

    def teardown(self) -> None:
        if self.write is not None:
            self.go_on_writing(10_000)
        while self.store.compaction.is_pending and not self.reads and not self.jobs:
            self.clear(9, 2)
        if not self.store.compaction.is_pending:
            assert self.backend.scan_rows(0, bound(1 << 40), 10_000) == self.model.rows()
        self.check_everything()
        for slices, _ in self.reads:
            slices.close()


def answer(result: RangeResult) -> tuple[list[bytes], int, bool, int]:
    return result.kvs, result.count, result.more, result.revision


def refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except StatusError as error:
        return {COMPACTED: "compacted", FUTURE_REV: "future"}[error.status]
    return None
