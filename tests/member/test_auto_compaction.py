"""Members compact by themselves, whichever leads, also after a snapshot replaced their state."""

from typing import Any

import pytest

from tests.member.harness import Cluster, Machine

BY_AGE = {"retention_seconds": 1.0}
BY_REVISION = {"retention_revisions": 5, "retention_check_seconds": 1.0}
KEPT = [(BY_AGE, 0), (BY_REVISION, 5)]
"""Options, and how many revisions are left to compact when nothing more is written."""
kept = pytest.mark.parametrize(("options", "left"), KEPT, ids=["by age", "by revision"])


def write(cluster: Cluster, machine: Machine, count: int) -> None:
    for number in range(count):
        cluster.success(machine, machine.put(b"%d" % number))


def expect_compaction(cluster: Cluster, left: int) -> None:
    """Wait until all members have compacted everything that is not to be kept."""
    revision = cluster.leader().running.state.store.revision - left
    cluster.wait(
        lambda: all(each.running.state.store.compacted_revision == revision for each in cluster)
    )


def lead(cluster: Cluster, machine: Machine) -> None:
    cluster.leader().running.replica.node.transfer_leader(machine.running.id)
    cluster.wait(lambda: machine.running.is_leader)


@kept
def test_every_leader_goes_on_with_it(options: dict[str, Any], left: int) -> None:
    cluster = Cluster(3, **options)
    for machine in [*cluster, cluster[0]]:
        if cluster.leader() is not machine:
            lead(cluster, machine)
        write(cluster, machine, 10)
        expect_compaction(cluster, left)


@kept
def test_it_goes_on_after_an_installed_snapshot_and_after_a_restart(
    options: dict[str, Any], left: int
) -> None:
    cluster = Cluster(3, snapshot_entries=20, catch_up_entries=5, **options)
    leader, late = cluster.leader(), cluster.follower()
    cluster.isolate(late)
    write(cluster, leader, 100)
    cluster.pass_time(1.0)
    assert leader.running.replica.storage.first_index() > late.running.state.applied + 1
    store = late.running.state.store
    cluster.heal()
    cluster.wait(lambda: late.running.state.applied == leader.running.state.applied)
    assert late.running.state.store is not store
    lead(cluster, late)
    write(cluster, late, 10)
    expect_compaction(cluster, left)
    for machine in cluster.machines.values():
        machine.kill()
        machine.start()
    write(cluster, cluster.leader(), 10)
    expect_compaction(cluster, left)


def test_without_a_retention_nothing_is_forgotten() -> None:
    cluster = Cluster(1)
    write(cluster, cluster[0], 10)
    cluster.pass_time(700.0)
    assert cluster[0].running.state.store.compacted_revision < 1
