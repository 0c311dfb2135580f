"""Compare the stored members with raft's configuration: two records of the same membership.

They differ where a release of etcd had a bug: a promoted learner stayed a learner in the store, a
removed member came back into it, or a voter is missing there. Only the first has a safe correction,
the one that etcd 3.6 makes: the learner votes already. During a joint configuration, which raft
leaves automatically, the voters of both halves count.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvorum.raft.messages import ConfState
from kvorum.state.membership.documents import MemberDocument


def promoted_learners(
    members: Sequence[MemberDocument], conf_state: ConfState
) -> list[MemberDocument]:
    """Return the members stored as learners that vote in raft, changed to voters."""
    voters = {*conf_state.voters, *conf_state.voters_outgoing}
    return [replace(each, is_learner=False) for each in _learners(members) if each.id in voters]


def describe_difference(members: Sequence[MemberDocument], conf_state: ConfState) -> str:
    """Describe both records if they differ, else return ""; promoted learners count as voters."""
    cured = {each.id for each in promoted_learners(members, conf_state)}
    learners = {each.id for each in _learners(members)} - cured
    voters = {each.id for each in members} - learners
    counted = {*conf_state.voters, *conf_state.voters_outgoing}
    # A voter that becomes a learner counts as a voter until the end of the change.
    waiting = {*conf_state.learners, *conf_state.learners_next} - counted
    if (voters, learners) == (counted, waiting):
        return ""
    return f"the store has {_listed(voters, learners)}; raft counts {_listed(counted, waiting)}"


def _learners(members: Sequence[MemberDocument]) -> list[MemberDocument]:
    return [each for each in members if each.is_learner]


def _listed(voters: set[int], learners: set[int]) -> str:
    def named(ids: set[int]) -> str:
        return ", ".join(f"{each:x}" for each in sorted(ids)) or "none"

    return f"voters {named(voters)} and learners {named(learners)}"
