"""The leader's view of one peer's log, and whether the leader may send to it.

`match` is the greatest index known to be on the peer, `next` the first one to send; always match <
next. The leader probes a peer with one append at a time until the logs connect, then replicates
optimistically, as far as the window allows. A peer that needs compacted entries gets a snapshot,
and nothing else until it has the snapshot.
"""

from typing import Final

from kvorum.raft.errors import FatalError
from kvorum.raft.inflights import Inflights


class ProgressState:
    """How the leader sends entries to the peer."""

    PROBE: Final = 0
    REPLICATE: Final = 1
    SNAPSHOT: Final = 2


STATE_NAMES: Final = ("StateProbe", "StateReplicate", "StateSnapshot")


class Progress:
    """One peer's progress. Learners have one, as voters do."""

    __slots__ = (
        "flow_paused",
        "inflights",
        "is_ahead",
        "is_learner",
        "match",
        "next",
        "pending_snapshot",
        "recent_active",
        "sent_commit",
        "state",
    )

    def __init__(self, match: int, next_index: int, inflights: Inflights) -> None:
        self.match = match
        self.next = next_index
        # The peer's commit index once everything that was sent has arrived.
        self.sent_commit = 0
        self.state: int = ProgressState.PROBE
        self.pending_snapshot = 0
        # Whether the peer sent a message since the last check of the quorum.
        self.recent_active = False
        # An acknowledgement or a heartbeat response ends the pause.
        self.flow_paused = False
        self.inflights = inflights
        # The peer acknowledged entries that this leader lacks; only lost data can explain that.
        self.is_ahead = False
        self.is_learner = False

    def copy(self) -> "Progress":
        """Return an independent copy of this progress."""
        other = Progress(self.match, self.next, self.inflights.copy())
        other.sent_commit = self.sent_commit
        other.state = self.state
        other.pending_snapshot = self.pending_snapshot
        other.recent_active = self.recent_active
        other.flow_paused = self.flow_paused
        other.is_ahead = self.is_ahead
        other.is_learner = self.is_learner
        return other

    def _reset_state(self, state: int) -> None:
        self.flow_paused = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.reset()

    def become_probe(self) -> None:
        """Probe from the entry after the match, or after a snapshot that was delivered."""
        snapshot = self.pending_snapshot if self.state == ProgressState.SNAPSHOT else 0
        self._reset_state(ProgressState.PROBE)
        self.next = max(self.match, snapshot) + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Send optimistically from the entry after the match."""
        self._reset_state(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """Pause until the peer has the snapshot at this index."""
        self._reset_state(ProgressState.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent_entries(self, count: int, payload: int) -> None:
        """Record an append message with this many entries and payload bytes."""
        if self.state == ProgressState.REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, payload)
            # With a full window one empty append still goes out; the next one waits.
            self.flow_paused = self.inflights.full()
        elif self.state == ProgressState.PROBE:
            if count:
                self.flow_paused = True
        else:
            raise FatalError(f"sending append in unhandled state {STATE_NAMES[self.state]}")

    def can_bump_commit(self, commit: int) -> bool:
        """Return whether an empty append would raise the peer's commit index."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def maybe_update(self, index: int) -> bool:
        """Process an acknowledgement; return False if it brings nothing new."""
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.flow_paused = False
        return True

    def maybe_decrease(self, rejected: int, hint: int) -> bool:
        """Process the rejection of an append after index `rejected`; False if it is stale."""
        if self.state == ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
        else:
            # A current rejection is for next - 1; any other belongs to an older probe.
            if self.next - 1 != rejected:
                return False
            self.next = max(min(rejected, hint + 1), self.match + 1)
            self.flow_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True

    def is_paused(self) -> bool:
        """Return whether the leader must not send entries."""
        return self.flow_paused or self.state == ProgressState.SNAPSHOT

    def __str__(self) -> str:
        text = f"{STATE_NAMES[self.state]} match={self.match} next={self.next}"
        if self.is_learner:
            text += " learner"
        if self.is_paused():
            text += " paused"
        if self.pending_snapshot:
            text += f" pendingSnap={self.pending_snapshot}"
        if not self.recent_active:
            text += " inactive"
        if self.inflights:
            text += f" inflight={len(self.inflights)}"
            if self.inflights.full():
                text += "[full]"
        return text
