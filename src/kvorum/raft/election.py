"""Elections: campaign, and vote.

A node votes once per term, for a candidate whose log is at least as up to date as its own. With
pre-vote, a node first asks whether it would win. This disturbs nobody, because neither side changes
its term or vote. A node's own vote travels like any other, after it is durable.

A voter may hold more entries than the candidate, and not know that the change which allows it to
campaign is committed, while the candidate does know. Or the voter knows of a committed change that
removed the candidate. So a request can carry the commit index, and so can a refusal.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kvorum.raft.entries import EntryType
from kvorum.raft.errors import RaftError
from kvorum.raft.messages import NONE, Message, MessageType
from kvorum.raft.names import MESSAGE_TYPE_NAMES
from kvorum.raft.quorum import VoteResult
from kvorum.raft.states import Role

if TYPE_CHECKING:
    from kvorum.raft.core import Raft

# Context of a vote request that the leader caused: followers need not wait for its lease to end.
CAMPAIGN_TRANSFER = b"CampaignTransfer"

_RESPONSE_TYPES = {
    MessageType.VOTE: MessageType.VOTE_RESP,
    MessageType.PRE_VOTE: MessageType.PRE_VOTE_RESP,
}


class Campaign(Enum):
    """The reason for a campaign."""

    PRE_ELECTION = "pre-election"
    ELECTION = "election"
    TRANSFER = "transfer"


def hup(raft: Raft, kind: Campaign) -> None:
    """Campaign, if this node may."""
    if raft.role == Role.LEADER:
        raft.logger.debug(f"{raft.id:x} ignoring MsgHup because already leader")
        return
    if not raft.promotable():
        raft.logger.warning(f"{raft.id:x} is unpromotable and can not campaign")
        return
    if _has_unapplied_conf_change(raft):
        raft.logger.warning(
            f"{raft.id:x} cannot campaign at term {raft.term} since there are still pending "
            "configuration changes to apply"
        )
        return
    raft.logger.info(f"{raft.id:x} is starting a new election at term {raft.term}")
    campaign(raft, kind)


def _has_unapplied_conf_change(raft: Raft) -> bool:
    low, high = raft.log.applied + 1, raft.log.committed + 1
    try:
        for page in raft.log.scan(low, high, raft.config.committed_size_max):
            if any(entry.type != EntryType.NORMAL for entry in page):
                return True
    except RaftError as error:
        raft.stop(f"error scanning unapplied entries [{low}, {high}): {error}")
    return False


def campaign(raft: Raft, kind: Campaign) -> None:
    """Send vote requests to the voters of both halves."""
    if kind is Campaign.PRE_ELECTION:
        raft.become_pre_candidate()
        request, term = MessageType.PRE_VOTE, raft.term + 1
    else:
        raft.become_candidate()
        request, term = MessageType.VOTE, raft.term
    last_term, last_index = raft.log.last_entry_id()
    context = CAMPAIGN_TRANSFER if kind is Campaign.TRANSFER else b""
    committed = raft.log.committed if raft.config.tell_commit_to_voters else 0
    for node in raft.tracker.config.voters():
        if node == raft.id:
            raft.send(Message(_RESPONSE_TYPES[request], to=node, term=term))
            continue
        raft.logger.info(
            f"{raft.id:x} [logterm: {last_term}, index: {last_index}] sent "
            f"{MESSAGE_TYPE_NAMES[request]} request to {node:x} at term {raft.term}"
        )
        raft.send(
            Message(
                request,
                to=node,
                term=term,
                log_term=last_term,
                index=last_index,
                commit=committed,
                context=context,
            )
        )


def count_vote(raft: Raft, message: Message) -> VoteResult:
    """Count the vote in a response; return the state of the election."""
    name = MESSAGE_TYPE_NAMES[message.type]
    rejection = " rejection" if message.reject else ""
    raft.logger.info(
        f"{raft.id:x} received {name}{rejection} from {message.sender:x} at term {raft.term}"
    )
    raft.tracker.record_vote(message.sender, not message.reject)
    granted, rejected, result = raft.tracker.tally_votes()
    raft.logger.info(
        f"{raft.id:x} has received {granted} {name} votes and {rejected} vote rejections"
    )
    return result


def vote_log_line(raft: Raft, message: Message, verdict: str) -> str:
    """Return the log line about the answer to a vote request."""
    last_term, last_index = raft.log.last_entry_id()
    preposition = "for" if verdict == "cast" else "from"
    return (
        f"{raft.id:x} [logterm: {last_term}, index: {last_index}, vote: {raft.vote:x}] {verdict} "
        f"{MESSAGE_TYPE_NAMES[message.type]} {preposition} {message.sender:x} "
        f"[logterm: {message.log_term}, index: {message.index}] at term {raft.term}"
    )


def on_vote_request(raft: Raft, message: Message) -> None:
    """Grant or deny a vote. Learners vote, too: an entry they lack may have made them voters."""
    if not message.term:
        raft.logger.error(
            f"{raft.id:x} ignored {MESSAGE_TYPE_NAMES[message.type]} from {message.sender:x}: "
            "it names no term"
        )
        return
    is_pre_vote = message.type == MessageType.PRE_VOTE
    may_vote = (
        raft.vote == message.sender
        or (raft.vote == NONE and raft.lead == NONE)
        or (is_pre_vote and message.term > raft.term)
    )
    response = _RESPONSE_TYPES[message.type]
    if not (may_vote and raft.log.is_up_to_date(message.log_term, message.index)):
        raft.logger.info(vote_log_line(raft, message, "rejected"))
        shared = min(raft.log.committed, message.index) if raft.config.tell_commit_to_voters else 0
        raft.send(
            Message(
                response,
                to=message.sender,
                term=raft.term,
                log_term=raft.log.term_or_zero(shared),
                index=shared,
                commit=shared,
                reject=True,
            )
        )
        learn_commit(raft, message)
        return
    raft.logger.info(vote_log_line(raft, message, "cast"))
    # Answer with the request's term, which in a pre-vote is a term that no node has entered yet.
    raft.send(Message(response, to=message.sender, term=message.term))
    if not is_pre_vote:
        raft.election_elapsed = 0
        raft.vote = message.sender


def learn_commit(raft: Raft, message: Message) -> None:
    """Take a commit index from a refused candidate or a refusal, if the log up to it is shared.

    The entries that it commits may include the change that lets this node campaign or win. Without
    that change, neither of the two nodes would ever win: one has the shorter log, and the other is
    a learner, was removed, or waits for votes of removed members.
    """
    committed = min(message.commit, message.index)
    if raft.role == Role.LEADER or committed <= raft.log.committed:
        return
    if not raft.log.matches(message.log_term, message.index):
        return
    raft.logger.info(
        f"{raft.id:x} [commit: {raft.log.committed}] learned from {message.sender:x} "
        f"that {committed} is committed"
    )
    raft.log.commit_to(committed)
    if raft.role != Role.FOLLOWER and _has_unapplied_conf_change(raft):
        # The campaign and its votes rely on a configuration that a committed change replaces.
        raft.become_follower(raft.term, NONE)
