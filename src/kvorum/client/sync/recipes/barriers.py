# Written by `make client` from kvorum/client/aio; change that.
"""Barriers: many clients wait for one, or all of them for each other."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvorum.client.keys import Text, as_bytes, key_range
from kvorum.client.operations import put as put_request
from kvorum.client.operations import put_operation, txn_operation
from kvorum.client.recipes.errors import BarrierExistsError, TooManyClientsError, session_expired
from kvorum.client.sync.recipes.sessions import Session, begin_session
from kvorum.client.sync.recipes.waiting import Deadline
from kvorum.client.threads import unix_nanoseconds
from kvorum.client.transactions import TxnParts, get, put, version
from kvorum.client.values import KeyValue, RangeResult

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class Barrier:
    """A barrier: clients wait as long as it exists."""

    def __init__(self, client: "Client", key: Text) -> None:
        self._client = client
        self._key = as_bytes(key)

    def create(self, timeout: float | None = None) -> None:
        """Create the barrier; raises BarrierExistsError if it exists."""
        txn = self._client.txn().when(version(self._key) == 0).then(put(self._key))
        if not (txn.commit(timeout)).succeeded:
            raise BarrierExistsError(self._key.decode(errors="replace"))

    def remove(self, timeout: float | None = None) -> None:
        """Remove the barrier, so that all clients go on."""
        self._client.delete(self._key, timeout=timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the barrier does not exist; raises DeadlineError after `timeout` seconds."""
        what = f"barrier {self._key.decode(errors='replace')!r} was not removed"
        deadline = Deadline(self._client, what, timeout)
        keys = key_range(self._key)
        while (found := deadline.read(keys)).kvs:
            if deadline.wait_event(keys, found.revision + 1, deletes=True) is not None:
                return


class DoubleBarrier:
    """A double barrier: `count` clients begin together, and end together."""

    def __init__(
        self, client: "Client", key: Text, count: int, ttl: int, session: Session | None
    ) -> None:
        self._client = client
        self._name = as_bytes(key)
        self._waiters = key_range(prefix=self._name + b"/waiters")
        self._ready = self._name + b"/ready"
        self._count = count
        self._ttl = ttl
        self._shared = session
        self._session: Session | None = None
        self._key = b""

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.leave()
        elif self._session is not None:
            # A client that failed waits for no other, and no other waits for it.
            self._end(self._session)

    def enter(self, timeout: float | None = None) -> None:
        """Wait until all clients have entered; raises TooManyClientsError if they already have."""
        if self._session is not None:
            raise RuntimeError(f"this object has entered {self._name!r} already")
        session = self._shared or begin_session(self._client, self._ttl)
        self._session = session
        self._key = b""
        what = f"{self._count} did not enter {self._name.decode(errors='replace')!r}"
        deadline = Deadline(self._client, what, timeout, session)
        try:
            self._enter(session, deadline)
        except BaseException:
            self._end(session)
            raise

    def _enter(self, session: Session, deadline: Deadline) -> None:
        if len((deadline.read(self._waiters)).kvs) >= self._count:
            raise self._too_many()
        revision = self._create_key(session, deadline)
        entered = deadline.read(self._waiters, order="ascending", by="create_revision")
        if len(entered.kvs) >= self._count:
            last = entered.kvs[self._count - 1].create_revision
            if revision > last:
                raise self._too_many()
            if revision == last:
                request = put_request(
                    self._ready, b"", 0, previous=False, keep_value=False, keep_lease=False
                )
                deadline.run(put_operation(request))
                return
        keys = key_range(self._ready)
        if deadline.wait_event(keys, revision, puts=True) is None:
            # The event was compacted. If the ready key exists, it is newer than this client's key.
            while not (found := deadline.read(keys)).kvs:
                deadline.wait_event(keys, found.revision + 1, puts=True)

    def _create_key(self, session: Session, deadline: Deadline) -> int:
        while True:
            self._key = b"%s/waiters/%d" % (self._name, unix_nanoseconds())
            parts = TxnParts()
            parts.add_conditions((version(self._key) == 0,))
            parts.add_success((put(self._key, lease=session.id),))
            parts.add_failure((get(self._key),))
            done = deadline.run(txn_operation(parts.request))
            found = done.responses[0]
            if not isinstance(found, RangeResult):
                return done.revision
            if found.kvs[0].lease == session.id:
                return found.kvs[0].create_revision

    def leave(self, timeout: float | None = None) -> None:
        """Wait until all clients that have entered leave."""
        session = self._session
        if session is None:
            return
        what = f"not all left {self._name.decode(errors='replace')!r}"
        deadline = Deadline(self._client, what, timeout, session)
        try:
            self._leave(session, deadline)
        finally:
            self._end(session)

    def _leave(self, session: Session, deadline: Deadline) -> None:
        is_in = True
        while True:
            found = deadline.read(self._waiters, order="ascending", by="create_revision")
            if not found.kvs:
                return
            lowest, highest = found.kvs[0], found.kvs[-1]
            if is_in and not any(each.key == self._key for each in found.kvs):
                raise session_expired()
            if lowest.key != self._key:
                if is_in:
                    session.remove(self._key)
                    is_in = False
                self._wait_gone(lowest, found.revision, deadline)
            elif len(found.kvs) > 1:
                self._wait_gone(highest, found.revision, deadline)
            else:
                self._client.delete(self._ready)
                session.remove(self._key)
                return

    def _wait_gone(self, waiter: KeyValue, revision: int, deadline: Deadline) -> None:
        deadline.wait_event(key_range(waiter.key), revision + 1, deletes=True)

    def _end(self, session: Session) -> None:
        self._session = None
        if session is not self._shared:
            session.close()
        elif self._key:
            session.remove(self._key)

    def _too_many(self) -> TooManyClientsError:
        return TooManyClientsError(self._name.decode(errors="replace"), self._count)
