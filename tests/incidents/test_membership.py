"""Issue 20967: removed members came back, as two stores each knew the members, and differed.

Here one store does: the backend, with the effects of the log. Whatever a member starts from, its
own files, a snapshot, old files, removed members stay removed.
"""

from collections.abc import Sequence

import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.sim.calls import METHODS
from tests.cluster.members import TIMING, Cluster, Member, is_done, running_cluster
from tests.incidents.conftest import FREQUENT, MakeStage
from tests.incidents.stage import Stage
from tests.waiting import until

METHODS.setdefault(
    pb.MemberRemoveRequest, ("/etcdserverpb.Cluster/MemberRemove", pb.MemberRemoveResponse)
)


def known(stage: Stage, member: int) -> set[int]:
    running = stage.machine(member).member
    assert running is not None
    return {each.id for each in running.state.cluster.members}


def check(stage: Stage, members: Sequence[int], removed: int, expected: set[int]) -> None:
    """Members, and raft in them, know which members there are, and which were removed."""
    for each in members:
        running = stage.machine(each).member
        assert running is not None
        assert known(stage, each) == set(running.conf_state.voters) == expected
        assert running.state.cluster.is_removed(removed)


@pytest.mark.parametrize("seed", range(3))
def test_20967_simulated(make_stage: MakeStage, seed: int) -> None:
    stage = make_stage(5, seed=seed, snapshot_entries=3, catch_up_entries=1, flush_writes_max=2)
    leader = stage.leader
    gone, behind, *others = stage.followers()
    running = stage.machine(gone).member
    assert running is not None
    zombie = running.id
    expected = known(stage, leader) - {zombie}
    # One is down when it is removed, and another learns of it only by a snapshot.
    stage.machine(gone).crash(power_cut=True)
    stage.isolate(behind)
    stage.ask(pb.MemberRemoveRequest(ID=zombie), leader)
    for number in range(20):
        stage.put(b"k/%d" % (number % 4), b"%d" % number, leader)
    stage.run(0.5)
    stage.cluster.members.remove(gone)
    stage.heal()
    left = [leader, behind, *others]
    stage.serve(left)
    assert stage.cluster.snapshots > 0
    check(stage, left, zombie, expected)
    for each in left:
        stage.restart(each)
    stage.serve(left)
    check(stage, left, zombie, expected)
    # It comes back with its old files, in which it is a member, and campaigns.
    term = stage.machine(stage.leader).seen_term
    stage.machine(gone).start()
    for number in range(10):
        stage.put(b"k/%d" % (number % 4), b"again %d" % number, left[number % 4])
        stage.run(1.0)
    assert stage.machine(stage.leader).seen_term == term
    back = stage.machine(gone).member
    assert back is None or not back.is_leader
    check(stage, left, zombie, expected)
    stage.agree()
    stage.judge()


def ids(member: Member) -> set[int]:
    """Return the members that one knows by itself."""
    return {each.ID for each in member.members(linearizable=False)}


def remove(through: Member, identity: int) -> None:
    request = pb.MemberRemoveRequest(ID=identity)
    until(
        f"{identity:x} is removed",
        lambda: is_done(through.ask("Cluster/MemberRemove", request)),
    )


def check_processes(cluster: Cluster, expected: set[int]) -> None:
    cluster.settle()
    for member in cluster:
        until(f"{member} knows", lambda member=member: ids(member) == expected)  # type: ignore[misc]
    cluster.check_agreement()


@pytest.mark.long
def test_20967_processes(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_cluster(tmp_path_factory.mktemp("members"), "kvorum", 5, *FREQUENT) as cluster:
        leader = cluster.leader()
        gone, behind, *_ = cluster.others(leader)
        expected = ids(leader) - {gone.id}
        everybody = list(cluster)
        gone.kill()
        for other in cluster.others(behind):
            cluster.network.sever(behind.node, other.node)
        size = behind.log_size()
        remove(leader, gone.id)
        cluster.forget(gone)
        cluster.outgrow_logs(cluster.others(behind), 400, bytes(5000))
        cluster.network.mend()
        until("a snapshot has arrived", lambda: behind.logged("received the snapshot", size))
        check_processes(cluster, expected)
        for member in cluster:
            member.kill()
        check_processes(cluster, expected)
        # It comes back with its old files, in which it is a member; so do its flags say. It alone
        # campaigns as soon as it misses a leader.
        cluster.be_patient()
        gone.flags = TIMING
        term = cluster.leader().term()
        gone.start(among=everybody)
        gone.wait()
        assert gone.logged("removed from the cluster"), gone.log_tail()
        # By now it knows, and says so at once.
        gone.start(among=everybody)
        assert gone.wait() == 1, gone.log_tail()
        now = cluster.leader().term()
        assert now == term, f"an election: term {now} after {term}"
        check_processes(cluster, expected)
