"""Planted bugs of consensus: in votes, commits, and reads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from unittest.mock import patch

from kvorum.member.member import Member
from kvorum.member.procedures import Procedure
from kvorum.member.reads import Reads
from kvorum.member.replica import Replica
from kvorum.raft import election, membership, reads
from kvorum.raft.changes import ConfChange, ConfChangeV2
from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry
from kvorum.raft.log import RaftLog
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    ConfState,
    HardState,
    Message,
    MessageType,
)
from kvorum.raft.progress import Progress
from kvorum.raft.quorum import VoteResult
from kvorum.raft.rawnode import RawNode
from kvorum.raft.ready import Ready
from kvorum.raft.states import ReadState
from kvorum.raft.tracker import Configuration, Tracker
from kvorum.storage.wal.jobs import AppendLog
from kvorum.storage.wal.log import Log


@contextmanager
def forget_the_vote() -> Iterator[None]:
    """Write the hard state without the vote."""
    original = Log.save

    def save(log: Log, state: HardState | None, entries: list[Entry]) -> AppendLog | None:
        return original(log, None if state is None else state._replace(vote=0), entries)

    with patch.object(Log, "save", save):
        yield


@contextmanager
def commit_an_older_term_by_counting() -> Iterator[None]:
    """Commit an entry that is on a quorum even if it is of an older term."""

    def maybe_commit(log: RaftLog, term: int, index: int) -> bool:
        if term and index > log.committed:
            log.commit_to(index)
            return True
        return False

    with patch.object(RaftLog, "maybe_commit", maybe_commit):
        yield


@contextmanager
def skip_the_read_index_quorum() -> Iterator[None]:
    """Let a leader answer reads without checking that it still leads."""

    def read(raft: Raft, message: Message) -> None:
        reads._answer(raft, message, raft.log.committed)

    with patch.object(reads, "_read", read):
        yield


@contextmanager
def answer_reads_on_a_removed_leader() -> Iterator[None]:
    """Let a leader answer alone where there is one voter, even if that is another member."""

    def decides_alone(tracker: Tracker, _node: int) -> bool:
        return len(tracker.config.incoming) == 1 and not tracker.config.outgoing

    with (
        patch.object(Tracker, "is_voter", lambda _tracker, _node: True),
        patch.object(Tracker, "decides_alone", decides_alone),
        patch.object(membership, "drop_all", lambda _raft: None),
    ):
        yield


@contextmanager
def apply_a_change_on_top_of_a_snapshot() -> Iterator[None]:
    """Keep applying entries handed out before a snapshot arrived, until its installation starts."""

    def may_apply(replica: Replica) -> bool:
        return not replica.is_installing and not replica.writer.is_keeping_commit

    def apply_conf_change(raft: Raft, change: ConfChange | ConfChangeV2) -> ConfState:
        snapshot, raft.log.unstable.snapshot = raft.log.unstable.snapshot, None
        try:
            return original(raft, change)
        finally:
            raft.log.unstable.snapshot = snapshot

    original = membership.apply_conf_change
    with (
        patch.object(Replica, "may_apply", property(may_apply)),
        patch.object(membership, "apply_conf_change", apply_conf_change),
    ):
        yield


@contextmanager
def match_a_late_read_index_answer() -> Iterator[None]:
    """Accept any ReadIndex answer for the current round."""

    def take_answers(reads: Reads, states: Sequence[ReadState]) -> "list[Procedure | None]":
        confirmed: list[Procedure | None] = []
        for state in states:
            current = reads._round
            if current is not None:
                reads.confirmed.append((state.index, current.reads, current.started))
                reads.confirmed_at = min(current.sent_at.values(), default=-inf)
                confirmed += current.confirming
                reads._round = None
        return confirmed

    with patch.object(Reads, "take_answers", take_answers):
        yield


@contextmanager
def count_votes_of_removed_members() -> Iterator[None]:
    """Request votes from removed members as well, and count them.

    A member ignores messages from removed members; here it accepts their votes so that they count.
    """
    removed: dict[int, set[int]] = {}
    install, campaign, tally = Tracker.install, election.campaign, Tracker.tally_votes
    receive = Member.receive
    votes = (MessageType.VOTE_RESP, MessageType.PRE_VOTE_RESP)

    def install_and_remember(
        tracker: Tracker, config: Configuration, progress: dict[int, Progress]
    ) -> None:
        if hasattr(tracker, "config"):
            removed[id(tracker)] |= tracker.config.incoming - config.incoming
        else:
            removed[id(tracker)] = set()
        install(tracker, config, progress)

    def campaign_everywhere(raft: Raft, kind: election.Campaign) -> None:
        campaign(raft, kind)
        is_first = kind is election.Campaign.PRE_ELECTION
        last_term, last_index = raft.log.last_entry_id()
        for node in sorted(removed.get(id(raft.tracker), ())):
            request = MessageType.PRE_VOTE if is_first else MessageType.VOTE
            term = raft.term + 1 if is_first else raft.term
            raft.send(Message(request, to=node, term=term, log_term=last_term, index=last_index))

    def tally_votes(tracker: Tracker) -> tuple[int, int, VoteResult]:
        granted, rejected, result = tally(tracker)
        needed = len(tracker.config.incoming) // 2 + 1
        if list(tracker.votes.values()).count(True) >= needed:
            result = VoteResult.WON
        return granted, rejected, result

    def receive_votes(member: Member, message: Message) -> None:
        if message.type in votes and member.state.cluster.is_removed(message.sender):
            member.replica.node.raft.step(message)
        else:
            receive(member, message)

    with (
        patch.object(Member, "receive", receive_votes),
        patch.object(Tracker, "install", install_and_remember),
        patch.object(election, "campaign", campaign_everywhere),
        patch.object(Tracker, "tally_votes", tally_votes),
    ):
        yield


@contextmanager
def send_in_reverse_order() -> Iterator[None]:
    """Send the messages of one Ready to peers in reverse order."""
    original = RawNode.ready

    def ready(node: RawNode) -> Ready:
        made = original(node)
        local = [each for each in made.messages if each.to in (APPEND_THREAD, APPLY_THREAD)]
        remote = [each for each in made.messages if each.to not in (APPEND_THREAD, APPLY_THREAD)]
        made.messages = remote[::-1] + local
        return made

    with patch.object(RawNode, "ready", ready):
        yield
