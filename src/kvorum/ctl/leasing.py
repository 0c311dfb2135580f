"""Leases of keys that are copied or restored: how long they were granted for, asked once each."""

from kvorum.client import operations
from kvorum.client.sync.client import Client
from kvorum.ctl.invocation import Invocation

KNOWN_MAX = 100_000
"""Leases that are remembered; beyond, they are asked for again."""


class Leases:
    """What is known of leases."""

    def __init__(self, invocation: Invocation, client: Client) -> None:
        self._client = client
        self._seconds = invocation.seconds("command-timeout")
        self._ttls: dict[int, int] = {}

    def is_known(self, lease: int) -> bool:
        """Whether a lease was asked for already."""
        return lease in self._ttls

    def ttl(self, lease: int) -> int:
        """Return for how many seconds a lease was granted; 0 if it does not live."""
        found = self._ttls.get(lease)
        if found is None:
            operation = operations.time_to_live_operation(lease, keys=False)
            status = self._client.run(operation, self._seconds)
            found = status.ttl if status.remaining > 0 else 0
            if len(self._ttls) >= KNOWN_MAX:
                self._ttls.clear()
            self._ttls[lease] = found
        return found
