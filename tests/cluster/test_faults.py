"""Members that are killed, paused or cut off: what was acknowledged stays, and clients go on."""

from collections.abc import Callable

import pytest

from tests.cluster.load import Load, load
from tests.cluster.members import Cluster, Member
from tests.cluster.starvation import Machine, again_if_starved

Fault = Callable[[Cluster, Member, Load], None]


def kill(_cluster: Cluster, member: Member, work: Load) -> None:
    member.kill()
    work.await_progress()
    member.start()


def pause(_cluster: Cluster, member: Member, work: Load) -> None:
    member.pause()
    work.await_progress()
    member.resume()


def isolate(cluster: Cluster, member: Member, work: Load) -> None:
    cluster.network.isolate(member.node)
    work.await_progress()
    cluster.network.mend()


def cut_from_it(cluster: Cluster, member: Member, work: Load) -> None:
    for other in cluster.others(member):
        cluster.network.cut(member.node, other.node)
    work.await_progress()
    cluster.network.mend()


def cut_to_it(cluster: Cluster, member: Member, work: Load) -> None:
    for other in cluster.others(member):
        cluster.network.cut(other.node, member.node)
    work.await_progress()
    cluster.network.mend()


def slow(cluster: Cluster, member: Member, work: Load) -> None:
    for other in cluster.others(member):
        cluster.network.slow(member.node, other.node, 0.03, 200_000)
        cluster.network.slow(other.node, member.node, 0.03, 200_000)
    work.await_progress()
    cluster.network.mend()


def reset(cluster: Cluster, member: Member, work: Load) -> None:
    for _ in range(5):
        for other in cluster.others(member):
            cluster.network.reset(member.node, other.node)
        work.await_progress(5)


ONE_WAY: tuple[Fault, ...] = (cut_from_it, cut_to_it)
DISTURBING: tuple[Fault, ...] = (slow, reset)


@pytest.mark.parametrize(
    "fault",
    [kill, isolate, *(pytest.param(each, marks=pytest.mark.long) for each in (pause, *ONE_WAY))],
    ids=lambda fault: fault.__name__,
)
def test_a_leader_is_deposed(cluster: Cluster, fault: Fault) -> None:
    with load(cluster) as work:
        work.await_progress()
        # In this order: the leader at that time leads in this term or a later one.
        term = cluster.leader().term()
        fault(cluster, cluster.leader(), work)
        work.await_progress()
    assert cluster.leader().term() > term


@pytest.mark.parametrize("fault", DISTURBING, ids=lambda fault: fault.__name__)
def test_a_leader_is_disturbed(cluster: Cluster, fault: Fault) -> None:
    with load(cluster) as work:
        work.await_progress()
        fault(cluster, cluster.leader(), work)
        work.await_progress()


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [kill, isolate, *(pytest.param(each, marks=pytest.mark.campaign) for each in ONE_WAY)],
    ids=lambda fault: fault.__name__,
)
@again_if_starved
def test_a_follower_in_trouble_disturbs_nobody(cluster: Cluster, fault: Fault) -> None:
    machine = Machine(cluster)
    term = cluster.leader().term()
    with load(cluster) as work:
        work.await_progress()
        fault(cluster, cluster.followers()[0], work)
        work.await_progress()
    now = cluster.leader().term()
    machine.expect(now == term, f"an election: term {now} after {term}")


@again_if_starved
def test_a_new_leader_within_two_timeouts(cluster: Cluster) -> None:
    leader = cluster.settle()
    machine = Machine(cluster)
    term = leader.term()
    others = cluster.others(leader)
    logs = {member: member.log_size() for member in others}
    leader.kill()
    # Nobody is asked the time: each member campaigns once in a timeout.
    now = cluster.leader(others).term()
    machine.expect(now <= term + 2, f"more than two elections: term {now} after {term}")
    for member, size in logs.items():
        elections = member.logged("is starting a new election", size)
        machine.expect(elections <= 2, f"{elections} elections of {member}: {member.log_tail()}")
