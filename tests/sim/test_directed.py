"""Directed faults reach the places they lead to, and every guarantee holds there."""

from collections.abc import Callable
from dataclasses import fields, replace
from tempfile import TemporaryDirectory

import pytest

from kvorum.sim.campaign import size_of
from kvorum.sim.cluster import Cluster
from kvorum.sim.directed import _growths
from kvorum.sim.faults import without_faults
from kvorum.sim.plan import Plan, draw_plan
from kvorum.sim.run import Outcome, memory_directory, simulate_plan
from kvorum.sim.shrink import _cuts
from kvorum.sim.world import World
from kvorum.storage.files.memory import DiskCall

SEEDS_MAX = 400


def plans(option: str) -> list[Plan]:
    """Return the plans of a few seeds that have a directed fault."""
    drawn = (draw_plan(seed, size_of(seed)) for seed in range(SEEDS_MAX))
    nothing = getattr(without_faults(), option)
    return [plan for plan in drawn if getattr(plan.faults, option) != nothing]


def reached(option: str, is_there: Callable[[Outcome], bool]) -> bool:
    """Run plans until one gets there; none may violate anything."""
    for plan in plans(option)[:8]:
        outcome = simulate_plan(plan)
        assert not outcome.guarantee, outcome
        if is_there(outcome):
            return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "count"),
    [
        ("sleeper_gap", "sleepers given a snapshot"),
        ("sleeper_gap", "crashes with a snapshot"),
        ("sleeper_gap", "snapshots before a change was applied"),
        ("growth_full_gap", "disks full at an append"),
        ("leader_removal_gap", "leaders removed"),
        ("learners_at_once", "two learners at once"),
        ("quorum_loss", "new clusters forced"),
    ],
)
def test_it_gets_there(option: str, count: str) -> None:
    assert reached(option, lambda outcome: outcome.faults.get(count, 0) > 0)


def test_a_seed_has_at_most_one_sequence_of_steps() -> None:
    names = ("sleeper_gap", "growth_full_gap", "leader_removal_gap", "quorum_loss")
    for seed in range(SEEDS_MAX):
        faults = draw_plan(seed, size_of(seed)).faults
        assert sum(bool(getattr(faults, name)) for name in names) <= 1, seed


def test_each_can_be_left_out() -> None:
    plan = plans("quorum_loss")[0]
    peace = without_faults()
    changed = replace(
        plan,
        faults=replace(
            plan.faults,
            sleeper_gap=1.0,
            growth_full_gap=1.0,
            leader_removal_gap=1.0,
            removed_time=(1.0, 2.0),
            stays_chance=0.5,
            learners_at_once=2,
        ),
    )
    for cut in _cuts(changed):
        changed = cut(changed)
    assert all(
        getattr(changed.faults, field.name) == getattr(peace, field.name) for field in fields(peace)
    )


def test_the_append_that_crosses_a_segment_is_distinguished() -> None:
    crosses = dict(_growths(4096))["an append"]
    assert not crosses(DiskCall("pwrite", "/data/member/wal/0.tmp", 4000, 96))
    assert crosses(DiskCall("pwrite", "/data/member/wal/0.tmp", 4000, 97))
    assert not crosses(DiskCall("pwrite", "/data/member/snap/x", 4000, 97))
    # The head of the next segment.
    assert not crosses(DiskCall("pwrite", "/data/member/wal/0.tmp", 0, 5000))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_no_member_crashes_without_faults(seed: int) -> None:
    world = World(seed)
    with TemporaryDirectory(dir=memory_directory()) as directory:
        cluster = Cluster(world, 3, without_faults(), directory, {"election_ticks": 4})
        cluster.start()
        world.run_until(2.0)
        machine = cluster.machines[2]
        # It was given a snapshot, and is to crash a moment later.
        world.after(0.3, cluster.director._crash, machine, machine.incarnation)
        cluster.director.stop(without_faults())
        world.run_until(5.0)
        assert not machine.crashes
        for each in cluster.machines.values():
            each.end()
