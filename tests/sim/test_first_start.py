"""A power cut at every call to the disk: at the first start, and at a start on what is there.

Whatever call it was, the member starts on what is left and serves. A cluster once never began,
because its log was there and the first batch of it was not.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import without_faults
from kvorum.sim.probes import Probe
from kvorum.sim.world import World

CALLS_MAX = 60


def serve(world: World, cluster: Cluster) -> None:
    probe = Probe(world, cluster, 1)
    probe.start()
    assert world.run_while(lambda: not probe.is_done, world.now + 10.0), probe.last


@pytest.mark.parametrize("is_first", [True, False])
def test_the_power_may_fail_before_any_call(tmp_path: Path, is_first: bool) -> None:
    cut_off = 0
    for calls in range(CALLS_MAX):
        world = World(calls)
        directory = tmp_path / str(calls)
        directory.mkdir()
        cluster = Cluster(world, 1, without_faults(), str(directory), {"segment_bytes": 4096})
        machine = cluster.machines[1]
        if not is_first:
            cluster.start()
            serve(world, cluster)
            machine.crash(power_cut=True)
        machine.disk.cut_off_after(calls)
        machine.start()
        world.run_until(world.now + 1.0)
        machine.disarm()
        if machine.is_dead:
            cut_off += 1
            machine.start()
        serve(world, cluster)
        machine.end()
    assert cut_off > 10, "hardly any start came so far that it was cut off"


def test_nothing_is_lost_if_the_first_start_was_killed(tmp_path: Path) -> None:
    """The next one finds names that may not be durable, and the power fails much later."""
    killed = 0
    for calls in range(CALLS_MAX):
        world = World(calls)
        directory = tmp_path / str(calls)
        directory.mkdir()
        faults = replace(without_faults(), power_cut_chance=0.0)
        cluster = Cluster(world, 1, faults, str(directory), {"segment_bytes": 4096})
        machine = cluster.machines[1]
        machine.disk.cut_off_after(calls)
        machine.start()
        world.run_until(world.now + 1.0)
        machine.disarm()
        if machine.is_dead:
            killed += 1
            machine.start()
        serve(world, cluster)
        assert machine.member is not None
        revision = machine.member.state.store.revision
        machine.crash(power_cut=True)
        machine.start()
        serve(world, cluster)
        assert machine.member.state.store.revision > revision, f"killed before call {calls}"
        machine.end()
    assert killed > 10, "hardly any start came so far that it was killed"
