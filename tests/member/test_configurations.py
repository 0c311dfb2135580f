"""Which configuration counts: a snapshot's, a removed leader's, one that is not durable yet."""

import pytest

from kvorum.api.pb.etcdserverpb import LeaseGrantRequest
from kvorum.member import requests
from kvorum.member.jobs import Place
from kvorum.member.leases import try_renew
from kvorum.membership.documents import encode_promotion
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.messages import ConfState
from tests.member.harness import Cluster, Machine
from tests.member.test_three import added, change, equal, removed

LEARNER = 99
PROMOTION = ConfChange(ChangeType.ADD_NODE, LEARNER, encode_promotion(LEARNER))


def in_force(machine: Machine) -> ConfState:
    """Return the configuration by which raft decides."""
    return machine.running.node.raft.tracker.config.conf_state()


# A snapshot's.


def behind_a_change() -> tuple[Cluster, Machine, Machine]:
    """Return a cluster, its leader, and a member that was just given a snapshot.

    Among the entries that wait to be applied there is one that adds a learner; in the snapshot it
    is a voter.
    """
    cluster = Cluster(5, snapshot_entries=50, catch_up_entries=10)
    leader, late = cluster.leader(), cluster.follower()
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    late.is_paused = True
    for number in range(1000):
        leader.put(b"%d" % number)
    adding = change(leader, added(LEARNER, "http://m9:2380", is_learner=True))
    cluster.wait(lambda: adding in leader.replies)
    cluster.isolate(late)
    assert cluster.success(leader, change(leader, PROMOTION)) == b"done"
    for number in range(100):
        leader.put(b"%d" % number)
        cluster.pass_time(0.02)
    cluster.pass_time(1.0)
    assert leader.running.storage.first_index() > 1000
    cluster.heal()
    cluster.wake(late)
    # One look at the clock ends a turn, and with it applying.
    cluster.slices = 1
    leader.running.tick(cluster.now)
    for _ in range(100):
        if late.running.node.raft.log.unstable.snapshot is not None:
            break
        for machine in cluster:
            machine.turn()
        cluster.deliver()
    cluster.slices = 0
    assert late.running.node.raft.log.unstable.snapshot is not None
    assert 0 < late.running.applied < 1000
    assert LEARNER in in_force(late).voters
    return cluster, leader, late


def test_a_change_that_a_snapshot_covers_is_not_applied_on_top_of_it() -> None:
    cluster, leader, late = behind_a_change()
    late.held.add(Place.LOG)
    cluster.settle()
    assert in_force(late) == in_force(leader)
    late.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert in_force(late) == late.running.conf_state == in_force(leader)
    late.kill()
    late.start()
    cluster.wait(lambda: equal(cluster))
    assert in_force(late) == late.running.conf_state == in_force(leader)


@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_a_crash_between_a_snapshot_and_its_use_keeps_index_and_members_together(
    jobs: int,
) -> None:
    cluster, leader, late = behind_a_change()
    snapshot = late.running.node.raft.log.unstable.snapshot
    assert snapshot is not None
    late.held.add(Place.LOG)
    late.turn()
    late.running.flush_soon()
    cluster.settle()
    for _ in range(jobs):
        if late.jobs[Place.LOG]:
            late.run_job(late.jobs[Place.LOG].popleft())
    late.lose_power(lambda: False)
    late.held.clear()
    late.start()
    has_it = late.running.applied >= snapshot.index
    assert (LEARNER in in_force(late).voters) is has_it
    cluster.wait(lambda: equal(cluster))
    assert in_force(late) == late.running.conf_state == in_force(leader)


# A removed leader's.


def test_a_removed_leader_answers_no_read() -> None:
    cluster = Cluster(2)
    leader, last = cluster.leader(), cluster.follower()
    cluster.success(leader, leader.put(b"key", b"old"))
    assert cluster.success(leader, change(leader, removed(leader))) == b"done"
    cluster.wait(lambda: last.running.conf_state.voters == (last.running.id,))
    leader.is_paused = True
    cluster.isolate(leader)
    cluster.wait(lambda: last.running.is_leader)
    cluster.success(last, last.put(b"key", b"new"))
    # It stood still for a moment, and has not noticed yet.
    leader.is_paused = False
    call = leader.range(b"key")
    cluster.settle()
    assert leader.running.is_leader
    cluster.pass_time(3.0)
    assert call not in leader.replies


def test_a_removed_leader_renews_no_lease() -> None:
    cluster = Cluster(2)
    leader = cluster.leader()
    grant = LeaseGrantRequest(ID=7, TTL=60).SerializeToString()
    cluster.success(leader, leader.propose(requests.LEASE_GRANT, grant))
    assert try_renew(leader.running, 7) == 60
    assert cluster.success(leader, change(leader, removed(leader))) == b"done"
    assert leader.running.is_leader
    assert try_renew(leader.running, 7) is None
