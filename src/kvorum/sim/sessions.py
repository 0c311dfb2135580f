"""Sessions that want a lock or to be elected, through the services of those names.

A session has a lease and renews it until it wants to end. It counts itself as alive for the time of
its last confirmed renewal, from when it sent that renewal; it holds a lock while it is alive and
has not started to release it.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
)
from kvorum.api.pb.v3electionpb import (
    CampaignRequest,
    LeaderKey,
    LeaderRequest,
    ProclaimRequest,
    ResignRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.sim.calls import Caller, Calls, PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.workloads import ELECTION_NAME, LOCK_NAME, Workload
from kvorum.sim.world import World

PATIENCE = (0.5, 3.0)
WAITING_PATIENCE = (1.0, 8.0)
RELIES_SECONDS = 0.3
"""How long before the end of a lease that was not renewed its session asks for it."""
RENEWALS_PER_TTL = 4
FIRST_NUMBER = 1000
"""Sessions are numbered from here on in the records; clients come before."""


@dataclass(slots=True)
class Hold:
    """A session's own view of a lock or an office that it held: from when to when."""

    name: bytes
    holder: str
    record: Record
    since: float
    until: float


class Session:
    """One session, which competes for a lock or an election."""

    __slots__ = (
        "_asker",
        "_hold",
        "_leader",
        "_lease",
        "_live_until",
        "_name",
        "_proclaimed_value",
        "_random",
        "_relying",
        "_renewer",
        "_ttl",
        "_workload",
        "_world",
        "holds",
        "is_stopped",
        "name",
    )

    def __init__(
        self, world: World, calls: Calls, history: History, workload: Workload, number: int
    ) -> None:
        self.name = f"s{number}"
        self._world = world
        self._workload = workload
        self._random: Random = world.stream(f"session {number}")
        self._asker = Caller(world, calls, history, FIRST_NUMBER + number, self.name)
        self._renewer = Caller(world, calls, history, FIRST_NUMBER + number, f"{self.name}r")
        self._renewer.roams = 0.05
        self._relying = Caller(world, calls, history, FIRST_NUMBER + number, f"{self.name}t")
        self._relying.roams = 1.0
        # Some sessions only want their lease.
        self._name = self._random.choice([LOCK_NAME, ELECTION_NAME, b""])
        self._lease = 0
        self._ttl = 0
        self._live_until = 0.0
        self._leader: LeaderKey | None = None
        self._proclaimed_value = 0
        self._hold: Hold | None = None
        self.holds: list[Hold] = []
        self.is_stopped = False

    @property
    def is_live(self) -> bool:
        """Whether the lease lives, as far as this session can know."""
        return bool(self._lease) and self._world.now < self._live_until

    def start(self) -> None:
        """Ask for a lease soon."""
        self._world.after(self._random.uniform(0.0, 1.0), self._grant)

    def _ask(self, asked: PlannedRequest, then: Any, span: tuple[float, float] = PATIENCE) -> None:
        self._asker.ask(asked, self._random.uniform(*span), then)

    # The lease.

    def _grant(self) -> None:
        if self.is_stopped:
            return
        self._lease = 0
        self._ttl = max(2, self._random.randint(*self._workload.lease_seconds))
        self._ask(PlannedRequest("grant", LeaseGrantRequest(TTL=self._ttl)), self._granted)

    def _granted(self, record: Record) -> None:
        if not record.is_answered:
            self._world.after(0.1, self._grant)
            return
        self._lease = record.response.ID
        self._live_until = record.started + record.response.TTL
        # Some sessions forget to renew after a while.
        forgets_at = self._world.now + self._random.choice([2.0, 1000.0])
        self._renew_later(self._lease, forgets_at)
        self._want()

    def _renew_later(self, lease: int, forgets_at: float) -> None:
        self._world.after(self._ttl / RENEWALS_PER_TTL, self._renew, lease, forgets_at)

    def _renew(self, lease: int, forgets_at: float) -> None:
        if lease != self._lease or self.is_stopped:
            return
        if self._world.now >= forgets_at:
            until = max(self._world.now, self._live_until - RELIES_SECONDS)
            self._world.at(until, self._query_lease, lease)
            return

        def renewed(record: Record) -> None:
            if lease != self._lease:
                return
            if record.is_answered:
                if not record.response.TTL:
                    return
                # A session that once counted as dead does not come back to life.
                if self.is_live:
                    until = record.started + record.response.TTL
                    self._live_until = max(self._live_until, until)
            self._renew_later(lease, forgets_at)

        keep = PlannedRequest("keep", LeaseKeepAliveRequest(ID=lease))
        self._renewer.abandon()
        self._renewer.ask(keep, self._ttl / 2, renewed)

    def _query_lease(self, lease: int) -> None:
        """Query the TTL of the lease, without a renewal, shortly before the lease may end."""
        if lease != self._lease or self.is_stopped or not self.is_live:
            return
        asked = PlannedRequest("ttl", LeaseTimeToLiveRequest(ID=lease, keys=True))
        self._relying.ask(asked, RELIES_SECONDS, lambda _: None)
        if not self._name:
            self._world.after(1.0, self._grant)

    # Locks and elections.

    def _want(self) -> None:
        if self.is_stopped:
            return
        if not self._name:
            return
        if not self.is_live:
            self._grant()
            return
        asked = PlannedRequest("lock", LockRequest(name=self._name, lease=self._lease))
        if self._name == ELECTION_NAME:
            asked = PlannedRequest("campaign", self._candidacy())
        self._ask(asked, self._take_lock, WAITING_PATIENCE)

    def _candidacy(self) -> CampaignRequest:
        return CampaignRequest(name=self._name, lease=self._lease, value=self._value())

    def _value(self) -> bytes:
        self._proclaimed_value += 1
        return f"{self.name} says {self._proclaimed_value}".encode()

    def _take_lock(self, record: Record) -> None:
        if not record.is_answered:
            # The request may be in the queue all the same: restart with a new lease.
            self._abandon()
            return
        self._leader = record.response.leader if record.kind == "campaign" else None
        now = self._world.now
        if self.is_live:
            self._hold = Hold(self._name, self.name, record, now, now)
            self.holds.append(self._hold)
        self._world.after(self._random.expovariate(1.0), self._use, record)

    def _extend(self) -> None:
        """Record until when it was held: now, or when the session stopped being alive."""
        hold = self._hold
        if hold is not None:
            hold.until = max(hold.since, min(self._world.now, self._live_until))

    def _use(self, record: Record) -> None:
        """Ask for the leader, proclaim a value as the leader, or release the lock or office."""
        self._extend()
        if not self.is_live or self.is_stopped:
            self._abandon()
            return
        choice = self._random.random()
        if self._leader is not None and choice < 0.5:
            asked = PlannedRequest("leader", LeaderRequest(name=self._name))
            if choice < 0.3:
                said = self._value()
                asked = PlannedRequest("proclaim", ProclaimRequest(leader=self._leader, value=said))
            self._ask(asked, lambda _: self._use(record))
            return
        self._release(record)

    def _release(self, record: Record) -> None:
        if self._random.random() < 0.2:
            self._abandon()
            return
        self._hold = None
        asked = PlannedRequest("unlock", UnlockRequest(key=getattr(record.response, "key", b"")))
        if self._leader is not None:
            asked = PlannedRequest("resign", ResignRequest(leader=self._leader))
        self._ask(asked, self._note_released)

    def _note_released(self, record: Record) -> None:
        if record.is_answered:
            self._world.after(self._random.uniform(0.0, 0.5), self._want)
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Restart with another lease; the old one is revoked, or expires."""
        self._extend()
        self._hold = None
        lease, self._lease = self._lease, 0
        if self.is_stopped:
            return
        if self._random.random() < 0.5:
            revoke = PlannedRequest("revoke", LeaseRevokeRequest(ID=lease))
            self._ask(revoke, lambda _: self._world.after(0.1, self._grant))
        else:
            self._world.after(self._random.uniform(0.1, 1.0), self._grant)

    def stop(self) -> None:
        """Send no more requests, and stop waiting for answers."""
        self._extend()
        self.is_stopped = True
        self._asker.abandon()
        self._renewer.abandon()
        self._relying.abandon()
