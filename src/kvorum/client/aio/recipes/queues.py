"""Queues: one client takes each item, in the order of arrival or by priority."""

from typing import TYPE_CHECKING

from kvorum.client.aio.recipes.waiting import AsyncDeadline
from kvorum.client.keys import KeyRange, Text, as_bytes, key_range
from kvorum.client.loop import unix_nanoseconds
from kvorum.client.transactions import delete, mod_revision, put, version
from kvorum.client.values import RangeResult

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient

PRIORITY_MAX = 65535


class AsyncItems:
    """Items under a prefix; `get` takes the first of them in the order of a field."""

    def __init__(self, client: "AsyncClient", name: Text, by: str) -> None:
        self._client = client
        self._name = as_bytes(name, "name")
        self._by = by
        # Without the slash, a queue would take the items of every name that begins with its own.
        self._keys: KeyRange = key_range(prefix=self._name + b"/")

    async def get(self, timeout: float | None = None) -> bytes:
        """Take the next item, or wait for one; raises DeadlineError after `timeout` seconds.

        After OutcomeUnknownError, the next item may or may not have been taken.
        """
        what = f"queue {self._name.decode(errors='replace')!r} had no item"
        deadline = AsyncDeadline(self._client, what, timeout)
        while True:
            found = await self._first(deadline)
            if not found.kvs:
                await deadline.wait_event(self._keys, found.revision + 1, puts=True)
            elif await self._claim(found):
                return found.kvs[0].value

    async def get_nowait(self) -> bytes | None:
        """Take the next item; return None if there is none."""
        deadline = AsyncDeadline(self._client, "", None)
        while True:
            found = await self._first(deadline)
            if not found.kvs:
                return None
            if await self._claim(found):
                return found.kvs[0].value

    async def size(self, timeout: float | None = None) -> int:
        """Return how many items there are."""
        return await self._client.count(self._keys.key, end=self._keys.end, timeout=timeout)

    async def _first(self, deadline: AsyncDeadline) -> RangeResult:
        return await deadline.read(self._keys, limit=1, order="ascending", by=self._by)

    async def _claim(self, found: RangeResult) -> bool:
        first = found.kvs[0]
        txn = self._client.txn().when(mod_revision(first.key) == first.mod_revision)
        return (await txn.then(delete(first.key)).commit()).succeeded


class AsyncQueue(AsyncItems):
    """A queue: first in, first out."""

    def __init__(self, client: "AsyncClient", name: Text) -> None:
        super().__init__(client, name, "mod_revision")

    async def put(self, value: Text, timeout: float | None = None) -> None:
        """Add an item; after OutcomeUnknownError, the queue may or may not have the item."""
        while True:
            key = b"%s/%d" % (self._name, unix_nanoseconds())
            txn = self._client.txn().when(version(key) == 0).then(put(key, value))
            if (await txn.commit(timeout)).succeeded:
                return


class AsyncPriorityQueue(AsyncItems):
    """A queue: the lowest number first; of the same number, first in, first out."""

    def __init__(self, client: "AsyncClient", name: Text) -> None:
        super().__init__(client, name, "key")

    async def put(self, value: Text, priority: int = 0, timeout: float | None = None) -> None:
        """Add an item; after OutcomeUnknownError, the queue may or may not have the item."""
        if not 0 <= priority <= PRIORITY_MAX:
            raise ValueError(f"priority {priority} was given; expected 0 to {PRIORITY_MAX}")
        prefix = b"%s/%05d" % (self._name, priority)
        # Without the guard, a new item could get the number of an item that was just taken.
        guard = b"__" + prefix
        while True:
            last = await self._client.read(
                prefix=prefix + b"/", limit=1, order="descending", timeout=timeout
            )
            number = int(last.kvs[0].key.rpartition(b"/")[2]) + 1 if last.kvs else 0
            txn = self._client.txn().when(mod_revision(guard) < last.revision + 1)
            txn = txn.then(put(guard), put(b"%s/%016d" % (prefix, number), value))
            if (await txn.commit(timeout)).succeeded:
                return
