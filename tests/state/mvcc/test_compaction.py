"""Compaction as stories: interrupted between any two steps, waited for by reads, asked again."""

import pytest

from kvorum.state.mvcc.hashes import HashKV, HashRows
from tests.state.mvcc.compaction import (
    World,
    compact_at_a_deletion,
    interrupt_everywhere,
    outlive_compaction,
    start_without_the_newest_row,
)


def test_a_compaction_survives_a_power_cut_anywhere() -> None:
    interrupt_everywhere()


def test_reads_that_began_before_a_compaction_end_after_it() -> None:
    outlive_compaction()


def test_a_hash_that_began_before_a_compaction_holds_it() -> None:
    world = World()
    world.write()
    current = world.model.revision
    world.compact(5)
    world.finish()
    job = world.store.hash_kv(0)
    assert isinstance(job, HashRows)
    world.compact(current - 1)
    world.flush()
    world.step()
    assert not world.store.compaction.is_runnable
    assert job.run(world.files, world.environments) == world.model.hash_kv(current, 5)
    world.store.finish_hash(job)
    world.finish()
    world.check()


def test_revision_decreases_after_crash_in_compaction_17780() -> None:
    start_without_the_newest_row()


def test_delete_event_dropped_when_compacting_at_its_revision_18089() -> None:
    compact_at_a_deletion()


def test_ten_hashes_are_kept() -> None:
    world = World()
    world.write()
    for main in range(3, 15):
        world.compact(main)
        world.finish()
    kept = world.store.compaction.hashes()
    assert [each.revision for each in kept] == list(range(14, 4, -1))
    assert kept[0] == HashKV(world.model.hash_kv(14, 13, is_compaction=True), 14, 13)
    assert world.store.hash_kv(6) == kept[8]


@pytest.mark.parametrize("steps", range(12))
def test_a_hash_does_not_depend_on_how_far_the_compaction_before_was(steps: int) -> None:
    world = World()
    world.write()
    world.compact(6)
    for _ in range(steps):
        world.step()
    world.compact(8)
    assert world.store.compaction.is_hash_awaited(8)
    world.finish()
    assert world.store.compaction.hashes() == [
        HashKV(world.model.hash_kv(8, 6, is_compaction=True), 8, 6),
        HashKV(world.model.hash_kv(6, -1, is_compaction=True), 6, -1),
    ]


def test_a_hash_is_not_kept_if_its_compaction_was_interrupted() -> None:
    world = World()
    world.write()
    world.compact(6)
    world.flush()
    world.crash()
    world.compact(8)
    assert not world.store.compaction.is_hash_awaited(6)
    world.finish()
    found = HashKV(world.model.hash_kv(8, 6, is_compaction=True), 8, 6)
    assert world.store.compaction.hashes() == [found]


def test_a_compaction_at_zero_is_accepted_once() -> None:
    world = World()
    world.write()
    world.compact(0)
    world.finish()
    world.flush()
    world.crash()
    world.check()
