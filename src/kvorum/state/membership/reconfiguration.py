"""The strict checks of a membership change before it is proposed.

They keep a cluster from losing its quorum to a change: a voter that never started, or that this
member cannot reach, counts against the change. Each check returns None if the member may propose
the change, or the error for the client. "Connected" are this member and those that it has reached
for some time (`CONNECTED_SECONDS_MIN`).
"""

from collections.abc import Collection, Iterable

from kvorum.api.errors import MEMBER_NOT_ENOUGH_STARTED, UNHEALTHY, Status
from kvorum.state.membership.documents import MemberDocument

CONNECTED_SECONDS_MIN = 5.0


def quorum(voters: int) -> int:
    """Return the smallest majority of a number of voters."""
    return voters // 2 + 1


def may_add(
    members: Iterable[MemberDocument], connected: Collection[int], *, is_learner: bool
) -> Status | None:
    """Check the addition of a voter or learner."""
    voters = _voters(members)
    started = sum(voter.is_started for voter in voters)
    after = len(voters) + 1
    # One member may always become two: there is no other way to grow.
    is_second = started == 1 and after == 2
    if not is_learner and not is_second and started < quorum(after):
        return MEMBER_NOT_ENOUGH_STARTED
    if len(voters) != 1 and _connected(voters, connected) < quorum(after):
        return UNHEALTHY
    return None


def may_remove(
    members: Iterable[MemberDocument],
    connected: Collection[int],
    member_id: int,
    *,
    is_active: bool,
) -> Status | None:
    """Check the removal of a member; removing a learner is always permitted.

    `is_active` means that the member is this one, or has a connection, however recent.
    """
    members = list(members)
    if any(member.is_learner for member in members if member.id == member_id):
        return None
    voters = _voters(members)
    remaining = [voter for voter in voters if voter.id != member_id]
    if sum(voter.is_started for voter in remaining) < quorum(len(remaining)):
        return MEMBER_NOT_ENOUGH_STARTED
    # A member that is down is not part of the working quorum.
    if not is_active:
        return None
    if _connected(voters, connected) - 1 < quorum(len(voters) - 1):
        return UNHEALTHY
    return None


def may_promote(members: Iterable[MemberDocument]) -> Status | None:
    """Check the promotion of a learner, which counts as started."""
    voters = _voters(members)
    if sum(voter.is_started for voter in voters) + 1 < quorum(len(voters) + 1):
        return MEMBER_NOT_ENOUGH_STARTED
    return None


def is_learner_ready(learner_match: int, leader_match: int) -> bool:
    """Return whether a learner has nine tenths of the leader's log."""
    return learner_match * 10 >= leader_match * 9


def _voters(members: Iterable[MemberDocument]) -> list[MemberDocument]:
    return [member for member in members if not member.is_learner]


def _connected(voters: list[MemberDocument], connected: Collection[int]) -> int:
    return sum(voter.id in connected for voter in voters)
