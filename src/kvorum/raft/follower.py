"""The follower role: accept entries, heartbeats and snapshots, and forward requests to the leader.

Every message of the leader restarts the election timer. A follower rejects an append that does not
connect to its log, with a hint that skips indexes at which the two logs certainly differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvorum.raft import election, membership
from kvorum.raft.config import ReadOnlyOption
from kvorum.raft.entries import NO_LIMIT
from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import NONE, Message, MessageType, Snapshot
from kvorum.raft.states import ReadState

if TYPE_CHECKING:
    from kvorum.raft.core import Handlers, Raft

_NO_SNAPSHOT: Final = Snapshot(0, 0)


def _on_propose(raft: Raft, message: Message) -> None:
    if raft.lead == NONE:
        raft.logger.info(f"{raft.id:x} no leader at term {raft.term}; dropping proposal")
        raise ProposalDroppedError
    if raft.config.disable_proposal_forwarding:
        raft.logger.info(
            f"{raft.id:x} not forwarding to leader {raft.lead:x} at term {raft.term}; "
            "dropping proposal"
        )
        raise ProposalDroppedError
    _forward(raft, message)


def _forward(raft: Raft, message: Message, log_term: int = 0) -> None:
    """Pass a request on to the leader with its original sender."""
    raft.send(
        Message(
            message.type,
            to=raft.lead,
            sender=message.sender,
            log_term=log_term,
            entries=message.entries,
            context=message.context,
        )
    )


def _note_leader(raft: Raft, message: Message) -> None:
    raft.election_elapsed = 0
    raft.lead = message.sender


def _on_append(raft: Raft, message: Message) -> None:
    _note_leader(raft, message)
    log, entries, index = raft.log, message.entries, message.index
    if entries and (entries[0].index != index + 1 or entries[-1].index != index + len(entries)):
        raft.logger.error(
            f"{raft.id:x} ignored MsgApp from {message.sender:x}: {len(entries)} entries "
            f"{entries[0].index}..{entries[-1].index} do not follow index {index}"
        )
        return
    if index < log.committed:
        # The append is stale: the leader holds every committed entry. Report the commit index.
        if message.term:
            _check_committed(raft, message)
        raft.send(Message(MessageType.APP_RESP, to=message.sender, index=log.committed))
        return
    last_new = log.maybe_append((message.log_term, index), entries, message.commit)
    if last_new is not None:
        raft.send(Message(MessageType.APP_RESP, to=message.sender, index=last_new))
        return
    raft.logger.debug(
        f"{raft.id:x} [logterm: {log.term_or_zero(index)}, index: {index}] rejected MsgApp "
        f"[logterm: {message.log_term}, index: {index}] from {message.sender:x}"
    )
    hint_term, hint_index = log.find_conflict_by_term(
        min(index, log.last_index()), message.log_term
    )
    raft.send(
        Message(
            MessageType.APP_RESP,
            to=message.sender,
            index=index,
            reject=True,
            reject_hint=hint_index,
            log_term=hint_term,
        )
    )


def _check_committed(raft: Raft, message: Message) -> None:
    """Stop if the leader of this term lacks an entry that is committed on this node.

    Raft elects no leader that lacks a committed entry, so such a leader proves that members have
    lost entries. The terms show it in most cases, even where the log is compacted, because the
    terms of a log never fall. The lost members may have reused a term; then the entries themselves
    differ.
    """
    log, committed = raft.log, raft.log.committed
    sent = [entry for entry in message.entries if entry.index <= committed]
    index, term = (sent[-1].index, sent[-1].term) if sent else (message.index, message.log_term)
    own_term = log.term_or_zero(index)
    is_lost = own_term != term if own_term else term > log.term_or_zero(committed)
    first = log.first_index()
    kept = [entry for entry in sent if entry.index >= first]
    if kept and not is_lost:
        is_lost = log.slice(kept[0].index, kept[-1].index + 1, NO_LIMIT) != kept
    if is_lost:
        raft.stop(
            f"{raft.id:x} has committed the entries up to {committed}, and the entries of leader "
            f"{message.sender:x} of term {message.term} differ at index {index} or below: members "
            "have lost entries that were committed. Was the data directory of a member replaced by "
            "an older copy?"
        )


def _on_heartbeat(raft: Raft, message: Message) -> None:
    _note_leader(raft, message)
    raft.log.commit_to(message.commit)
    raft.send(Message(MessageType.HEARTBEAT_RESP, to=message.sender, context=message.context))


def _on_snapshot(raft: Raft, message: Message) -> None:
    _note_leader(raft, message)
    snapshot = message.snapshot or _NO_SNAPSHOT
    restored = membership.restore_snapshot(raft, snapshot)
    raft.logger.info(
        f"{raft.id:x} [commit: {raft.log.committed}] {'restored' if restored else 'ignored'} "
        f"snapshot [index: {snapshot.index}, term: {snapshot.term}]"
    )
    index = raft.log.last_index() if restored else raft.log.committed
    raft.send(Message(MessageType.APP_RESP, to=message.sender, index=index))


def _on_transfer_leader(raft: Raft, message: Message) -> None:
    if raft.lead == NONE:
        raft.logger.info(f"{raft.id:x} no leader at term {raft.term}; dropping leader transfer msg")
        return
    _forward(raft, message)


def _on_forget_leader(raft: Raft, _message: Message) -> None:
    if raft.config.read_only_option is ReadOnlyOption.LEASE_BASED:
        raft.logger.error("ignoring MsgForgetLeader due to ReadOnlyLeaseBased")
    elif raft.lead != NONE:
        raft.logger.info(f"{raft.id:x} forgetting leader {raft.lead:x} at term {raft.term}")
        raft.lead = NONE


def _on_timeout_now(raft: Raft, message: Message) -> None:
    raft.logger.info(
        f"{raft.id:x} [term {raft.term}] received MsgTimeoutNow from {message.sender:x} "
        "and starts an election to get leadership."
    )
    # Skip the pre-vote, because the leader asked for this election.
    election.hup(raft, election.Campaign.TRANSFER)


def _on_read_index(raft: Raft, message: Message) -> None:
    if raft.lead == NONE:
        raft.logger.info(f"{raft.id:x} no leader at term {raft.term}; dropping index reading msg")
        return
    # The request carries this node's term; `reads` explains the use.
    is_own = message.sender in (NONE, raft.id)
    _forward(raft, message, raft.term if is_own else message.log_term)


def _on_read_index_response(raft: Raft, message: Message) -> None:
    if len(message.entries) != 1:
        raft.logger.error(
            f"{raft.id:x} invalid format of MsgReadIndexResp from {message.sender:x}, "
            f"entries count: {len(message.entries)}"
        )
        return
    raft.read_states.append(ReadState(message.index, message.entries[0].data))


HANDLERS: Final[Handlers] = {
    MessageType.PROP: _on_propose,
    MessageType.APP: _on_append,
    MessageType.HEARTBEAT: _on_heartbeat,
    MessageType.SNAP: _on_snapshot,
    MessageType.TRANSFER_LEADER: _on_transfer_leader,
    MessageType.FORGET_LEADER: _on_forget_leader,
    MessageType.TIMEOUT_NOW: _on_timeout_now,
    MessageType.READ_INDEX: _on_read_index,
    MessageType.READ_INDEX_RESP: _on_read_index_response,
}
