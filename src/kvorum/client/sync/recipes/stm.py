# Written by `make client` from kvorum/client/aio; change that.
"""Software transactions and counters: read, compute, write, and retry if others were faster."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from kvorum.client.errors import CompactedError
from kvorum.client.keys import Text, as_bytes
from kvorum.client.operations import txn_operation
from kvorum.client.recipes.errors import NotANumberError
from kvorum.client.recipes.isolation import Attempt
from kvorum.client.recipes.levels import Isolation
from kvorum.client.sync.recipes.waiting import Deadline
from kvorum.client.threads import Outcome, Waiter, clock, random_id

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client

T = TypeVar("T")

BACK_OFF_SECONDS = 0.001
BACK_OFF_SECONDS_MAX = 0.1


class Stm:
    """Reads and writes keys for a transaction's function; writes wait for the commit."""

    def __init__(self, client: "Client", attempt: Attempt) -> None:
        self._client = client
        self._attempt = attempt

    def get(self, key: Text) -> bytes | None:
        """Return a key's value as the transaction sees it, or None if it does not exist."""
        name = as_bytes(key)
        if not self._attempt.is_known(name):
            self.fetch([name])
        return self._attempt.value(name)

    def revision(self, key: Text) -> int:
        """Return the mod revision of a key before the transaction, or 0."""
        name = as_bytes(key)
        if not self._attempt.is_fetched(name):
            self.fetch([name])
        return self._attempt.mod_revision(name)

    def fetch(self, keys: Iterable[Text]) -> None:
        """Read keys in one call, so that later reads of them need none."""
        names = [
            name
            for name in map(as_bytes, dict.fromkeys(keys))
            if not self._attempt.is_fetched(name)
        ]
        if names:
            found = self._client.run(txn_operation(self._attempt.read_request(names)))
            self._attempt.take(names, found)

    def put(self, key: Text, value: Text, *, lease: int = 0) -> None:
        """Set a key."""
        self._attempt.put(as_bytes(key), value, lease)

    def delete(self, key: Text) -> None:
        """Delete a key."""
        self._attempt.delete(as_bytes(key))


def transact(
    client: "Client",
    function: "Callable[[Stm], Outcome[T]]",
    isolation: Isolation,
    timeout: float | None,
) -> T:
    """Run a function until its reads still hold when its writes are committed."""
    deadline = Deadline(client, "the transaction could not commit", timeout)
    attempt = Attempt(isolation)
    seconds = BACK_OFF_SECONDS
    while True:
        try:
            outcome = function(Stm(client, attempt))
            request = attempt.commit_request()
            if request is None:
                return outcome
            done = client.run(txn_operation(request))
            if done.succeeded:
                return outcome
            attempt = attempt.next(done)
        except CompactedError:
            # The revision of the reads was compacted; the next attempt has a newer one.
            attempt = Attempt(isolation)
        deadline.check()
        # Random delays keep clients that collided from retrying at the same moment.
        client.shell.wait(Waiter(), clock() + seconds * (random_id() % 1000) / 1000)
        seconds = min(2 * seconds, BACK_OFF_SECONDS_MAX)


class Counter:
    """A whole number that many clients may change at a time."""

    def __init__(self, client: "Client", key: Text, default: int) -> None:
        self._client = client
        self._key = as_bytes(key)
        self._default = default

    def value(self, timeout: float | None = None) -> int:
        """Return the number."""
        found = self._client.get(self._key, timeout=timeout)
        return self._number(None if found is None else found.value)

    def add(self, number: int = 1, timeout: float | None = None) -> int:
        """Add to the number, and return the new one.

        After OutcomeUnknownError, the addition may or may not have taken effect.
        """

        def change(stm: Stm) -> int:
            changed = self._number(stm.get(self._key)) + number
            stm.put(self._key, str(changed))
            return changed

        return transact(self._client, change, Isolation.SERIALIZABLE, timeout)

    def _number(self, value: bytes | None) -> int:
        try:
            return self._default if value is None else int(value)
        except ValueError:
            raise NotANumberError(
                f"{self._key!r} holds {value!r}; expected a whole number in decimal digits"
            ) from None
