# Written by `make client` from kvorum/client/aio; change that.
"""How recipes wait for changes of keys: until a deadline, and while a session lives."""

from typing import TYPE_CHECKING, TypeVar

from kvorum.client import operations
from kvorum.client.errors import (
    DeadlineError,
    OutcomeUnknownError,
    UnavailableError,
    WatchCompactedError,
)
from kvorum.client.keys import KeyRange, key_range
from kvorum.client.operations import Operation
from kvorum.client.options import TIMEOUT_SECONDS
from kvorum.client.sync.recipes.sessions import Session
from kvorum.client.threads import FOREVER, clock
from kvorum.client.values import Event, KeyValue, RangeResult

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client

T = TypeVar("T")

CALL_SECONDS_MIN = 0.01
"""The shortest timeout of a call, so that a recipe that must not wait can still make calls."""


class Deadline:
    """The wait of a recipe: its deadline, its purpose, and its session."""

    def __init__(
        self,
        client: "Client",
        what: str,
        timeout: float | None,
        session: Session | None = None,
    ) -> None:
        self._client = client
        self._what = what
        self._timeout = timeout
        self._session = session
        self._until = FOREVER if timeout is None else clock() + timeout

    def check(self) -> None:
        """Raise if the session is lost or the time is over."""
        if self._session is not None:
            lost = self._session.lost
            if lost is not None:
                raise lost
        if clock() >= self._until:
            raise DeadlineError(f"{self._what} within {self._timeout} s")

    def _seconds_left(self) -> float | None:
        if self._until == FOREVER:
            return None
        return min(TIMEOUT_SECONDS, max(self._until - clock(), CALL_SECONDS_MIN))

    def run(self, operation: Operation[T]) -> T:
        """Make an idempotent call, and repeat it until it is answered or `check` raises.

        Without a deadline and a session, there are no repetitions.
        """
        while True:
            try:
                return self._client.run(operation, self._seconds_left())
            except (UnavailableError, OutcomeUnknownError, DeadlineError):
                self.check()
                if self._session is None and self._until == FOREVER:
                    raise

    def read(
        self,
        keys: KeyRange,
        *,
        limit: int = 0,
        order: str = "",
        by: str = "key",
        older_than: int = 0,
    ) -> RangeResult:
        """Read keys; with `older_than`, only those that were created before that revision."""
        request = operations.range_request(
            keys,
            limit=limit,
            order=order,
            by=by,
            create_revisions=(0, older_than - 1 if older_than else 0),
        )
        return self.run(operations.range_operation(request))

    def wait_event(
        self, keys: KeyRange, revision: int, *, puts: bool = False, deletes: bool = False
    ) -> Event | None:
        """Return the first change of the wanted kinds from a revision on.

        None if that revision is compacted: the caller must then read the keys again.
        """
        watch = self._client.watch(
            keys.key, end=keys.end or None, revision=revision, puts=puts, deletes=deletes
        )
        if self._session is not None:
            self._session.listen(watch.wake)
        try:
            while True:
                self.check()
                changes = watch.changes_by(self._until)
                if changes is not None and changes.events:
                    return changes.events[0]
        except WatchCompactedError:
            return None
        finally:
            if self._session is not None:
                self._session.ignore(watch.wake)
            watch.close()

    def wait_older_gone(self, prefix: bytes, revision: int) -> None:
        """Wait until no key under a prefix is older than a revision; watch one key at a time."""
        while True:
            found = self.read(
                key_range(prefix=prefix),
                limit=1,
                order="descending",
                by="create_revision",
                older_than=revision,
            )
            if not found.kvs:
                return
            blocking: KeyValue = found.kvs[0]
            self.wait_event(key_range(blocking.key), found.revision + 1, deletes=True)
