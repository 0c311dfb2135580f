"""The granted TTLs of leases whose keys are exported or reverted, requested once per lease."""

from kvorum.client import operations
from kvorum.client.sync.client import Client
from kvorum.tools.ctl.invocation import CtlInvocation

KNOWN_MAX = 100_000
"""The most leases to remember; beyond that, the cache is cleared and they are requested again."""


class LeaseTtls:
    """A cache of the granted TTLs of leases."""

    def __init__(self, invocation: CtlInvocation, client: Client) -> None:
        self._client = client
        self._seconds = invocation.seconds("command-timeout")
        self._ttls: dict[int, int] = {}

    def is_known(self, lease: int) -> bool:
        """Return whether the cache holds a lease."""
        return lease in self._ttls

    def ttl(self, lease: int) -> int:
        """Return a lease's granted TTL in seconds; 0 if the lease has ended."""
        found = self._ttls.get(lease)
        if found is None:
            operation = operations.time_to_live_operation(lease, keys=False)
            status = self._client.run(operation, self._seconds)
            found = status.ttl if status.remaining > 0 else 0
            if len(self._ttls) >= KNOWN_MAX:
                self._ttls.clear()
            self._ttls[lease] = found
        return found
