"""Members that are killed, paused or cut off: what was acknowledged stays, and clients go on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.load import Load, load
from tests.cluster.members import TIMING, Cluster, Member
from tests.incidents.stage import Stage
from tests.waiting import until

Fault = Callable[[Cluster, Member, Load], None]


def kill(_cluster: Cluster, member: Member, work: Load) -> None:
    member.kill()
    work.await_progress()
    member.start()


def pause(_cluster: Cluster, member: Member, work: Load) -> None:
    member.pause()
    work.await_progress()
    member.resume()


def nothing() -> None:
    pass


def isolate(
    cluster: Cluster, member: Member, work: Load, wait: Callable[[], None] = nothing
) -> None:
    cluster.network.isolate(member.node)
    work.await_progress()
    wait()
    cluster.network.mend()


def cut_from_it(cluster: Cluster, member: Member, work: Load) -> None:
    for other in cluster.others(member):
        cluster.network.cut(member.node, other.node)
    work.await_progress()
    cluster.network.mend()


def cut_to_it(
    cluster: Cluster, member: Member, work: Load, wait: Callable[[], None] = nothing
) -> None:
    for other in cluster.others(member):
        cluster.network.cut(other.node, member.node)
    work.await_progress()
    wait()
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


@pytest.fixture
def impatient(patient: Cluster) -> Iterator[Member]:
    """A follower of patient members that campaigns as soon as it misses its leader."""
    follower = patient.followers()[0]
    follower.terminate()
    follower.flags = TIMING
    patient.settle()
    yield follower
    follower.flags = ()
    if follower.is_running:
        follower.resume()
        follower.terminate()


def silence(cluster: Cluster, member: Member, work: Load) -> None:
    """Isolate a follower until it campaigns, and let it go on campaigning when it comes back."""
    size = member.log_size()
    isolate(cluster, member, work, lambda: until_it_campaigns(member, size))


def deafen(cluster: Cluster, member: Member, work: Load) -> None:
    """Let nothing reach a follower until it campaigns, which the others hear."""
    size = member.log_size()
    cut_to_it(cluster, member, work, lambda: until_it_campaigns(member, size))


def until_it_campaigns(member: Member, size: int) -> None:
    until(f"{member} campaigns", lambda: member.logged("is starting a new election", size))


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        kill,
        silence,
        *(pytest.param(each, marks=pytest.mark.campaign) for each in (deafen, cut_from_it)),
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_follower_in_trouble_disturbs_nobody(
    patient: Cluster, impatient: Member, fault: Fault
) -> None:
    term = patient.leader().term()
    with load(patient) as work:
        work.await_progress()
        fault(patient, impatient, work)
        work.await_progress()
    now = patient.leader().term()
    assert now == term, f"an election: term {now} after {term}"


@pytest.mark.parametrize("seed", range(8))
def test_a_new_leader_within_two_timeouts(tmp_path: Path, seed: int) -> None:
    """In virtual time: how often real members campaign depends on how busy their machine is."""
    stage = Stage(tmp_path, 3, seed=seed)
    try:
        leader, others = stage.leader, stage.followers()
        term = stage.machine(leader).seen_term
        stage.machine(leader).crash(power_cut=True)

        def leads(number: int) -> bool:
            member = stage.machine(number).member
            return member is not None and member.is_leader

        # Each waits for up to two timeouts before it campaigns, and once more if votes are split.
        stage.run_until(
            lambda: any(map(leads, others)), 4 * stage.machine().config.election_seconds
        )
        assert max(stage.machine(each).seen_term for each in others) <= term + 2
    finally:
        stage.close()
