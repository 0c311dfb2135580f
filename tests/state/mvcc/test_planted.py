"""Mistakes planted on purpose: the list of all events must notice each of them."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvorum.api.limits import WorkLimits
from kvorum.state.lease import Lessor
from kvorum.state.mvcc import history, ranges, restore
from kvorum.state.mvcc.compaction import Compaction, Compactor
from kvorum.state.mvcc.history import Entry
from kvorum.state.mvcc.index import Index
from kvorum.state.mvcc.pins import Pins
from kvorum.state.mvcc.store import Store
from kvorum.storage.backend import Backend, StageFlush
from kvorum.storage.backend.buckets import META, SCHEDULED_COMPACT_REVISION
from tests.state.mvcc import compaction
from tests.state.mvcc.compaction import (
    compact_at_a_deletion,
    interrupt_everywhere,
    outlive_compaction,
    start_without_the_newest_row,
)
from tests.state.mvcc.machine import Recorder, StoreMachine

SETTINGS = settings(
    max_examples=1_000,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

Plant = Callable[[pytest.MonkeyPatch], None]


def walk() -> None:
    run_state_machine_as_test(StoreMachine, settings=SETTINGS)


def scheduled_revision_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    put = Backend.put

    def forgetful(self: Backend, bucket: bytes, name: bytes, value: bytes) -> None:
        if (bucket, name) != (META, SCHEDULED_COMPACT_REVISION):
            put(self, bucket, name, value)

    patch.setattr(Backend, "put", forgetful)


def finished_revision_is_stored_first(patch: pytest.MonkeyPatch) -> None:
    step = Compactor.step

    def hasty(self: Compactor) -> object:
        if self._queue and self._walked is None:
            queue = self._queue.copy()
            self._finish(self._queue[0])
            self._queue = queue
        return step(self)

    patch.setattr(Compactor, "step", hasty)


def index_is_ahead_of_the_effects(patch: pytest.MonkeyPatch) -> None:
    seal = Backend.seal

    def ahead(self: Backend) -> StageFlush | None:
        stage = seal(self)
        if stage is not None:
            stage.batch.index += 1
        return stage

    patch.setattr(Backend, "seal", ahead)


def sealed_is_not_looked_into(patch: pytest.MonkeyPatch) -> None:
    for name in ("row", "rows"):
        original = getattr(Backend, name)

        def blind(
            self: Backend, asked: object, original: Callable[..., object] = original
        ) -> object:
            sealed, self._sealed = self._sealed, None
            try:
                return original(self, asked)
            finally:
                self._sealed = sealed

        patch.setattr(Backend, name, blind)


def rows_are_dropped_without_a_marker(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Backend, revision: int) -> None:
        self._active.rows.pop(revision, None)

    patch.setattr(Backend, "delete_row", drop)


def open_transactions_are_sealed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "is_writing", property(lambda _: False, lambda *_: None), raising=False)


def open_transactions_are_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranges, "bound", lambda main: history.bound(main + 1))


def reads_in_progress_do_not_hold_compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pins, "is_held_below", lambda *_: False)


def revision_is_that_of_the_newest_row(patch: pytest.MonkeyPatch) -> None:
    restored = restore.restore_store

    def naive(backend: Backend, lessor: Lessor, hub: Recorder, limits: WorkLimits) -> Store:
        store = restored(backend, lessor, hub, limits)
        store.revision = max(1, store._index.newest_revision >> 32)
        return store

    patch.setattr(compaction, "restore_store", naive)


def tombstone_at_the_compacted_revision_is_dropped(patch: pytest.MonkeyPatch) -> None:
    compacted = history.compact_entry

    def greedy(entry: Entry, main: int) -> tuple[Entry | None, bytes]:
        left, dropped = compacted(entry, main)
        if isinstance(left, int) and left & 1:
            return None, dropped + left.to_bytes(history.RECORD_BYTES, "big")
        return left, dropped

    patch.setattr(history, "compact_entry", greedy)


def old_tombstones_stay(patch: pytest.MonkeyPatch) -> None:
    compacted = history.compact_entry

    def lenient(entry: Entry, main: int) -> tuple[Entry | None, bytes]:
        left, dropped = compacted(entry, main)
        return (entry, b"") if left is None else (left, dropped)

    patch.setattr(history, "compact_entry", lenient)


def hashes_of_interrupted_compactions_are_kept(patch: pytest.MonkeyPatch) -> None:
    def schedule(self: Compactor, finished: int, scheduled: int) -> None:
        self.finished_revision = finished
        if scheduled > finished:
            self._queue.append(Compaction(scheduled, finished, is_hashed=True))

    patch.setattr(Compactor, "resume", schedule)


def leases_of_old_values_are_attached(patch: pytest.MonkeyPatch) -> None:
    class Sticky(dict[bytes, int]):
        def pop(self, *_: object) -> int:
            return 0

    read = restore._read
    kept: dict[int, Sticky] = {}

    def sticky(index: Index, rows: list[tuple[int, bytes]], leases: dict[bytes, int]) -> None:
        mine = kept.setdefault(id(leases), Sticky())
        read(index, rows, mine)
        leases.update(mine)

    patch.setattr(restore, "_read", sticky)


PLANTS: dict[Plant, Callable[[], None]] = {
    scheduled_revision_is_not_stored: walk,
    finished_revision_is_stored_first: interrupt_everywhere,
    index_is_ahead_of_the_effects: walk,
    sealed_is_not_looked_into: walk,
    rows_are_dropped_without_a_marker: walk,
    open_transactions_are_seen: walk,
    open_transactions_are_sealed: walk,
    reads_in_progress_do_not_hold_compaction: outlive_compaction,
    revision_is_that_of_the_newest_row: start_without_the_newest_row,
    tombstone_at_the_compacted_revision_is_dropped: compact_at_a_deletion,
    old_tombstones_stay: walk,
    hashes_of_interrupted_compactions_are_kept: interrupt_everywhere,
    leases_of_old_values_are_attached: walk,
}


@pytest.mark.sources
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    is_noticed = False
    try:
        PLANTS[plant]()
    except Exception:
        is_noticed = True
    assert is_noticed
