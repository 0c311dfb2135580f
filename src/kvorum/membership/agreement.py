"""Whether the stored members are those that Raft counts: two records of the same thing.

They part where a release of etcd had a bug: a promoted learner stayed a learner in the store, a
removed member came back into it, or a voter is missing there. Only the first has a safe cure, the
one that etcd 3.6 applies: the learner votes already. A change of the configuration in flight, which
Raft leaves by itself, counts all of its voters.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvorum.membership.documents import Member
from kvorum.raft.messages import ConfState


def promoted(members: Sequence[Member], conf_state: ConfState) -> list[Member]:
    """Return as voters the members that are stored as learners although they vote."""
    voters = {*conf_state.voters, *conf_state.voters_outgoing}
    return [replace(each, is_learner=False) for each in _learners(members) if each.id in voters]


def difference(members: Sequence[Member], conf_state: ConfState) -> str:
    """Return both lists if they differ, "" if they do not; promoted learners count as voters."""
    cured = {each.id for each in promoted(members, conf_state)}
    learners = {each.id for each in _learners(members)} - cured
    voters = {each.id for each in members} - learners
    counted = {*conf_state.voters, *conf_state.voters_outgoing}
    # A voter that becomes a learner is one when the change is over.
    waiting = {*conf_state.learners, *conf_state.learners_next} - counted
    if (voters, learners) == (counted, waiting):
        return ""
    return f"the store has {_listed(voters, learners)}; raft counts {_listed(counted, waiting)}"


def _learners(members: Sequence[Member]) -> list[Member]:
    return [each for each in members if each.is_learner]


def _listed(voters: set[int], learners: set[int]) -> str:
    def named(ids: set[int]) -> str:
        return ", ".join(f"{each:x}" for each in sorted(ids)) or "none"

    return f"voters {named(voters)} and learners {named(learners)}"
