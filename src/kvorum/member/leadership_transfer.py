"""Transfer leadership before this member shuts down, so that no client waits for an election."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.member.procedures import Exclusive
from kvorum.member.waits import Signal, Signalled, Until
from kvorum.raft.messages import NONE
from kvorum.state.apply.callers import MEMBER

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.parts import Part
    from kvorum.member.waits import Steps

HEARTBEATS_AWAITED = 2
"""A voter that runs has answered a heartbeat after so many intervals."""
RETRY_SECONDS = 0.02


def transfer_leadership(member: Member) -> None:
    """Start transferring leadership to another voter; `Exclusive.TRANSFER` runs until the end.

    The member tries the most up-to-date voter first. Raft abandons a transfer after an election
    timeout; then the member tries the next voter, for as long as a request may take. Raft refuses
    proposals meanwhile.
    """
    member.procedures.begin_exclusive(Exclusive.TRANSFER)
    member.start(None, MEMBER, _transfer_leadership(member))


def _transfer_leadership(member: Member) -> Steps:
    try:
        yield from _try_voters(member)
    finally:
        member.procedures.finish_exclusive(Exclusive.TRANSFER)
    if member.leader not in (member.id, NONE):
        member.logger.info(f"member {member.leader:x} leads now")
    return None


def _try_voters(member: Member) -> Part[None]:
    deadline = member.now + member.config.request_seconds_max
    answered_by = member.now + HEARTBEATS_AWAITED * member.config.heartbeat_seconds
    tried: list[int] = []
    while member.is_leader and member.now < deadline:
        heir = _best_successor(member, tried)
        if heir is None:
            if not tried and member.now < answered_by:
                # Once per election timeout Raft forgets which voters were active. If connections
                # have just ended, too, no voter seems reachable until it answers a heartbeat.
                yield Until(min(member.now + RETRY_SECONDS, answered_by))
                continue
            if tried:
                member.logger.warning("no voter takes over the leadership; an election follows")
            return
        tried.append(heir)
        member.logger.info(f"handing the leadership over to {heir:x}")
        member.replica.node.transfer_leader(heir)
        until = min(deadline, member.now + member.config.election_seconds)
        while member.leader in (member.id, NONE) and member.now < until:
            yield Signalled(Signal.LEADER, until)


def _best_successor(member: Member, tried: list[int]) -> int | None:
    """Return the voter with the longest matching log among those that seem reachable."""
    progress = member.replica.node.raft.tracker.progress
    voters = [
        voter
        for voter in member.conf_state.voters
        if voter not in (member.id, *tried)
        and (voter in member.replica.connections or progress[voter].recent_active)
    ]
    return max(voters, key=lambda voter: progress[voter].match, default=None)
