"""The calls that Kubernetes' API server makes, each as one request of the same shape."""

from typing import TYPE_CHECKING

from kvorum.client import operations, transactions
from kvorum.client.keys import KeyRange, Text, as_bytes, key_range
from kvorum.client.values import ConditionalResult, KeyRead, RangeResult

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient


class AsyncKubernetes:
    """Objects as keys: reads return the store's revision, changes expect the key's revision."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def get(self, key: Text, *, revision: int = 0, timeout: float | None = None) -> KeyRead:
        """Return a key, and the revision of the store when it answered."""
        keys = KeyRange(as_bytes(key), b"")
        request = operations.range_request(keys, limit=1, revision=revision)
        found = await self._client.run(operations.range_operation(request), timeout)
        return KeyRead(found.kvs[0] if found.kvs else None, found.revision)

    async def list(
        self,
        prefix: Text,
        *,
        limit: int = 0,
        continue_from: Text = b"",
        revision: int = 0,
        timeout: float | None = None,
    ) -> RangeResult:
        """Return keys in their order, from `continue_from` on, and at most `limit` of them.

        The next page continues from the last key of this one with a zero byte appended, at the
        revision of the first page.
        """
        keys = key_range(prefix=prefix)
        if continue_from:
            keys = keys._replace(key=as_bytes(continue_from))
        request = operations.range_request(keys, limit=limit, revision=revision)
        return await self._client.run(operations.range_operation(request), timeout)

    async def count(self, prefix: Text, *, timeout: float | None = None) -> int:
        """Return how many keys there are."""
        return await self._client.count(prefix=prefix, timeout=timeout)

    async def optimistic_put(
        self,
        key: Text,
        value: Text,
        expected_revision: int,
        *,
        lease: int = 0,
        get_on_failure: bool = False,
        timeout: float | None = None,
    ) -> ConditionalResult:
        """Set a key if its mod revision is `expected_revision`; 0 if the key must not exist.

        With `get_on_failure` the result of a refused change has the present key.
        """
        step = transactions.put(key, value, lease=lease)
        operation = operations.conditional_operation(
            key, expected_revision, step, reads=get_on_failure
        )
        return await self._client.run(operation, timeout)

    async def optimistic_delete(
        self,
        key: Text,
        expected_revision: int,
        *,
        get_on_failure: bool = False,
        timeout: float | None = None,
    ) -> ConditionalResult:
        """Delete a key if its mod revision is `expected_revision`."""
        step = transactions.delete(key)
        operation = operations.conditional_operation(
            key, expected_revision, step, reads=get_on_failure
        )
        return await self._client.run(operation, timeout)
