# Written by `make client` from kvorum/client/aio; change that.
"""Leases: granted, kept alive outside the user's thread or loop, and revoked."""

from typing import TYPE_CHECKING, Self

from kvorum.client import operations
from kvorum.client.errors import ClosedError, KvorumError, LeaseExistsError, LeaseNotFoundError
from kvorum.client.lease_keeper import KeptLease
from kvorum.client.threads import Waiter, clock, monotonic, random_id
from kvorum.client.values import LeaseStatus

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class Lease:
    """A lease: the server deletes keys that are put with its id when it ends.

    As a context manager, the lease is kept alive inside the block, and revoked at its end.
    """

    def __init__(self, client: "Client", lease: int, ttl: int, asked_at: float) -> None:
        self._client = client
        self._shell = client.shell
        self.id: int = lease
        self.ttl: int = ttl
        """Seconds that the lease lives without renewal."""
        self.asked_at: float = asked_at
        """When the client requested the lease, by its shell's clock; for parts of the client."""
        self._kept: KeptLease | None = None
        self._waiter: Waiter | None = None

    def __enter__(self) -> Self:
        self.keep_alive()
        return self

    def __exit__(self, *_: object) -> None:
        self.revoke()

    def keep_alive(self) -> None:
        """Renew the lease in time from now on, until it is revoked or released."""
        if self._kept is None or self._kept.error is not None:
            self._kept = self._shell.keep(self.id, self.ttl, self.asked_at, self._changed)

    def release(self) -> None:
        """Stop renewing the lease; it lives on until its TTL is over."""
        if self._kept is not None:
            self._shell.release(self._kept)

    @property
    def lost(self) -> KvorumError | None:
        """Why the lease is no longer kept alive; None while it is, or if it never was."""
        return None if self._kept is None else self._kept.find_loss(clock())

    @property
    def lives_until(self) -> float:
        """The moment of `time.monotonic` up to which the lease surely lives, if that clock runs.

        That clock stops while the machine is suspended, and the moment then comes earlier on it, so
        read this property each time.
        """
        moment = self.asked_at + self.ttl if self._kept is None else self._kept.lives_until
        return monotonic() + (moment - clock())

    def wait_lost(self) -> KvorumError:
        """Wait until the lease is no longer kept alive, and return why."""
        if self._kept is None:
            raise ClosedError(f"lease {self.id} is not kept alive, so it cannot be lost")
        while self.lost is None:
            self._waiter = Waiter()
            if self.lost is None:
                self._shell.wait(self._waiter)
        return self.lost

    def remaining(self, *, keys: bool = False, timeout: float | None = None) -> LeaseStatus:
        """Return the remaining time of the lease, and with `keys` the keys attached to it."""
        operation = operations.time_to_live_operation(self.id, keys=keys)
        return self._client.run(operation, timeout)

    def revoke(self, timeout: float | None = None) -> None:
        """Revoke the lease, which deletes its keys; does nothing if it has ended."""
        self.release()
        try:
            self._client.run(operations.revoke_operation(self.id), timeout)
        except LeaseNotFoundError:
            return

    def _changed(self) -> None:
        if self._waiter is not None and self.lost is not None:
            self._waiter.wake()


def grant(client: "Client", ttl: int, lease: int, timeout: float | None) -> Lease:
    """Grant a lease; an id that this client chose may exist already, from an earlier attempt."""
    chosen = lease or random_id()
    asked_at = clock()
    try:
        granted = client.run(operations.grant_operation(chosen, ttl), timeout)
    except LeaseExistsError:
        if lease:
            raise
        granted = ttl
    return Lease(client, chosen, granted, asked_at)
