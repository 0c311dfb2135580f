"""Clients that observe an election, and get an answer for every leader.

The check at the end compares the answers with the history: each is the head of the queue at its
revision; answers come in order; none of a leader's values is left out, unless a compaction got in
between; and in the end the observer knows the leader.
"""

from itertools import pairwise
from random import Random
from typing import NamedTuple

from kvorum.api.errors import Status
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.api.pb.v3electionpb import LeaderRequest, LeaderResponse
from kvorum.sim.calls import Calls
from kvorum.sim.checks import revision_answered_before
from kvorum.sim.history import History, is_in_range
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import ELECTION_NAME
from kvorum.sim.world import World
from kvorum.state.mvcc.keyvalue import key_of

PATH = "/v3electionpb.Election/Observe"
GUARANTEE = "observers are told who leads"
QUEUE = (ELECTION_NAME + b"/", ELECTION_NAME + b"0")


class ObservedLeader(NamedTuple):
    """An answer: the leader at a revision, as a key with its value."""

    revision: int
    kv: KeyValue
    connection: int
    compacted: int
    """The highest compacted revision of any member when the answer came."""


class Observer:
    """One observer, over all its connections."""

    __slots__ = (
        "_asked",
        "_call",
        "_calls",
        "_checked_revision",
        "_history",
        "_leader",
        "_member",
        "_random",
        "_world",
        "is_stopped",
        "name",
        "observed",
    )

    def __init__(self, world: World, calls: Calls, history: History, number: int) -> None:
        self._world = world
        self._calls = calls
        self._history = history
        self.name = f"o{number}"
        self._random: Random = world.stream(f"observer {number}")
        self._member = 0
        self._call: int | None = None
        # The moment at which each connection was opened.
        self._asked: list[int] = []
        self.observed: list[ObservedLeader] = []
        self.is_stopped = False
        # The leader at the newest revision, and that revision.
        self._leader: KeyValue | None = None
        self._checked_revision = 0

    def start(self) -> None:
        """Connect soon."""
        self._world.after(self._random.uniform(0.0, 2.0), self._connect)

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what)

    def _connect(self) -> None:
        if self.is_stopped or self._call is not None:
            return
        self._member = self._random.choice(self._calls.members)
        self._asked.append(self._history.moment())
        call = -1

        def ended(result: bytes | Status | None) -> None:
            if self._call == call:
                self._call = None
                self._line("lost" if result is None else f"ended {result!r}")
                self._reconnect()

        def message(data: bytes) -> None:
            if self._call == call:
                self._take_leader(LeaderResponse.FromString(data))

        call = self._call = self._calls.open_stream(self._member, PATH, ended, message)
        self._line(f"observes at m{self._member}")
        request = LeaderRequest(name=ELECTION_NAME)
        self._calls.send(self._member, call, request.SerializeToString())
        self._world.after(self._random.expovariate(0.5), self._disturb, call)

    def _reconnect(self) -> None:
        self._world.after(self._random.uniform(0.01, 0.5), self._connect)

    def _disturb(self, call: int) -> None:
        """Hang up, or stop reading for a while."""
        if self.is_stopped or self._call != call:
            return
        choice = self._random.random()
        if choice < 0.3:
            self.hang_up()
            self._reconnect()
            return
        if choice < 0.6:
            self._calls.stall(self._member, call, self._random.uniform(0.1, 2.0))
        self._world.after(self._random.expovariate(0.5), self._disturb, call)

    def hang_up(self) -> None:
        """End the stream, if there is one."""
        if self._call is not None:
            call, self._call = self._call, None
            self._calls.hang_up(self._member, call)

    def _take_leader(self, answer: LeaderResponse) -> None:
        revision, kv = answer.header.revision, answer.kv
        self._line(f"told {kv.key!r}={kv.value!r}@{kv.mod_revision} at {revision}")
        self.observed.append(
            ObservedLeader(revision, kv, len(self._asked), self._history.compacted)
        )

    def is_complete(self) -> bool:
        """Return whether the observer knows the newest leader."""
        history = self._history
        if self._checked_revision != history.revision:
            self._checked_revision = history.revision
            self._leader = _newest_leader(history)
        if self._leader is None:
            return True
        return bool(self.observed) and self.observed[-1].kv == self._leader

    def describe(self) -> str:
        """Return the last answer, and the leader that the observer should know, in words."""
        last = self.observed[-1] if self.observed else None
        return f"{self.name} was last told {last!r}; {self._leader!r} leads"

    # After the run.

    def check(self) -> None:
        """Compare the answers with the history."""
        history = self._history
        for told in self.observed:
            head = leader_at(history, told.revision)
            if head != told.kv:
                self._raise_violation(f"was told {told!r}, where {head!r} led")
        firsts: dict[int, ObservedLeader] = {}
        for told in self.observed:
            firsts.setdefault(told.connection, told)
        for connection, told in firsts.items():
            known = revision_answered_before(history, self._asked[connection - 1])
            if told.revision < known:
                self._raise_violation(f"was told {told!r} after revision {known} had been answered")
        for one, other in pairwise(self.observed):
            if one.connection == other.connection:
                self._check_next(one, other)

    def _check_next(self, one: ObservedLeader, other: ObservedLeader) -> None:
        """Require that one answer comes after another, and that none is missing in between."""
        if other.revision <= one.revision:
            self._raise_violation(f"was told {one!r}, then {other!r}")
        if other.compacted > one.revision:
            # The member cannot know whether the leader was gone in between, and sends it again.
            return
        if other.kv == one.kv:
            self._raise_violation(f"was told {one!r} twice, then at {other.revision}")
        key = one.kv.key
        for revision, _ in self._history.changes(one.revision + 1, other.revision, key, b""):
            if revision & 1:
                return
            if revision >> 32 != other.revision:
                self._raise_violation(
                    f"was told {one!r}, then {other!r}, and not of {revision >> 32}"
                )
        if other.kv.key != key:
            self._raise_violation(f"was told {one!r}, then {other!r}, though the first still led")

    def _raise_violation(self, text: str) -> None:
        raise Violation(GUARANTEE, f"{self.name} {text}")


def leader_at(history: History, revision: int) -> KeyValue | None:
    """Return the head of the queue at a revision, after `History.replay`."""
    queue = (KeyValue.FromString(kv) for kv in history.range_at(*QUEUE, revision))
    return min(queue, key=lambda kv: kv.create_revision, default=None)


def _newest_leader(history: History) -> KeyValue | None:
    """Return the head of the queue at the newest revision, without a replay."""
    queue: dict[bytes, bytes] = {}
    for main in sorted(history.effects):
        for revision, kv in history.effects[main]:
            key = key_of(kv)
            if not is_in_range(key, *QUEUE):
                continue
            if revision & 1:
                queue.pop(key, None)
            else:
                queue[key] = kv
    kvs = (KeyValue.FromString(kv) for kv in queue.values())
    return min(kvs, key=lambda kv: kv.create_revision, default=None)
