"""Compute the next configuration from a membership change, or raise an error.

The Changer works on copies; the caller installs the result. It may change one voter directly,
because old and new majorities overlap. Any other change passes through a joint configuration, in
which both the old (outgoing) and the new (incoming) majority must agree.
"""

from collections.abc import Iterable

from kvorum.raft.changes import Change, ChangeType
from kvorum.raft.errors import ConfChangeError
from kvorum.raft.messages import NONE, ConfState
from kvorum.raft.progress import Progress
from kvorum.raft.tracker import Configuration, Tracker

Result = tuple[Configuration, dict[int, Progress]]


class Changer:
    """Computes one change against the tracker's configuration.

    `last_index` decides at which index the leader first probes new peers.
    """

    __slots__ = (
        "_incoming",
        "_last_index",
        "_learners",
        "_learners_next",
        "_outgoing",
        "_progress",
        "_tracker",
    )

    def __init__(self, tracker: Tracker, last_index: int) -> None:
        config = tracker.config
        check_invariants(config, tracker.progress)
        self._tracker = tracker
        self._last_index = last_index
        self._incoming = set(config.incoming)
        self._outgoing = set(config.outgoing)
        self._learners = set(config.learners)
        self._learners_next = set(config.learners_next)
        self._progress = {node: peer.copy() for node, peer in tracker.progress.items()}

    def simple(self, changes: Iterable[Change]) -> Result:
        """Apply changes that affect at most one voter."""
        if self._outgoing:
            raise ConfChangeError("can't apply simple config change in joint config")
        before = frozenset(self._incoming)
        self._apply(changes)
        if len(before ^ self._incoming) > 1:
            raise ConfChangeError("more than one voter changed without entering joint config")
        return self._result(auto_leave=False)

    def enter_joint(self, auto_leave: bool, changes: Iterable[Change]) -> Result:
        """Apply any changes to the incoming half, and make the old voters the outgoing half."""
        if self._outgoing:
            raise ConfChangeError("config is already joint")
        if not self._incoming:
            raise ConfChangeError("can't make a zero-voter config joint")
        self._outgoing = set(self._incoming)
        self._apply(changes)
        return self._result(auto_leave)

    def leave_joint(self) -> Result:
        """Drop the outgoing half, and demote the voters that were to become learners."""
        if not self._outgoing:
            raise ConfChangeError("can't leave a non-joint config")
        for node in self._learners_next:
            self._learners.add(node)
            self._progress[node].is_learner = True
        self._learners_next.clear()
        for node in self._outgoing - self._incoming - self._learners:
            del self._progress[node]
        self._outgoing.clear()
        return self._result(auto_leave=False)

    def _apply(self, changes: Iterable[Change]) -> None:
        for kind, node in changes:
            if node == NONE:
                continue  # the application cancelled this change
            if kind == ChangeType.ADD_NODE:
                self._make_voter(node)
            elif kind == ChangeType.ADD_LEARNER_NODE:
                self._make_learner(node)
            elif kind == ChangeType.REMOVE_NODE:
                self._remove(node)
            elif kind != ChangeType.UPDATE_NODE:
                raise ConfChangeError(f"unexpected conf type {kind}")
        if not self._incoming:
            raise ConfChangeError("removed all voters")

    def _make_voter(self, node: int) -> None:
        if node not in self._progress:
            self._add_progress(node, is_learner=False)
        self._progress[node].is_learner = False
        self._learners.discard(node)
        self._learners_next.discard(node)
        self._incoming.add(node)

    def _make_learner(self, node: int) -> None:
        peer = self._progress.get(node)
        if peer is None:
            self._add_progress(node, is_learner=True)
            self._learners.add(node)
        elif not peer.is_learner:
            self._remove(node)
            self._progress[node] = peer
            # A voter of the outgoing half can only become a learner once that half is gone.
            if node in self._outgoing:
                self._learners_next.add(node)
            else:
                peer.is_learner = True
                self._learners.add(node)

    def _remove(self, node: int) -> None:
        if node not in self._progress:
            return
        self._incoming.discard(node)
        self._learners.discard(node)
        self._learners_next.discard(node)
        if node not in self._outgoing:
            del self._progress[node]

    def _add_progress(self, node: int, is_learner: bool) -> None:
        peer = self._tracker.new_progress(match=0, next_index=max(self._last_index, 1))
        peer.is_learner = is_learner
        # Without this, a check of the quorum right after the change would not count the peer.
        peer.recent_active = True
        self._progress[node] = peer

    def _result(self, auto_leave: bool) -> Result:
        config = Configuration(
            frozenset(self._incoming),
            frozenset(self._outgoing),
            frozenset(self._learners),
            frozenset(self._learners_next),
            auto_leave,
        )
        check_invariants(config, self._progress)
        return config, self._progress


def check_invariants(config: Configuration, progress: dict[int, Progress]) -> None:
    """Raise ConfChangeError, naming the member, if configuration and progress disagree."""
    members = config.incoming | config.outgoing | config.learners | config.learners_next
    for node in sorted(members):
        if node not in progress:
            raise ConfChangeError(f"no progress for {node}")
    for node in sorted(config.learners_next):
        if node not in config.outgoing:
            raise ConfChangeError(f"{node} is in LearnersNext, but not Voters[1]")
        if progress[node].is_learner:
            raise ConfChangeError(f"{node} is in LearnersNext, but is already marked as learner")
    for node in sorted(config.learners):
        if node in config.outgoing:
            raise ConfChangeError(f"{node} is in Learners and Voters[1]")
        if node in config.incoming:
            raise ConfChangeError(f"{node} is in Learners and Voters[0]")
        if not progress[node].is_learner:
            raise ConfChangeError(f"{node} is in Learners, but is not marked as learner")
    if not config.outgoing:
        if config.learners_next:
            raise ConfChangeError("cfg.LearnersNext must be nil when not joint")
        if config.auto_leave:
            raise ConfChangeError("AutoLeave must be false when not joint")


def restore(tracker: Tracker, last_index: int, state: ConfState) -> None:
    """Install a saved configuration into an empty tracker."""

    def add(kind: int, nodes: Iterable[int]) -> list[Change]:
        return [Change(kind, node) for node in nodes]

    incoming = (
        add(ChangeType.ADD_NODE, state.voters)
        + add(ChangeType.ADD_LEARNER_NODE, state.learners)
        + add(ChangeType.ADD_LEARNER_NODE, state.learners_next)
    )
    if not state.voters_outgoing:
        for change in incoming:
            tracker.install(*Changer(tracker, last_index).simple([change]))
        return
    for change in add(ChangeType.ADD_NODE, state.voters_outgoing):
        tracker.install(*Changer(tracker, last_index).simple([change]))
    removed = add(ChangeType.REMOVE_NODE, state.voters_outgoing)
    changer = Changer(tracker, last_index)
    tracker.install(*changer.enter_joint(state.auto_leave, removed + incoming))
