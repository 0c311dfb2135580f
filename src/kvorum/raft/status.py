"""A copy of a node's state for people and for metrics; it shares nothing with the node."""

from dataclasses import dataclass, field

from kvorum.raft.core import Raft
from kvorum.raft.messages import NO_HARD_STATE, NONE, HardState
from kvorum.raft.progress import STATE_NAMES, Progress
from kvorum.raft.states import ROLE_NAMES, Role, SoftState
from kvorum.raft.tracker import Configuration

_NO_SOFT_STATE = SoftState(NONE, Role.FOLLOWER)
_NO_CONFIGURATION = Configuration()


@dataclass(slots=True)
class BasicStatus:
    """The state that every node has, whatever its role."""

    id: int = NONE
    hard_state: HardState = NO_HARD_STATE
    soft_state: SoftState = _NO_SOFT_STATE
    applied: int = 0
    lead_transferee: int = NONE


@dataclass(slots=True)
class Status(BasicStatus):
    """The basic status, the configuration and, on a leader, the progress of every peer."""

    config: Configuration = _NO_CONFIGURATION
    progress: dict[int, Progress] = field(default_factory=dict)

    def json(self) -> str:
        """Return the status as etcd's library prints it."""
        hard, soft = self.hard_state, self.soft_state
        progress = ",".join(
            f'"{node:x}":{{"match":{peer.match},"next":{peer.next},'
            f'"state":"{STATE_NAMES[peer.state]}"}}'
            for node, peer in self.progress.items()
        )
        return (
            f'{{"id":"{self.id:x}","term":{hard.term},"vote":"{hard.vote:x}",'
            f'"commit":{hard.commit},"lead":"{soft.lead:x}",'
            f'"raftState":"{ROLE_NAMES[soft.role]}","applied":{self.applied},'
            f'"progress":{{{progress}}},"leadtransferee":"{self.lead_transferee:x}"}}'
        )


def basic_status(raft: Raft) -> BasicStatus:
    """Return the status without the parts that must be copied."""
    return BasicStatus(
        raft.id, raft.hard_state(), raft.soft_state(), raft.log.applied, raft.lead_transferee
    )


def status(raft: Raft) -> Status:
    """Return the whole status, with copies of mutable parts."""
    progress = raft.tracker.progress if raft.role == Role.LEADER else {}
    return Status(
        raft.id,
        raft.hard_state(),
        raft.soft_state(),
        raft.log.applied,
        raft.lead_transferee,
        raft.tracker.config,
        {node: peer.copy() for node, peer in progress.items()},
    )
