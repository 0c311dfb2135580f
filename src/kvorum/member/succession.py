"""Replace a dead leader at once instead of after an election timeout.

There are two signs. First, the leader's process has ended: a stream from it broke, and no process
listens at its address any more; a merely broken connection is no sign, since the next one is
accepted. Second, the leader's host is silent: no message came from the leader for half of an
election timeout, and its host, which answers probes whatever its processes do, answered none in the
last part of that time. Neither sign deposes a leader that is merely slow or paused.

Members that see a sign forget the leader, so that they grant pre-votes, and stand for election,
each after a short random time. The sign may be false: one member's path to a healthy leader may be
cut. Then the other members, which still receive heartbeats, grant no pre-vote, the term does not
change, and the leader's next heartbeat makes that member follow it again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from kvorum.api.coverage import reach
from kvorum.raft.messages import NONE
from kvorum.raft.states import Role

if TYPE_CHECKING:
    from kvorum.member.replica import Replica

ELECTION_DELAY_SECONDS_MIN: Final = 0.01
"""Delay before standing for election, so that the other members see the sign too."""
ELECTION_JITTER_SECONDS: Final = 0.05
"""Random addition to that delay, so that two members seldom stand at once."""
RETRY_SECONDS: Final = 0.1
"""Time for votes before a member stands again: two candidates at once may split them."""
ATTEMPTS_MAX: Final = 5
"""After this many attempts the member waits for raft's own election timeout."""
PROBES_MIN: Final = 2
"""How many probes need to stay unanswered, since one may be lost. They are a tick apart, so that a
member which was itself paused sees the answer to the first before it counts the second."""


class Succession:
    """Decides when this member stands for election because the leader is dead."""

    __slots__ = ("_attempts_left", "_host_probes", "_is_answered", "election_at")

    def __init__(self) -> None:
        self._attempts_left = 0
        # During the leader's present silence: probes sent to its host, and whether it reacted.
        self._host_probes = 0
        self._is_answered = False
        self.election_at = inf

    def choose_probe_target(self, replica: Replica) -> int:
        """Return the leader if the transport should probe its host, else 0; call once a tick."""
        raft, ticks = replica.node.raft, replica.config.election_ticks
        if raft.role != Role.FOLLOWER or raft.lead == NONE or not replica.config.pre_vote:
            self._host_probes, self._is_answered = 0, False
            return NONE
        silent_ticks = raft.election_elapsed
        probes_from = max(2, ticks * 3 // 10)
        if silent_ticks < probes_from:
            self._host_probes, self._is_answered = 0, False
            return NONE
        if self._is_answered or replica.is_closing:
            return NONE
        if self._host_probes >= PROBES_MIN and silent_ticks >= max(
            probes_from + PROBES_MIN, ticks // 2
        ):
            reach("leader's host silent")
            self.schedule_election(replica, "gets no answer from the host of")
            return NONE
        return raft.lead

    def count_probe(self) -> None:
        """Count a probe sent to the leader's host."""
        self._host_probes += 1

    def note_host_answer(self, replica: Replica, peer: int) -> None:
        """Note that a peer's host reacted to a probe."""
        if peer == replica.leader:
            self._is_answered = True

    def schedule_election(self, replica: Replica, sign: str) -> None:
        """Forget the dead leader, and stand for election soon."""
        reach("leader forgotten")
        replica.logger.info(f"{replica.id:x} {sign} leader {replica.leader:x}")
        replica.node.forget_leader()
        self._host_probes, self._is_answered = 0, False
        self._attempts_left = ATTEMPTS_MAX
        self.election_at = replica.now + ELECTION_DELAY_SECONDS_MIN + _draw_jitter(replica)

    def stand_for_election(self, replica: Replica, now: float) -> None:
        """Stand for election, unless a leader is known or the attempts are used up."""
        if replica.node.raft.lead != NONE or not self._attempts_left:
            self.election_at = inf
            return
        self._attempts_left -= 1
        self.election_at = now + RETRY_SECONDS + _draw_jitter(replica)
        replica.node.campaign()


def _draw_jitter(replica: Replica) -> float:
    return replica.seams.random_below(1000) / 1000 * ELECTION_JITTER_SECONDS
