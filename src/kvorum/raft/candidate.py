"""The roles candidate and pre-candidate: count votes, and yield to a leader of the term.

A response to the other kind of election is late; the candidate ignores its vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kvorum.raft import election, follower
from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import NONE, Message, MessageType
from kvorum.raft.quorum import VoteResult
from kvorum.raft.replication import broadcast_append
from kvorum.raft.states import ROLE_NAMES, Role

if TYPE_CHECKING:
    from kvorum.raft.core import Handlers, Raft


def _on_propose(raft: Raft, _message: Message) -> NoReturn:
    raft.logger.info(f"{raft.id:x} no leader at term {raft.term}; dropping proposal")
    raise ProposalDroppedError


def _on_message_of_leader(raft: Raft, message: Message) -> None:
    # The message is of this term, or has none; this node's term never goes back.
    raft.become_follower(raft.term, message.sender)
    follower.HANDLERS[message.type](raft, message)


def _on_vote_response(raft: Raft, message: Message) -> None:
    if raft.role == Role.CANDIDATE:
        _on_result(raft, election.count_vote(raft, message))
    if message.reject:
        election.learn_commit(raft, message)


def _on_pre_vote_response(raft: Raft, message: Message) -> None:
    if raft.role == Role.PRE_CANDIDATE:
        _on_result(raft, election.count_vote(raft, message))
    if message.reject:
        election.learn_commit(raft, message)


def _on_result(raft: Raft, result: VoteResult) -> None:
    if result is VoteResult.WON:
        if raft.role == Role.PRE_CANDIDATE:
            election.campaign(raft, election.Campaign.ELECTION)
        else:
            raft.become_leader()
            broadcast_append(raft)
    elif result is VoteResult.LOST:
        # Keep this term, though a rejected pre-vote may have been for a later one.
        raft.become_follower(raft.term, NONE)


def _on_timeout_now(raft: Raft, message: Message) -> None:
    raft.logger.debug(
        f"{raft.id:x} [term {raft.term} state {ROLE_NAMES[raft.role]}] "
        f"ignored MsgTimeoutNow from {message.sender:x}"
    )


HANDLERS: Handlers = {
    MessageType.PROP: _on_propose,
    MessageType.APP: _on_message_of_leader,
    MessageType.HEARTBEAT: _on_message_of_leader,
    MessageType.SNAP: _on_message_of_leader,
    MessageType.VOTE_RESP: _on_vote_response,
    MessageType.PRE_VOTE_RESP: _on_pre_vote_response,
    MessageType.TIMEOUT_NOW: _on_timeout_now,
}
