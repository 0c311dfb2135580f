"""Leases: granted, kept alive off the user's thread or loop, and ended."""

from typing import TYPE_CHECKING, Self

from kvorum.client import operations
from kvorum.client.errors import ClosedError, KvorumError, LeaseExistsError, LeaseNotFoundError
from kvorum.client.keeping import Kept
from kvorum.client.loop import Waiter, clock, monotonic, random_id
from kvorum.client.values import LeaseStatus

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient


class AsyncLease:
    """A lease: keys that are put with its id are deleted when it ends.

    Used as a context manager it is kept alive, and revoked at the end.
    """

    def __init__(self, client: "AsyncClient", lease: int, ttl: int, asked_at: float) -> None:
        self._client = client
        self._shell = client.shell
        self.id: int = lease
        self.ttl: int = ttl
        """Seconds that it lives without being renewed."""
        self.asked_at: float = asked_at
        """When it was asked for, by the clock of the client's shell; for parts of the client."""
        self._kept: Kept | None = None
        self._waiter: Waiter | None = None

    async def __aenter__(self) -> Self:
        self.keep_alive()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.revoke()

    def keep_alive(self) -> None:
        """Renew it in time from now on, until it is revoked or released."""
        if self._kept is None or self._kept.error is not None:
            self._kept = self._shell.keep(self.id, self.ttl, self.asked_at, self._changed)

    def release(self) -> None:
        """Renew it no longer; it lives on until its time is over."""
        if self._kept is not None:
            self._shell.release(self._kept)

    @property
    def lost(self) -> KvorumError | None:
        """Why it is not kept alive any more; None while it is, or if it never was."""
        return None if self._kept is None else self._kept.lost(clock())

    @property
    def lives_until(self) -> float:
        """The moment of `time.monotonic` up to which it lives for sure, unless that clock stops.

        It stops while the machine is suspended, which brings the moment nearer: ask each time.
        """
        moment = self.asked_at + self.ttl if self._kept is None else self._kept.lives_until
        return monotonic() + (moment - clock())

    async def wait_lost(self) -> KvorumError:
        """Wait until it is not kept alive any more, and return why."""
        if self._kept is None:
            raise ClosedError(f"lease {self.id} is not kept alive, so it cannot be lost")
        while self.lost is None:
            self._waiter = Waiter()
            if self.lost is None:
                await self._shell.wait(self._waiter)
        return self.lost

    async def remaining(self, *, keys: bool = False, timeout: float | None = None) -> LeaseStatus:
        """Ask how long it lives, and which keys end with it."""
        operation = operations.time_to_live_operation(self.id, keys=keys)
        return await self._client.run(operation, timeout)

    async def revoke(self, timeout: float | None = None) -> None:
        """End it, and delete its keys; nothing happens if it has ended."""
        self.release()
        try:
            await self._client.run(operations.revoke_operation(self.id), timeout)
        except LeaseNotFoundError:
            return

    def _changed(self) -> None:
        if self._waiter is not None and self.lost is not None:
            self._waiter.wake()


async def grant(client: "AsyncClient", ttl: int, lease: int, timeout: float | None) -> AsyncLease:
    """Grant a lease; one whose id this client chose may be there from an earlier attempt."""
    chosen = lease or random_id()
    asked_at = clock()
    try:
        granted = await client.run(operations.grant_operation(chosen, ttl), timeout)
    except LeaseExistsError:
        if lease:
            raise
        granted = ttl
    return AsyncLease(client, chosen, granted, asked_at)
