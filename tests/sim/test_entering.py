"""Simulated members come into clusters by production's questions; mistakes are noticed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvorum.server.peer.cluster import joining
from kvorum.server.peer.cluster.joining import Joined
from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import Faults, without_faults
from kvorum.sim.operators import ENTERING
from kvorum.sim.plan import draw_plan
from kvorum.sim.probes import Probe
from kvorum.sim.run import memory_directory
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.membership.documents import MemberDocument

FRAMES = replace(without_faults(), frames=True)
LOSING_DISKS = replace(FRAMES, wipe_gap=0.5)
JOINING = replace(FRAMES, change_gap=0.5)


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(dir=memory_directory()) as path:
        yield Path(path)


@contextmanager
def running(directory: Path, seed: int, faults: Faults, size: int = 3) -> Iterator[Cluster]:
    """Start a cluster in which only so much goes wrong."""
    world = World(seed)
    cluster = Cluster(
        world, size, faults, str(directory), {"election_ticks": 4, "segment_bytes": 16384}
    )
    try:
        cluster.start()
        yield cluster
    finally:
        for machine in cluster.machines.values():
            machine.end()


def settle(cluster: Cluster, seconds: float = 6.0) -> None:
    """Let things go wrong for a while, then require that all members serve."""
    world = cluster._world
    world.run_until(seconds)
    cluster.stop_faults()
    probes = [Probe(world, cluster, number) for number in cluster.members]
    for probe in probes:
        probe.start()
    assert world.run_while(lambda: not all(each.is_done for each in probes), world.now + 20.0)


def test_a_joining_member_asks_for_its_place(directory: Path) -> None:
    with running(directory, 1, JOINING) as cluster:
        settle(cluster)
        added = [each for each in cluster.machines.values() if each.number > 3]
        ids = {
            each.member.state.cluster.cluster_id
            for each in cluster.machines.values()
            if each.member
        }
    assert cluster.operator.counts["members joined"] >= len(added) > 0
    assert all(
        each.is_existing and f"m{each.number}" in each.config.initial_cluster for each in added
    )
    assert len(ids) == 1


def test_a_machine_that_lost_its_disk_is_refused_and_replaced(directory: Path) -> None:
    with running(directory, 2, LOSING_DISKS) as cluster:
        settle(cluster)
        counts = cluster.operator.counts
        assert counts["disks lost"] > 1
        assert counts["lost disks refused"] >= counts["disks lost"]
        assert not counts["lost disks unnoticed"]
        assert not any(each.is_wiped for each in cluster.machines.values())
        assert len(cluster.machines) == 3


@pytest.mark.parametrize("is_existing", [True, False])
def test_one_that_nobody_answers_waits_or_founds_what_it_founded(
    directory: Path, is_existing: bool
) -> None:
    """A founder cannot know that it is not the first to start; a joining member is refused."""
    with running(directory, 3, FRAMES) as cluster:
        world, machine = cluster._world, cluster.machines[3]
        world.run_until(3.0)
        cluster.network.cut_off(3, [1, 2, 3])
        machine.wipe()
        machine.is_existing = is_existing
        machine.start()
        world.run_until(40.0 if is_existing else 6.0)
        counts = cluster.operator.counts
        assert machine.member is None
        assert bool(counts["starts refused"]) == is_existing
        assert counts["lost disks unnoticed"] == (not is_existing)


def test_a_member_that_starts_without_its_log_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "is_bootstrapped", lambda _members, _identity: False)
    with running(directory, 4, LOSING_DISKS) as cluster, pytest.raises(Violation, match=ENTERING):
        settle(cluster)


@pytest.mark.parametrize("wrong", [(1, 0), (0, 1)], ids=["member", "cluster"])
def test_a_member_that_joins_elsewhere_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, int]
) -> None:
    def misled(member_id: int, cluster_id: int, members: list[MemberDocument]) -> Joined:
        return Joined(member_id + wrong[0], cluster_id + wrong[1], members)

    monkeypatch.setattr(joining, "Joined", misled)
    with running(directory, 5, JOINING) as cluster, pytest.raises(Violation, match=ENTERING):
        settle(cluster)


def test_a_member_that_joins_may_crash_and_start_again(directory: Path) -> None:
    """From before its first question to after its start."""
    crashed_early = 0
    for step in range(12):
        part = directory / str(step)
        part.mkdir()
        with running(part, 6, replace(FRAMES, change_gap=1e9)) as cluster:
            world = cluster._world
            world.run_until(3.0)
            cluster.operator.add(1, is_learner=False)
            assert world.run_while(lambda: max(cluster.machines) < 4, 10.0)
            machine = cluster.machines[max(cluster.machines)]
            world.run_until(world.now + 0.002 * 2**step)
            crashed_early += machine.member is None
            machine.crash(power_cut=True)
            cluster.nemesis.restart_later(machine)
            settle(cluster, world.now + 2.0)
    assert 0 < crashed_early < 12


def test_some_runs_lose_disks_and_only_where_questions_are_asked() -> None:
    plans = [draw_plan(seed, 3) for seed in range(200)]
    losing = [plan for plan in plans if plan.faults.wipe_gap]
    assert losing and all(plan.faults.frames for plan in losing)
    assert any(plan.faults.stale_flags_chance and plan.faults.change_gap for plan in plans)
