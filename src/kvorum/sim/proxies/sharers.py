"""Clients that share a lease: two renew it, often at about the same time.

A proxy renews the lease once for both. Each client may count the lease's time from its own request,
and the checks judge that as for any other renewal. After a while one client looks the lease up,
shortly before it may expire.
"""

from random import Random

from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseTimeToLiveRequest,
)
from kvorum.sim.calls import Caller, Calls, PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.world import World

FIRST_NUMBER = 5000
"""The records number sharers from here on."""
PATIENCE = (0.5, 4.0)
GAP_SECONDS = 0.05
"""Average time between an answer and the next renewal."""
SHARED_SECONDS = (0.3, 1.5)
"""How long a pair renews one lease."""
LOOK_SECONDS = (0.02, 0.3)
"""How long before the end of a lease it is looked up."""


def name_of_sharer(number: int) -> str:
    """Return the trace's name for a pair; the name of its second client ends with an `r`."""
    return f"s{100 + number}"


class Sharer:
    """Two callers that share one lease after the other."""

    __slots__ = (
        "_callers",
        "_lease",
        "_live_until",
        "_random",
        "_stops_at",
        "_world",
        "is_stopped",
    )

    def __init__(self, world: World, calls: Calls, history: History, number: int) -> None:
        self._world = world
        self._random: Random = world.stream(f"sharer {number}")
        names = (name_of_sharer(number), f"{name_of_sharer(number)}r")
        numbered = FIRST_NUMBER + number
        self._callers = [Caller(world, calls, history, numbered, name) for name in names]
        self._lease = 0
        self._live_until = 0.0
        self._stops_at = 0.0
        self.is_stopped = False

    def start(self) -> None:
        """Start soon."""
        self._world.after(self._random.uniform(0.0, 1.0), self._grant)

    def stop(self) -> None:
        """Stop all requests and abandon open ones."""
        self.is_stopped = True
        for caller in self._callers:
            caller.abandon()

    def _patience(self) -> float:
        return self._random.uniform(*PATIENCE)

    def _grant(self) -> None:
        if self.is_stopped:
            return
        self._lease = 0
        for caller in self._callers:
            caller.abandon()
        asked = PlannedRequest("grant", LeaseGrantRequest(TTL=self._random.randint(2, 3)))
        self._callers[0].ask(asked, self._patience(), self._granted)

    def _granted(self, record: Record) -> None:
        if self.is_stopped:
            return
        if not record.is_answered:
            self._world.after(0.1, self._grant)
            return
        self._lease = record.response.ID
        self._live_until = record.started + record.response.TTL
        self._stops_at = self._world.now + self._random.uniform(*SHARED_SECONDS)
        for caller in self._callers:
            self._ask_later(caller, self._lease)

    def _ask_later(self, caller: Caller, lease: int) -> None:
        wait = self._random.expovariate(1 / GAP_SECONDS)
        if self._world.now + wait < self._stops_at:
            self._world.after(wait, self._ask, caller, lease)
        elif caller is self._callers[0]:
            self._look_later(lease)

    def _ask(self, caller: Caller, lease: int) -> None:
        if self.is_stopped or lease != self._lease:
            return

        def renewed(record: Record) -> None:
            if lease != self._lease or self.is_stopped:
                return
            if record.is_answered and record.response.TTL:
                until = record.started + record.response.TTL
                self._live_until = max(self._live_until, until)
            self._ask_later(caller, lease)

        asked = PlannedRequest("keep", LeaseKeepAliveRequest(ID=lease))
        caller.ask(asked, self._patience(), renewed)

    def _look_later(self, lease: int) -> None:
        """Look the lease up shortly before the end promised by the latest renewal of either."""
        before = self._random.uniform(*LOOK_SECONDS)
        moment = max(self._world.now, self._live_until - before)
        self._world.at(moment, self._look, lease, moment)

    def _look(self, lease: int, moment: float) -> None:
        if self.is_stopped or lease != self._lease:
            return
        if self._live_until - LOOK_SECONDS[1] > moment:
            self._look_later(lease)
            return
        asked = PlannedRequest("ttl", LeaseTimeToLiveRequest(ID=lease))
        then = self._random.uniform(0.0, 0.5)
        self._callers[0].ask(
            asked, self._patience(), lambda _: self._world.after(then, self._grant)
        )
