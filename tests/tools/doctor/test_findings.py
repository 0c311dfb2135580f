"""What holds of all findings: their order, their command lines, what is judged by numbers alone."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.client.values import Member, StoreHash
from kvorum.tools.doctor.cluster import examine_cluster
from kvorum.tools.doctor.findings import (
    SEVERITIES,
    Certainty,
    Finding,
    Severity,
    Unknown,
    command_line,
    worst_first,
)
from kvorum.tools.doctor.observations import (
    ClusterSample,
    MemberStatusSample,
    MetricsSample,
    Observation,
    Timing,
)

STATE = MemberStatusSample(1, 1, 1, "3.7.3", 5, 2, 10, 10, 1000, 900, 0, False, "", ())


def sight(*observations: Observation) -> ClusterSample:
    members = [
        Member(each.state.member, f"m{each.state.member}", [], [each.endpoint], False)
        for each in observations
        if each.state is not None
    ]
    return ClusterSample(list(observations), members, [], True, 1e9, ("kvorumctl",))


def names(*observations: Observation) -> set[str]:
    return {each.name for each in examine_cluster(sight(*observations))}


def seen(number: int, metrics: MetricsSample = MetricsSample(), **changes: object) -> Observation:  # noqa: B008
    state = STATE._replace(member=number, **changes)  # type: ignore[arg-type]
    return Observation(f"e{number}:2379", state, state, "", True, metrics)


@pytest.mark.long
@given(
    st.lists(
        st.builds(
            Finding,
            st.sampled_from(sorted(SEVERITIES)),
            st.sampled_from(Certainty),
            st.text(),
            st.text(),
            st.just({}),
        )
    )
)
def test_the_worst_comes_first(findings: list[Finding]) -> None:
    order = list(Severity)
    ranks = [order.index(each.severity) for each in worst_first(findings)]
    assert ranks == sorted(ranks)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0"), min_size=1), min_size=1))
def test_a_shell_reads_the_words_that_were_meant(words: list[str]) -> None:
    """Names and URLs come from servers: none of them may become a command of its own."""
    line = command_line("kvorumctl", *words, Unknown("--peer-urls=<peer url>"))
    assert shlex.split(line.removesuffix(" --peer-urls=<peer url>")) == ["kvorumctl", *words]


def test_three_members_that_are_fine() -> None:
    assert names(seen(1), seen(2), seen(3)) == set()


def test_versions() -> None:
    assert names(seen(1), seen(2, version="3.6.1"), seen(3)) == {"versions-differ"}
    assert names(seen(1), seen(2, version="3.5.9"), seen(3)) == {"versions-incompatible"}
    assert names(seen(1), seen(2, version="4.0.0"), seen(3)) == {"versions-incompatible"}


def test_networks() -> None:
    slow, few = Timing(0.2, 0.4, 10), Timing(0.2, 0.4, 9)
    assert names(seen(1, MetricsSample(round_trips=slow)), seen(2), seen(3)) == {"network-slow"}
    assert not names(seen(1, MetricsSample(round_trips=few)), seen(2), seen(3))


def test_loads() -> None:
    busy = MetricsSample(proposals_pending=101, proposals_failed_per_second=5.1, slow_watchers=11)
    found = names(seen(1, busy), seen(2), seen(3))
    assert found == {"proposals-pending", "proposals-failing", "watchers-slow"}
    fine = MetricsSample(proposals_pending=100, proposals_failed_per_second=5.0, slow_watchers=10)
    assert not names(seen(1, fine), seen(2), seen(3))


def test_members_without_a_majority_do_not_decide_who_is_right() -> None:
    one = seen(1)._replace(hash=StoreHash(7, 5, -1))
    other = seen(2)._replace(hash=StoreHash(8, 5, -1))
    found = [each for each in examine_cluster(sight(one, other)) if each.name == "hashes-differ"]
    assert {each.subject for each in found} == {one.endpoint, other.endpoint}
    # Hashes of other revisions say nothing.
    later = other._replace(hash=StoreHash(8, 6, -1))
    assert "hashes-differ" not in names(one, later)


def test_a_leader_that_lacks_what_a_member_applied() -> None:
    leader = seen(1, raft_index=10, applied_index=10)
    ahead = seen(2, raft_index=11, applied_index=11)
    assert "leader-behind" in names(leader, ahead)
    # A leader of an earlier term does not know that another one leads.
    assert ahead.before is not None
    later = ahead._replace(before=ahead.before._replace(raft_term=3))
    assert "leader-behind" not in names(leader, later)
    # What the member applied between the looks may be newer than the look at the leader.
    grown = ahead._replace(before=ahead.before._replace(applied_index=10))
    assert "leader-behind" not in names(leader, grown)
