# Written by `make client` from kvorum/client/aio; change that.
"""Elections: candidates wait in the order of arrival; the first of them leads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvorum.client.errors import KvorumError
from kvorum.client.keys import Text, as_bytes, key_range
from kvorum.client.operations import txn_operation
from kvorum.client.recipes.errors import no_leader, not_leader, session_expired
from kvorum.client.sync.recipes.sessions import Session, begin_session
from kvorum.client.sync.recipes.waiting import Deadline
from kvorum.client.transactions import Condition, TxnParts, create_revision, get, put
from kvorum.client.values import KeyValue, RangeResult

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class Election:
    """An election: a candidate leads once all earlier candidates are gone."""

    def __init__(self, client: "Client", name: Text, ttl: int, session: Session | None) -> None:
        self._client = client
        self._name = as_bytes(name, "name")
        self._prefix = self._name + b"/"
        self._ttl = ttl
        self._shared = session
        self._session: Session | None = None
        self._key = b""
        self._revision = 0

    # The candidate.

    def campaign(self, value: Text = b"", timeout: float | None = None) -> None:
        """Wait until this candidate leads; the election's observers then see `value`."""
        if self._session is not None:
            raise RuntimeError(f"this object leads, or campaigns in, {self._name!r} already")
        session = self._shared or begin_session(self._client, self._ttl)
        what = f"election {self._name.decode(errors='replace')!r} was not won"
        deadline = Deadline(self._client, what, timeout, session)
        key = b"%s%x" % (self._prefix, session.id)
        session.claim(key)
        self._session, self._key, self._revision = session, key, 0
        try:
            self._enter(session, as_bytes(value, "value"), deadline)
            deadline.wait_older_gone(self._prefix, self._revision)
            own = (deadline.read(key_range(key))).kvs
            if not own or own[0].create_revision != self._revision:
                raise session_expired()
            lost = session.lost
            if lost is not None:
                raise lost
        except BaseException:
            self.resign()
            raise

    def _enter(self, session: Session, value: bytes, deadline: Deadline) -> None:
        parts = TxnParts()
        parts.add_conditions((create_revision(self._key) == 0,))
        parts.add_success((put(self._key, value, lease=session.id),))
        parts.add_failure((get(self._key),))
        done = deadline.run(txn_operation(parts.request))
        self._revision = done.revision
        own = done.responses[0]
        if isinstance(own, RangeResult):
            self._revision = own.kvs[0].create_revision
            if own.kvs[0].value != value:
                self.proclaim(value)

    def proclaim(self, value: Text, timeout: float | None = None) -> None:
        """Change this leader's value; raises ElectionNotLeaderError if it leads no longer."""
        session = self._require_leadership()
        parts = TxnParts()
        parts.add_conditions((self.condition,))
        parts.add_success((put(self._key, value, lease=session.id),))
        done = self._client.run(txn_operation(parts.request), timeout)
        if not done.succeeded:
            self.resign()
            raise not_leader()

    def resign(self) -> None:
        """Withdraw, and let the next candidate lead; does nothing without a campaign."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            if session is self._shared:
                session.remove(self._key, self._revision)
            else:
                session.close()
        finally:
            session.unclaim(self._key)

    def resume(self, leader: KeyValue) -> None:
        """Continue to lead with the key of an earlier object that had this election's session."""
        if self._shared is None or leader.lease != self._shared.id:
            raise ValueError(
                f"the leader's key {leader.key!r} ends with lease {leader.lease}; expected an "
                "election with the session of that lease"
            )
        self._shared.claim(leader.key)
        self._session, self._key = self._shared, leader.key
        self._revision = leader.create_revision

    # The candidate's state.

    @property
    def fencing(self) -> int:
        """A number that grows with each leader: send it to the systems that the leader controls."""
        self._require_leadership()
        return self._revision

    @property
    def key(self) -> bytes:
        """The key that stands for this candidate."""
        self._require_leadership()
        return self._key

    @property
    def condition(self) -> Condition:
        """The condition, for a transaction, that this candidate still leads."""
        self._require_leadership()
        return create_revision(self._key) == self._revision

    @property
    def lost(self) -> KvorumError | None:
        """Why the candidate leads no longer although it did not resign; None while it leads."""
        return self._require_leadership().lost

    def wait_lost(self) -> KvorumError:
        """Wait until the candidate leads no longer, and return why."""
        return self._require_leadership().wait_lost()

    def _require_leadership(self) -> Session:
        if self._session is None:
            raise not_leader()
        return self._session

    # For all clients.

    def leader(self, timeout: float | None = None) -> KeyValue:
        """Return the leader's key; raises ElectionNoLeaderError if there is none."""
        found = self._read_oldest(timeout)
        if not found.kvs:
            raise no_leader()
        return found.kvs[0]

    def observe(self) -> Iterator[KeyValue]:
        """Iterate over leaders and what they proclaim, from the present leader on, for ever."""
        deadline = Deadline(self._client, "leaders", None)
        while True:
            found = self._read_oldest(None)
            if not found.kvs:
                keys = key_range(prefix=self._prefix)
                deadline.wait_event(keys, found.revision + 1, puts=True)
                continue
            yield found.kvs[0]
            keys = key_range(found.kvs[0].key)
            revision = found.revision
            while True:
                event = deadline.wait_event(keys, revision + 1, puts=True, deletes=True)
                if event is None or not event.is_put:
                    break
                revision = event.revision
                yield event.kv

    def _read_oldest(self, timeout: float | None) -> RangeResult:
        return self._client.read(
            prefix=self._prefix,
            limit=1,
            order="ascending",
            by="create_revision",
            timeout=timeout,
        )
