"""Leaseholders: clients that renew a lease until a member keeps them waiting, and then rely on it.

Such a member may have been paused, and another may lead by now. The client sends no renewal after
the late answer: shortly before the promised end it asks others whether the lease still lives.
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

TTL_SECONDS = 3
"""As long as leaders pause in runs with leaseholders, so that a lease outlives the pause."""
PATIENCE_SECONDS = 0.3
"""How long a client waits before it sends a renewal again; the lease counts from then."""
RENEWAL_SECONDS = 0.2
RETRY_SECONDS = 0.05
RELIES_SECONDS = 0.4
"""How long before the promised end the client asks for the lease, again and again."""
RENEWALS_MAX = 40
FIRST_NUMBER = 6000
"""Leaseholders are numbered from here on in the records."""


class Leaseholder:
    """One client, with one lease after another."""

    __slots__ = (
        "_holder",
        "_is_late",
        "_lease",
        "_random",
        "_relying",
        "_renewals_left",
        "_until",
        "_world",
        "is_stopped",
    )

    def __init__(self, world: World, calls: Calls, history: History, number: int) -> None:
        name = f"h{number}"
        self._world = world
        self._random: Random = world.stream(f"leaseholder {number}")
        self._holder = Caller(world, calls, history, FIRST_NUMBER + number, name)
        # The holder keeps to a paused member.
        self._holder.roams = 0.05
        self._relying = Caller(world, calls, history, FIRST_NUMBER + number, f"{name}t")
        self._relying.roams = 1.0
        self._lease = 0
        self._until = 0.0
        self._renewals_left = 0
        self._is_late = False
        self.is_stopped = False

    def start(self) -> None:
        """Ask for a lease soon."""
        self._world.after(self._random.uniform(0.0, 1.0), self._grant)

    def stop(self) -> None:
        """Renew no more; the promised time still counts."""
        self.is_stopped = True
        self._holder.abandon()

    def _grant(self) -> None:
        if not self.is_stopped:
            grant = PlannedRequest("grant", LeaseGrantRequest(TTL=TTL_SECONDS))
            self._holder.ask(grant, TTL_SECONDS, self._granted)

    def _granted(self, record: Record) -> None:
        if not record.is_answered:
            self._world.after(RETRY_SECONDS, self._grant)
            return
        self._lease = record.response.ID
        self._renewals_left = self._random.randint(1, RENEWALS_MAX)
        self._is_late = False
        self._world.after(RENEWAL_SECONDS, self._renew)

    def _renew(self) -> None:
        if not self.is_stopped:
            keep = PlannedRequest("keep", LeaseKeepAliveRequest(ID=self._lease))
            self._holder.ask(keep, PATIENCE_SECONDS, self._renewed)

    def _renewed(self, record: Record) -> None:
        if not record.is_answered:
            self._is_late = True
            self._world.after(RETRY_SECONDS, self._renew)
            return
        if not record.response.TTL:
            self._grant()
            return
        self._renewals_left -= 1
        if self._is_late or not self._renewals_left:
            self._until = record.started + record.response.TTL
            self._world.at(max(self._world.now, self._until - RELIES_SECONDS), self._query_lease)
        else:
            self._world.after(RENEWAL_SECONDS, self._renew)

    def _query_lease(self) -> None:
        left = self._until - self._world.now
        if left <= 0.0:
            self._grant()
            return
        asked = PlannedRequest("ttl", LeaseTimeToLiveRequest(ID=self._lease))
        self._relying.ask(asked, min(PATIENCE_SECONDS, left), self._relied)

    def _relied(self, _: Record) -> None:
        self._world.after(RETRY_SECONDS, self._query_lease)
