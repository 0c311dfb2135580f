"""Which configuration is used: with a snapshot, on a removed leader, before one is durable."""

import json
from collections.abc import Callable

import pytest

from kvorum.api.pb.etcdserverpb import LeaseGrantRequest
from kvorum.member.images import BuildImage
from kvorum.member.jobs import ExecutorKind
from kvorum.member.leases import try_renew
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.messages import ConfState
from kvorum.raft.wire import decode_message
from kvorum.state.apply import requests
from kvorum.state.membership.documents import encode_promotion
from kvorum.storage.files.interface import read_file
from kvorum.storage.snap.format import decode
from tests.member.changes import added, change, removed
from tests.member.harness import HEARTBEAT_SECONDS, Cluster, Machine, equal

LEARNER = 99
PROMOTION = ConfChange(ChangeType.ADD_NODE, LEARNER, encode_promotion(LEARNER))


def in_force(machine: Machine) -> ConfState:
    """Return the configuration that raft uses."""
    return machine.running.replica.node.raft.tracker.config.conf_state()


# With a snapshot.


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
    assert leader.running.replica.storage.first_index() > 1000
    cluster.heal()
    cluster.wake(late)
    # One look at the clock ends a turn, so little is applied in it.
    cluster.slices = 1
    cluster.now += HEARTBEAT_SECONDS
    for _ in range(100):
        if late.running.replica.node.raft.log.unstable.snapshot is not None:
            break
        for machine in cluster:
            machine.turn()
        cluster.deliver()
    cluster.slices = 0
    assert late.running.replica.node.raft.log.unstable.snapshot is not None
    assert 0 < late.running.state.applied < 1000
    assert LEARNER in in_force(late).voters
    return cluster, leader, late


def test_a_change_that_a_snapshot_covers_is_not_applied_on_top_of_it() -> None:
    cluster, leader, late = behind_a_change()
    late.held.add(ExecutorKind.LOG)
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
    snapshot = late.running.replica.node.raft.log.unstable.snapshot
    assert snapshot is not None
    late.held.add(ExecutorKind.LOG)
    late.turn()
    late.running.replica.flush_soon()
    cluster.settle()
    for _ in range(jobs):
        if late.jobs[ExecutorKind.LOG]:
            late.run_job(late.jobs[ExecutorKind.LOG].popleft())
    late.lose_power(lambda: False)
    late.held.clear()
    late.start()
    has_it = late.running.state.applied >= snapshot.index
    assert (LEARNER in in_force(late).voters) is has_it
    cluster.wait(lambda: equal(cluster))
    assert in_force(late) == late.running.conf_state == in_force(leader)


# On a removed leader.


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
    # The old leader was paused for a moment, and has not noticed yet.
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
    # A read confirms that this member leads.
    cluster.success(leader, leader.range(b"key"))
    assert try_renew(leader.running, 7) == 60
    assert cluster.success(leader, change(leader, removed(leader))) == b"done"
    assert leader.running.is_leader
    assert try_renew(leader.running, 7) is None


# Before one is durable.


def about_to_be_committed(
    at: Callable[[Cluster], Machine], victim: Callable[[Cluster], Machine]
) -> tuple[Cluster, Machine, Machine, int]:
    """Return a cluster of two, the member to be removed, the other, and the call that removes it.

    All that is missing for the removal is its commit index on the disk of the other.
    """
    cluster = Cluster(2)
    leader, follower = cluster.leader(), cluster.follower()
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    gone = victim(cluster)
    last = follower if gone is leader else leader
    call = change(at(cluster), removed(gone))
    index = leader.running.replica.node.raft.log.last_index() + 1
    for _ in range(20):
        if last.running.replica.storage.last_index() >= index:
            break
        for machine in cluster:
            machine.turn()
        cluster.deliver()
    last.held.add(ExecutorKind.LOG)
    cluster.settle()
    assert last.running.committed >= index
    return cluster, gone, last, call


@pytest.mark.parametrize("at", [Cluster.leader, Cluster.follower])
def test_nobody_is_told_of_a_removal_before_it_is_durable(
    at: Callable[[Cluster], Machine],
) -> None:
    cluster, gone, last, call = about_to_be_committed(at, Cluster.follower)
    assert not gone.running.was_removed and not gone.running.state.cluster.is_removed(
        gone.running.id
    )
    assert call not in gone.replies and call not in last.replies
    assert len(last.running.conf_state.voters) == 2
    last.lose_power(lambda: False)
    last.held.clear()
    last.start()
    cluster.wait(lambda: last.running.conf_state.voters == (last.running.id,))
    cluster.success(last, last.put(b"key"))


@pytest.mark.parametrize("victim", [Cluster.leader, Cluster.follower])
def test_who_knows_of_a_removal_does_not_forget_it(
    victim: Callable[[Cluster], Machine],
) -> None:
    cluster, gone, last, call = about_to_be_committed(victim, victim)
    assert len(last.running.conf_state.voters) == 2
    last.held.clear()
    cluster.wait(lambda: last.running.conf_state.voters == (last.running.id,))
    assert cluster.success(gone, call) == b"done"
    # It learns of its removal from the log, not from a transport that refuses it.
    assert gone.running.was_removed
    gone.kill()
    last.lose_power(lambda: False)
    last.start()
    cluster.success(last, last.put(b"key"))


def test_a_promoted_learner_that_has_more_than_the_voter_hears_of_its_promotion() -> None:
    cluster = Cluster(1)
    leader = cluster.leader()
    adding = change(leader, added(LEARNER, "http://m9:2380", is_learner=True))
    assert cluster.success(leader, adding) == b"done"
    known = leader.running.state.cluster.cluster_id
    learner = Machine(cluster, "m9", cluster.config("m9", joins=(LEARNER, known)))
    cluster.machines["m9"] = learner
    learner.start()
    cluster.wait(lambda: learner.running.is_published and equal(cluster))
    leader.held.add(ExecutorKind.LOG)
    change(leader, PROMOTION)
    cluster.settle()
    leader.run_job(leader.jobs[ExecutorKind.LOG].popleft())
    # It is committed. Its commit index is on its way to the disk, and then comes another entry,
    # which the learner has at once.
    cluster.settle()
    leader.put(b"key")
    cluster.settle()
    cluster.isolate(learner)
    leader.run_job(leader.jobs[ExecutorKind.LOG].popleft())
    leader.lose_power(lambda: False)
    leader.held.clear()
    leader.start()
    cluster.settle()
    assert LEARNER in in_force(leader).voters and LEARNER in in_force(learner).learners
    assert (
        leader.running.replica.node.raft.log.last_index()
        < learner.running.replica.node.raft.log.last_index()
    )
    cluster.heal()
    cluster.wait(lambda: learner.running.is_leader)
    cluster.success(leader, leader.put(b"key"))


# The members in a snapshot, and in the database it belongs to.


def members_in(data: bytes) -> set[int]:
    """Return the members that the data of a snapshot lists."""
    members = json.loads(data)["Root"]["Children"]["0"]["Children"]["members"]["Children"]
    return {int(name, 16) for name in members}


def test_a_snap_file_lists_the_members_of_its_index() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    member = leader.running
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    cluster.pass_time(1.0)
    cluster.success(leader, leader.put(b"key"))
    leader.held.add(ExecutorKind.FLUSHER)
    member.replica.snapshots.is_wanted = True
    member.replica.flush_soon()
    cluster.settle()
    before = member.state.applied
    adding = change(leader, added(LEARNER, "http://m9:2380", is_learner=True))
    assert cluster.success(leader, adding) == b"done"
    leader.held.clear()
    cluster.wait(lambda: member.replica.snapshots.index)
    names = [
        name for name in leader.files.list(member.replica.snap_directory) if name.endswith(".snap")
    ]
    path = f"{member.replica.snap_directory}/{names[-1]}"
    written = decode(path, read_file(leader.files, path))
    assert written.index == before
    assert members_in(written.data) == {*written.conf_state.voters, *written.conf_state.learners}
    assert LEARNER not in members_in(written.data)


@pytest.mark.parametrize("has_changed_before", [False, True])
def test_a_snapshot_that_is_sent_lists_the_members_of_its_image(has_changed_before: bool) -> None:
    cluster = Cluster(3, snapshot_entries=50, catch_up_entries=10)
    leader, late = cluster.leader(), cluster.follower()
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    cluster.isolate(late)
    for number in range(200):
        leader.put(b"%d" % number)
        cluster.pass_time(0.02)
    leader.held.add(ExecutorKind.HELPER)
    cluster.heal()
    cluster.wait(
        lambda: any(isinstance(job.work, BuildImage) for job in leader.jobs[ExecutorKind.HELPER])
    )
    jobs = leader.jobs[ExecutorKind.HELPER]
    while not isinstance(jobs[0].work, BuildImage):
        leader.run_job(jobs.popleft())
    adding = change(leader, added(LEARNER, "http://m9:2380", is_learner=True))
    facts = None
    if not has_changed_before:
        facts = jobs[0].run(leader.files, leader.environments)
    assert cluster.success(leader, adding) == b"done"
    cluster.pass_time(1.0)
    if has_changed_before:
        facts = jobs[0].run(leader.files, leader.environments)
    leader.ended.append((jobs.popleft(), facts, None))
    leader.turn()
    (sent,) = [data for _, _, data, image in cluster.messages if image is not None]
    snapshot = decode_message(sent).snapshot
    assert snapshot is not None
    assert members_in(snapshot.data) == {*snapshot.conf_state.voters, *snapshot.conf_state.learners}
    assert (LEARNER in members_in(snapshot.data)) is has_changed_before
    leader.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert in_force(late) == late.running.conf_state == in_force(leader)
