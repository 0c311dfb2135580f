"""The phases of a member's life: only the transitions of the table happen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.member.errors import MemberStopped
from kvorum.member.jobs import ExecutorKind, Job, Nothing
from kvorum.member.lifecycle import TRANSITIONS, Lifecycle, MemberEvent, MemberPhase
from tests.member.harness import Cluster


@given(st.lists(st.sampled_from(MemberEvent), max_size=8))
def test_an_event_that_a_phase_does_not_expect_changes_nothing(events: list[MemberEvent]) -> None:
    life = Lifecycle()
    for event in events:
        before = life.phase
        if event in TRANSITIONS[before]:
            life.take(event)
            assert life.phase is TRANSITIONS[before][event]
        else:
            with pytest.raises(AssertionError, match=f"{before.name} does not end with"):
                life.take(event)
            assert life.phase is before


def test_no_phase_comes_back() -> None:
    def later(phase: MemberPhase) -> set[MemberPhase]:
        following = set(TRANSITIONS[phase].values())
        return following.union(*map(later, following))

    assert all(phase not in later(phase) for phase in MemberPhase)


def test_a_member_lives_through_its_phases() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    member = machine.running
    cluster.wait(lambda: member.is_published)
    phases = [member.replica.lifecycle.phase]
    machine.server.drain(cluster.now)
    cluster.wait(lambda: machine.member is None)
    phases.append(member.replica.lifecycle.phase)
    assert phases == [MemberPhase.PUBLISHED, MemberPhase.CLOSED]


def test_a_failed_job_stops_a_member_for_good() -> None:
    cluster = Cluster(1)
    member = cluster.leader().running
    job = Job(ExecutorKind.LOG, Nothing())
    for _ in range(2):
        with pytest.raises(MemberStopped, match="the disk is gone"):
            member.fail_job(job, OSError("the disk is gone"))
        assert member.replica.lifecycle.phase is MemberPhase.STOPPED
    with pytest.raises(MemberStopped, match="the disk is gone"):
        member.turn(cluster.now, cluster.now)
