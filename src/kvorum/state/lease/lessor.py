"""Leases: time limits that delete their attached keys unless clients renew them.

Grants, revokes, checkpoints and attachments are replicated: every member applies the same and
stores the same rows. Only the leader's lessor is primary, and only a primary uses the time: it
renews leases, and returns the expired ones and those to checkpoint. The member proposes those
revokes and checkpoints after confirming that it still leads; a lease exists until its revoke is
applied.

An expired lease stays expired until it is revoked or another member becomes primary: no
renewal brings it back. Callers pass the time in, as seconds of a clock that never goes back.
"""

from collections import deque
from collections.abc import Generator, Iterable
from enum import Enum
from math import ceil, inf
from typing import Any, Final, NamedTuple

from kvorum.api.errors import (
    LEADER_CHANGED,
    LEASE_EXIST,
    LEASE_NOT_FOUND,
    LEASE_TTL_TOO_LARGE,
    StatusError,
)
from kvorum.api.histograms import Histogram, exponential
from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.state.lease.deadlines import Deadlines
from kvorum.state.lease.lease import Lease, lease_of_row, row_key, row_value
from kvorum.state.lease.sorting import sorted_in_slices
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.buckets import LEASE

TTL_SECONDS_MAX = 9_000_000_000
# A new primary spreads expiries out to this rate, which leaves room for other revokes.
_EXPIRIES_PER_SECOND: Final = 3 * PRODUCTION.lease_revokes_per_second_max // 4


class NotRenewed(Enum):
    """The reason why a lease was not renewed, which decides the answer to its holder."""

    NOT_PRIMARY = "another member counts the time: ask the leader"
    NOT_FOUND = "there is no such lease: the answer is TTL 0"
    EXPIRED = "it has run out: wait until it is revoked, then the answer is TTL 0"
    # A renewal that a new leader would not know of must not be acknowledged.
    CHECKPOINTED = "apply a checkpoint of 0 for it first, then renew"


class TimeToLive(NamedTuple):
    """Whole seconds left, 0 or less for an expired lease; and seconds granted."""

    remaining: int
    granted: int


def ttl_seconds_min(election_ticks: int, heartbeat_seconds: float) -> int:
    """Return the shortest TTL: three halves of an election timeout, in whole seconds."""
    # Rounded, because 15 ticks of 0.2 seconds are 3 seconds and not 3.0000000000000004.
    return ceil(round(3 * election_ticks // 2 * heartbeat_seconds, 6))


class Lessor:
    """All leases of a member.

    `expired` returns an expired lease again after `retry_seconds`, if it still exists.
    Unless it `checkpoints`, this lessor requests none, but still applies those of other leaders.
    """

    def __init__(
        self,
        backend: Backend,
        limits: WorkLimits,
        *,
        ttl_seconds_min: int = 2,
        retry_seconds: float = 7.0,
        checkpoints: bool = False,
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._ttl_min = ttl_seconds_min
        self._retry_seconds = retry_seconds
        self._checkpoint_seconds = limits.lease_checkpoint_seconds if checkpoints else None
        self._leases: dict[int, Lease] = {}
        self._lease_of: dict[bytes, int] = {}
        self._is_primary = False
        # Every demotion increments it, so that a running promotion notices that it was overtaken.
        self._role = 0
        self._expiries = Deadlines(self._limits)
        self._checkpoints = Deadlines(self._limits)
        # How many checkpoints of a lease are proposed but not yet applied.
        self._checkpointing: dict[int, int] = {}
        # When the last revokes were returned.
        self._revokes: deque[float] = deque(maxlen=limits.lease_revokes_per_second_max)
        self.granted_total = 0
        self.revoked_total = 0
        self.renewed_total = 0
        self.granted_ttl_seconds = Histogram(exponential(1, 24))

    def restore(self) -> None:
        """Read the leases from the storage, without keys, which the store attaches later.

        The lessor is not primary afterwards.
        """
        for _ in self.restore_slices():
            pass

    def restore_slices(self) -> Generator[None, None, None]:
        """Do what `restore` does, in slices."""
        self.demote()
        self._lease_of = {}
        self._leases = {}
        slice_items = self._limits.lease_slice_items
        for count, (key, value) in enumerate(self._backend.items(LEASE), 1):
            lease = lease_of_row(key, value)
            lease.ttl = max(lease.ttl, self._ttl_min)
            self._leases[lease.id] = lease
            if count % slice_items == 0:
                yield

    def free_all(self) -> Generator[None, None, None]:
        """Free everything in slices, after another lessor has replaced this one."""
        self.demote()
        held: tuple[dict[Any, Any], ...] = (self._lease_of, self._leases)
        for each in held:
            while each:
                for _ in range(min(self._limits.lease_slice_items, len(each))):
                    each.popitem()
                yield

    # Replicated operations, which every member applies alike.

    def grant(self, lease_id: int, ttl: int, now: float) -> int:
        """Create a lease and return its TTL, raised to the minimum; raises StatusError."""
        assert lease_id, "0 stands for no lease; the proposer chooses an id"
        if ttl > TTL_SECONDS_MAX:
            raise StatusError(LEASE_TTL_TOO_LARGE)
        if lease_id in self._leases:
            raise StatusError(LEASE_EXIST)
        lease = Lease(lease_id, max(ttl, self._ttl_min))
        self._leases[lease_id] = lease
        self._backend.put(LEASE, row_key(lease_id), row_value(lease))
        self.granted_total += 1
        self.granted_ttl_seconds.observe(lease.ttl)
        if self._is_primary:
            lease.expiry = now + lease.ttl
            self._expiries.arm(lease_id, lease.expiry)
            self._arm_checkpoint(lease, now)
        return lease.ttl

    def sorted_keys(self, lease_id: int) -> list[bytes]:
        """Return the keys a revoke deletes, in its order; raises StatusError.

        A revoke deletes these keys and calls `forget` for the lease, in one write transaction.
        """
        return sorted(self._lease(lease_id).keys)

    def sorted_keys_in_slices(self, lease_id: int) -> Generator[None, None, list[bytes]]:
        """Return the same as `sorted_keys`, in slices, for a lease with many keys."""
        return sorted_in_slices(list(self._lease(lease_id).keys), self._limits.lease_slice_items)

    def forget(self, lease_id: int) -> None:
        """Remove a lease, and detach keys still attached to it; raises StatusError."""
        lease = self._lease(lease_id)
        for key in lease.keys:
            del self._lease_of[key]
        del self._leases[lease_id]
        self._backend.delete(LEASE, row_key(lease_id))
        self._expiries.disarm(lease_id)
        self._checkpoints.disarm(lease_id)
        self._checkpointing.pop(lease_id, None)
        self.revoked_total += 1

    def checkpoint(self, lease_id: int, remaining: int, now: float) -> None:
        """Store how much of a lease is left, for the next primary; 0 means all of it.

        Ignores a lease that no longer exists.
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        lease.remaining = max(remaining, 0)
        self._backend.put(LEASE, row_key(lease_id), row_value(lease))
        if self._is_primary:
            self._arm_checkpoint(lease, now)
            if lease.remaining and lease_id in self._checkpointing:
                # A primary applies only what it proposed itself, and clearances.
                self._checkpointing[lease_id] -= 1
                if not self._checkpointing[lease_id]:
                    del self._checkpointing[lease_id]

    def attach(self, lease_id: int, key: bytes) -> None:
        """Attach the key to this lease, which must exist, and detach it from any other."""
        assert lease_id in self._leases, f"key {key!r} names lease {lease_id:x}, which is gone"
        self.reattach(lease_id, key)

    def reattach(self, lease_id: int, key: bytes) -> bool:
        """Attach a key read from the storage; return False if the lease does not exist."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        previous = self._lease_of.get(key)
        if previous == lease_id:
            return True
        if previous is not None:
            self._leases[previous].drop(key)
        self._lease_of[key] = lease.id
        lease.add(key)
        return True

    def detach(self, lease_id: int, key: bytes) -> None:
        """Detach the key from this lease, if it is attached to it."""
        if self._lease_of.get(key) == lease_id:
            del self._lease_of[key]
            self._leases[lease_id].drop(key)

    def detach_all(self, keys: Iterable[bytes]) -> None:
        """Detach keys from all leases."""
        lease_of, leases = self._lease_of, self._leases
        if not lease_of:
            return
        for key in keys:
            held = lease_of.pop(key, 0)
            if held:
                leases[held].drop(key)

    # Queries, on any member.

    def __contains__(self, lease_id: int) -> bool:
        return lease_id in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def is_primary(self) -> bool:
        """Whether this lessor times its leases."""
        return self._is_primary

    def lease_of(self, key: bytes) -> int:
        """Return the lease a key is attached to; 0 if there is none."""
        return self._lease_of.get(key, 0)

    def keys_of(self, lease_id: int) -> list[bytes]:
        """Return the keys attached to a lease, in no particular order; none if it is unknown."""
        lease = self._leases.get(lease_id)
        return [] if lease is None else list(lease.keys)

    def key_count(self, lease_id: int) -> int:
        """Return how many keys are attached to a lease; 0 if it is unknown."""
        lease = self._leases.get(lease_id)
        return 0 if lease is None else lease.key_count

    def leases(self) -> list[int]:
        """Return the ids of all leases; a primary puts those with the least time left first."""
        slices = self.leases_in_slices()
        try:
            while True:
                next(slices)
        except StopIteration as end:
            found: list[int] = end.value
            return found

    def leases_in_slices(self) -> Generator[None, None, list[int]]:
        """Return the same as `leases`, in slices; leases renewed meanwhile may be out of order."""
        known = list(self._leases.values())
        if not self._is_primary:
            return [lease.id for lease in known]
        slice_items = self._limits.lease_slice_items
        left: list[tuple[float, int]] = []
        for start in range(0, len(known), slice_items):
            some = known[start : start + slice_items]
            left += [(lease.expiry, order) for order, lease in enumerate(some, start)]
            yield
        ordered = yield from sorted_in_slices(left, slice_items)
        found: list[int] = []
        for start in range(0, len(ordered), slice_items):
            found += [known[order].id for _, order in ordered[start : start + slice_items]]
            yield
        return found

    def time_to_live(self, lease_id: int, now: float) -> TimeToLive | None:
        """Return a lease's remaining and granted time; None if it is unknown.

        Raises StatusError on a lessor that is not primary.
        """
        if not self._is_primary:
            raise StatusError(LEADER_CHANGED)
        lease = self._leases.get(lease_id)
        return None if lease is None else TimeToLive(int(lease.expiry - now), lease.ttl)

    # Operations of the primary.

    def promote(self, now: float, extend_seconds: float) -> None:
        """Become primary in one call; see `promote_in_slices`."""
        for _ in self.promote_in_slices(now, extend_seconds):
            pass

    def promote_in_slices(self, now: float, extend_seconds: float) -> Generator[None, None, None]:
        """Become primary at the end; each lease gets its `refresh_seconds` plus the extension.

        The member must not grant, revoke or checkpoint leases meanwhile; a demotion cancels this.
        """
        self.demote()
        role = self._role
        for _ in self._refresh(now, extend_seconds):
            yield
            if self._role != role:
                return
        self._is_primary = True

    def demote(self) -> None:
        """Stop timing leases; none expires here until the next promotion."""
        self._is_primary = False
        self._role += 1
        self._expiries = Deadlines(self._limits)
        self._checkpoints = Deadlines(self._limits)
        self._checkpointing = {}

    def renew(self, lease_id: int, now: float) -> int | NotRenewed:
        """Restart a lease's time and return its TTL, or the reason for not renewing it."""
        if not self._is_primary:
            return NotRenewed.NOT_PRIMARY
        lease = self._leases.get(lease_id)
        if lease is None:
            return NotRenewed.NOT_FOUND
        if lease.expiry <= now:
            return NotRenewed.EXPIRED
        if lease.remaining or lease_id in self._checkpointing:
            return NotRenewed.CHECKPOINTED
        lease.expiry = now + lease.ttl
        self._expiries.arm(lease_id, lease.expiry)
        self.renewed_total += 1
        return lease.ttl

    def take_expired(self, now: float, limit: int) -> list[int]:
        """Return expired leases for the member to revoke.

        Returns at most `limit`, and at most `lease_revokes_per_second_max` within any second.
        Returns a lease again after `retry_seconds`, until `forget` removes it.
        """
        found: list[int] = []
        revokes = self._revokes
        for _ in range(self._limits.lease_deadlines_examined_max if self._is_primary else 0):
            if len(found) >= limit or self._revokes_resume > now:
                break
            lease_id = self._expiries.take(now)
            if lease_id is None:
                break
            expiry = self._leases[lease_id].expiry
            if expiry > now:
                self._expiries.arm(lease_id, expiry)
                continue
            self._expiries.arm(lease_id, now + self._retry_seconds)
            revokes.append(now)
            found.append(lease_id)
        return found

    def take_due_checkpoints(self, now: float) -> list[tuple[int, int]]:
        """Return (lease, seconds left) for leases to checkpoint now, at most one batch.

        A lease is due again after the interval, whether or not its checkpoint was applied. A caller
        that proposes the checkpoints must call `note_proposed_checkpoints` before it renews any.
        """
        due: list[tuple[int, int]] = []
        for _ in range(self._limits.lease_checkpoints_per_batch_max):
            lease_id = self._checkpoints.take(now)
            if lease_id is None:
                break
            lease = self._leases[lease_id]
            remaining = ceil(lease.expiry - now)
            if remaining > 0:
                self._arm_checkpoint(lease, now)
                # A lease with all of its time left needs no checkpoint.
                if remaining < lease.refresh_seconds:
                    due.append((lease_id, remaining))
        return due

    def note_proposed_checkpoints(self, due: list[tuple[int, int]]) -> None:
        """Note proposed checkpoints, which would undo renewals made before they are applied."""
        for lease_id, _ in due:
            self._checkpointing[lease_id] = self._checkpointing.get(lease_id, 0) + 1

    @property
    def next_deadline(self) -> float:
        """When `take_expired` or `take_due_checkpoints` may next return leases; never too late."""
        return min(max(self._expiries.first, self._revokes_resume), self._checkpoints.first)

    @property
    def _revokes_resume(self) -> float:
        """When the limit of revokes per second permits another one."""
        revokes = self._revokes
        # The list holds no more than the limit.
        return revokes[0] + 1.0 if len(revokes) == revokes.maxlen else -inf

    def _lease(self, lease_id: int) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise StatusError(LEASE_NOT_FOUND)
        return lease

    def _arm_checkpoint(self, lease: Lease, now: float) -> None:
        interval = self._checkpoint_seconds
        if interval is not None and lease.refresh_seconds > interval:
            self._checkpoints.arm(lease.id, now + interval)

    def _refresh(self, now: float, extend_seconds: float) -> Generator[None, None, None]:
        entries = []
        slice_items = self._limits.lease_slice_items
        for count, lease in enumerate(self._leases.values(), 1):
            lease.expiry = now + lease.refresh_seconds + extend_seconds
            entries.append((lease.expiry, lease.id))
            self._arm_checkpoint(lease, now)
            if count % slice_items == 0:
                yield
        entries = yield from sorted_in_slices(entries, slice_items)
        yield from self._expiries.replace(entries)
        if len(entries) >= self._limits.lease_revokes_per_second_max:
            yield from self._spread(entries, now, extend_seconds)

    def _spread(
        self, entries: list[tuple[float, int]], now: float, extend_seconds: float
    ) -> Generator[None, None, None]:
        """Delay leases that would expire in the same second as too many others.

        Their heap entries stay and come up too early, which does no harm.
        """
        window_start = entries[0][0]
        window_end = window_start + 1.0
        expiries = 0
        slice_items = self._limits.lease_slice_items
        for count, (expiry, lease_id) in enumerate(entries, 1):
            if count % slice_items == 0:
                yield
            if expiry > window_end:
                window_start, window_end, expiries = expiry, expiry + 1.0, 1
                continue
            expiries += 1
            if expiries > _EXPIRIES_PER_SECOND:
                delay = expiries / _EXPIRIES_PER_SECOND - (expiry - window_start)
                window_end = window_start + delay
                lease = self._leases[lease_id]
                lease.expiry = now + lease.refresh_seconds + delay + extend_seconds
