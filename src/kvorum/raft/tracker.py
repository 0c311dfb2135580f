"""The configuration in force, the progress of its peers, and the votes of an election.

`progress` is kept in ascending order of ids: visiting peers in that order fixes the order of
messages everywhere. A configuration is immutable; a change makes a new one.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kvorum.raft.inflights import Inflights
from kvorum.raft.messages import ConfState
from kvorum.raft.progress import Progress
from kvorum.raft.quorum import VoteResult, committed_index, joint_vote_result, vote_result

_NOBODY: Final[frozenset[int]] = frozenset()


def ids_text(ids: Iterable[int]) -> str:
    """Return a set of ids as `(1 2 a)`: hexadecimal, ascending."""
    return "(" + " ".join(f"{node:x}" for node in sorted(ids)) + ")"


class Configuration(NamedTuple):
    """The voters and learners. The configuration is joint while `outgoing` is not empty."""

    incoming: frozenset[int] = _NOBODY
    outgoing: frozenset[int] = _NOBODY
    learners: frozenset[int] = _NOBODY
    # Voters of the outgoing half that become learners when the joint configuration is left.
    learners_next: frozenset[int] = _NOBODY
    auto_leave: bool = False

    def is_joint(self) -> bool:
        """Return whether decisions need both majorities."""
        return bool(self.outgoing)

    def voters(self) -> list[int]:
        """Return the voters of both halves, ascending."""
        return sorted(self.incoming | self.outgoing)

    def conf_state(self) -> ConfState:
        """Return the members, ascending."""
        return ConfState(
            tuple(sorted(self.incoming)),
            tuple(sorted(self.learners)),
            tuple(sorted(self.outgoing)),
            tuple(sorted(self.learners_next)),
            self.auto_leave,
        )

    def __str__(self) -> str:
        text = f"voters={ids_text(self.incoming)}"
        if self.outgoing:
            text += f"&&{ids_text(self.outgoing)}"
        if self.learners:
            text += f" learners={ids_text(self.learners)}"
        if self.learners_next:
            text += f" learners_next={ids_text(self.learners_next)}"
        if self.auto_leave:
            text += " autoleave"
        return text


class Tracker:
    """The members of the group, the progress of each, and the votes for this node."""

    __slots__ = (
        "_incoming",
        "_outgoing",
        "config",
        "inflight_bytes_max",
        "inflight_messages_max",
        "progress",
        "votes",
    )

    def __init__(self, inflight_messages_max: int, inflight_bytes_max: int = 0) -> None:
        self.inflight_messages_max = inflight_messages_max
        self.inflight_bytes_max = inflight_bytes_max
        self.votes: dict[int, bool] = {}
        self.install(Configuration(), {})

    def install(self, config: Configuration, progress: dict[int, Progress]) -> None:
        """Install a configuration and the progress of exactly its members."""
        self.config = config
        self.progress = {node: progress[node] for node in sorted(progress)}
        self._incoming = tuple(sorted(config.incoming))
        self._outgoing = tuple(sorted(config.outgoing))

    def new_progress(self, match: int, next_index: int) -> Progress:
        """Return the progress of a peer to which nothing was sent."""
        window = Inflights(self.inflight_messages_max, self.inflight_bytes_max)
        return Progress(match, next_index, window)

    def is_voter(self, node: int) -> bool:
        """Return whether a node is a voter; a removed leader is none, though it goes on leading."""
        return node in self._incoming or node in self._outgoing

    def decides_alone(self, node: int) -> bool:
        """Return whether a node is the only voter."""
        return len(self._incoming) == 1 and node in self._incoming and not self._outgoing

    def committed(self) -> int:
        """Return the greatest index that is on a quorum."""
        progress = self.progress
        index = committed_index([progress[node].match for node in self._incoming])
        if self._outgoing:
            outgoing = committed_index([progress[node].match for node in self._outgoing])
            return min(index, outgoing)
        return index

    def quorum_index(self, acknowledged: dict[int, int]) -> int:
        """Return the greatest number that a quorum acknowledged."""
        index = committed_index([acknowledged.get(node, 0) for node in self._incoming])
        if self._outgoing:
            outgoing = committed_index([acknowledged.get(node, 0) for node in self._outgoing])
            return min(index, outgoing)
        return index

    def reset_votes(self) -> None:
        """Discard all votes, for a new election."""
        self.votes = {}

    def record_vote(self, node: int, granted: bool) -> None:
        """Record a vote; later votes of the same peer do not count."""
        self.votes.setdefault(node, granted)

    def tally_votes(self) -> tuple[int, int, VoteResult]:
        """Return the number of voters that granted and rejected, and the result."""
        counted = [
            self.votes[node]
            for node, peer in self.progress.items()
            if not peer.is_learner and node in self.votes
        ]
        return counted.count(True), counted.count(False), self._joint_vote(self.votes)

    def quorum_active(self) -> bool:
        """Return whether a quorum was active since the last check."""
        active = {
            node: peer.recent_active for node, peer in self.progress.items() if not peer.is_learner
        }
        return self._joint_vote(active) is VoteResult.WON

    def _joint_vote(self, votes: dict[int, bool]) -> VoteResult:
        return joint_vote_result(
            vote_result(votes.get(node) for node in self._incoming),
            vote_result(votes.get(node) for node in self._outgoing),
        )
