# Written by `make client` from kvorum/client/aio; change that.
"""Queues: one client takes each item, in the order of arrival or by priority."""

from typing import TYPE_CHECKING

from kvorum.client.keys import KeyRange, Text, as_bytes, key_range
from kvorum.client.sync.recipes.waiting import Deadline
from kvorum.client.threads import unix_nanoseconds
from kvorum.client.transactions import delete, mod_revision, put, version
from kvorum.client.values import RangeResult

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client

PRIORITY_MAX = 65535


class Items:
    """Items under a prefix; `get` takes the first of them in the order of a field."""

    def __init__(self, client: "Client", name: Text, by: str) -> None:
        self._client = client
        self._name = as_bytes(name, "name")
        self._by = by
        # Without the slash, a queue would take the items of every name that begins with its own.
        self._keys: KeyRange = key_range(prefix=self._name + b"/")

    def get(self, timeout: float | None = None) -> bytes:
        """Take the next item, or wait for one; raises DeadlineError after `timeout` seconds.

        After OutcomeUnknownError, the next item may or may not have been taken.
        """
        what = f"queue {self._name.decode(errors='replace')!r} had no item"
        deadline = Deadline(self._client, what, timeout)
        while True:
            found = self._first(deadline)
            if not found.kvs:
                deadline.wait_event(self._keys, found.revision + 1, puts=True)
            elif self._claim(found):
                return found.kvs[0].value

    def get_nowait(self) -> bytes | None:
        """Take the next item; return None if there is none."""
        deadline = Deadline(self._client, "", None)
        while True:
            found = self._first(deadline)
            if not found.kvs:
                return None
            if self._claim(found):
                return found.kvs[0].value

    def size(self, timeout: float | None = None) -> int:
        """Return how many items there are."""
        return self._client.count(self._keys.key, end=self._keys.end, timeout=timeout)

    def _first(self, deadline: Deadline) -> RangeResult:
        return deadline.read(self._keys, limit=1, order="ascending", by=self._by)

    def _claim(self, found: RangeResult) -> bool:
        first = found.kvs[0]
        txn = self._client.txn().when(mod_revision(first.key) == first.mod_revision)
        return (txn.then(delete(first.key)).commit()).succeeded


class Queue(Items):
    """A queue: first in, first out."""

    def __init__(self, client: "Client", name: Text) -> None:
        super().__init__(client, name, "mod_revision")

    def put(self, value: Text, timeout: float | None = None) -> None:
        """Add an item; after OutcomeUnknownError, the queue may or may not have the item."""
        while True:
            key = b"%s/%d" % (self._name, unix_nanoseconds())
            txn = self._client.txn().when(version(key) == 0).then(put(key, value))
            if (txn.commit(timeout)).succeeded:
                return


class PriorityQueue(Items):
    """A queue: the lowest number first; of the same number, first in, first out."""

    def __init__(self, client: "Client", name: Text) -> None:
        super().__init__(client, name, "key")

    def put(self, value: Text, priority: int = 0, timeout: float | None = None) -> None:
        """Add an item; after OutcomeUnknownError, the queue may or may not have the item."""
        if not 0 <= priority <= PRIORITY_MAX:
            raise ValueError(f"priority {priority} was given; expected 0 to {PRIORITY_MAX}")
        prefix = b"%s/%05d" % (self._name, priority)
        # Without the guard, a new item could get the number of an item that was just taken.
        guard = b"__" + prefix
        while True:
            last = self._client.read(
                prefix=prefix + b"/", limit=1, order="descending", timeout=timeout
            )
            number = int(last.kvs[0].key.rpartition(b"/")[2]) + 1 if last.kvs else 0
            txn = self._client.txn().when(mod_revision(guard) < last.revision + 1)
            txn = txn.then(put(guard), put(b"%s/%016d" % (prefix, number), value))
            if (txn.commit(timeout)).succeeded:
                return
