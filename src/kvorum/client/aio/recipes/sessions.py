"""Sessions: a lease that is kept alive, and everything that ends with it."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from kvorum.client import operations
from kvorum.client.aio.leases import grant
from kvorum.client.errors import (
    ClosedError,
    DeadlineError,
    KvorumError,
    LeaseLostError,
    LeaseNotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from kvorum.client.lease_keeper import KeptLease
from kvorum.client.loop import Waiter, clock, monotonic
from kvorum.client.operations import txn_operation
from kvorum.client.transactions import TxnParts, create_revision, delete

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient

REMOVALS_MAX = 3
"""How often a session tries to remove a key before it ends itself instead."""


class AsyncSession:
    """A lease that is kept alive until the session is closed, or lost.

    Locks and other recipes may share a session; once it has ended, others can take what it held.
    """

    def __init__(self, client: "AsyncClient", lease: int, ttl: int, asked_at: float) -> None:
        self.client: AsyncClient = client
        self.id: int = lease
        self.ttl: int = ttl
        """Seconds after which the session ends without renewal."""
        self._ended: KvorumError | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._claimed: set[bytes] = set()
        self._kept: KeptLease = client.shell.keep(lease, ttl, asked_at, self._take_lease_change)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def lost(self) -> KvorumError | None:
        """Why the session has ended, or must count as ended; None while it surely lives."""
        return self._kept.find_loss(clock()) if self._ended is None else self._ended

    @property
    def lives_until(self) -> float:
        """The moment of `time.monotonic` up to which the session surely lives, if that clock runs.

        That clock stops while the machine is suspended, and the moment then comes earlier on it, so
        read this property each time.
        """
        return monotonic() + (self._kept.lives_until - clock())

    async def wait_lost(self) -> KvorumError:
        """Wait until the session has ended, and return why."""
        while True:
            waiter = Waiter()
            self._listeners.add(waiter.wake)
            try:
                lost = self.lost
                if lost is not None:
                    return lost
                await self.client.shell.wait(waiter)
            finally:
                self._listeners.discard(waiter.wake)

    async def close(self) -> None:
        """End the session and release what it holds; if no server answers, within its TTL."""
        if self._ended is not None:
            return
        was_lost = self.lost is not None
        self._end(ClosedError("the session is closed"))
        if was_lost:
            # The lease's TTL is over at the server, too, or will be in a moment.
            return
        with suppress(LeaseNotFoundError, UnavailableError, DeadlineError, OutcomeUnknownError):
            await self.client.run(operations.revoke_operation(self.id))

    def orphan(self) -> None:
        """Stop keeping the session alive; it ends when its TTL is over."""
        if self._ended is None:
            self._end(ClosedError("the session is not kept alive any more"))

    # For recipes.

    def listen(self, callback: Callable[[], None]) -> None:
        """Call a function when the session ends."""
        self._listeners.add(callback)

    def ignore(self, callback: Callable[[], None]) -> None:
        """Stop calling a function when the session ends."""
        self._listeners.discard(callback)

    def claim(self, key: bytes) -> None:
        """Reserve a key that is named for this session: two users of the key would both hold it."""
        with self.client.shell.turn():
            if key in self._claimed:
                raise RuntimeError(
                    f"this session holds {key!r} already, or waits for it; a session holds it "
                    "once; any other user of the key needs a session of its own"
                )
            self._claimed.add(key)

    def unclaim(self, key: bytes) -> None:
        """Let another user claim the key."""
        self._claimed.discard(key)

    async def remove(self, key: bytes, revision: int = 0) -> None:
        """Remove a key of this session; if that fails, end the session.

        A key that stayed while the session lives would have no holder, for ever. `revision` is the
        create revision of the key, 0 for that of the present one: a removal whose outcome is
        unknown may take effect late, and must not remove a key that was created since.
        """
        for _ in range(REMOVALS_MAX):
            if self.lost is not None:
                return
            with suppress(UnavailableError, DeadlineError, OutcomeUnknownError):
                revision = revision or await self._read_create_revision(key)
                parts = TxnParts()
                parts.add_conditions((create_revision(key) == revision,))
                parts.add_success((delete(key),))
                if revision:
                    await self.client.run(txn_operation(parts.request))
                return
        self._end(LeaseLostError(f"the key {key!r} of the session could not be removed"))

    async def _read_create_revision(self, key: bytes) -> int:
        """Return the create revision of a key of this session; 0 if there is none."""
        found = await self.client.get(key)
        return found.create_revision if found is not None and found.lease == self.id else 0

    def _end(self, reason: KvorumError) -> None:
        self._ended = self.lost or reason
        self.client.shell.release(self._kept)
        with self.client.shell.turn():
            self._wake_listeners()

    def _take_lease_change(self) -> None:
        # The lease may change before `keep` has returned; there are no listeners then.
        if self._listeners and self._kept.error is not None:
            self._wake_listeners()

    def _wake_listeners(self) -> None:
        for each in tuple(self._listeners):
            each()


async def begin_session(client: "AsyncClient", ttl: int, lease: int = 0) -> AsyncSession:
    """Grant a lease and keep it alive, or keep an existing one alive."""
    if not lease:
        granted = await grant(client, ttl, 0, None)
        return AsyncSession(client, granted.id, granted.ttl, granted.asked_at)
    asked_at = clock()
    status = await client.run(operations.time_to_live_operation(lease, keys=False))
    if status.remaining < 0:
        raise LeaseLostError(f"lease {lease} has ended, or never was")
    return AsyncSession(client, lease, status.remaining, asked_at)
