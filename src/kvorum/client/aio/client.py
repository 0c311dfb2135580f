"""The client: keys, transactions and watches, with every option they have."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import operations
from kvorum.client.aio.leases import AsyncLease, grant
from kvorum.client.credentials import TlsOptions, contexts
from kvorum.client.errors import ClosedError
from kvorum.client.keys import Text, key_range
from kvorum.client.loop import LoopClient as Shell
from kvorum.client.loop import Waiter
from kvorum.client.operations import Operation
from kvorum.client.options import CONNECT_SECONDS, PAGE_KEYS, TIMEOUT_SECONDS, make_core
from kvorum.client.transactions import Condition, Step, TxnParts
from kvorum.client.values import (
    Changes,
    DeleteResult,
    Event,
    KeyValue,
    PutResult,
    RangeResult,
    TxnResult,
)

T = TypeVar("T")


class AsyncClient:
    """A client of a cluster; close it when done."""

    def __init__(
        self,
        endpoints: str | Sequence[str] = "localhost:2379",
        *,
        user: str = "",
        password: str = "",
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
        insecure: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
    ) -> None:
        core = make_core(endpoints, user=user, password=password, token=token, timeout=timeout)
        tls = contexts(TlsOptions(ca, cert, key, insecure))
        self.shell = Shell(core, tls, connect_timeout)
        """What carries calls; for parts of the client."""
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call and watch, and give the connections back."""
        await self.shell.close()

    async def run(self, operation: Operation[T], timeout: float | None = None) -> T:
        """Make a call that is given as a value."""
        seconds = self._timeout if timeout is None else timeout
        return operation.decode(await self.shell.call(operation.rpc, operation.message, seconds))

    # Keys.

    async def put(
        self,
        key: Text,
        value: Text = b"",
        *,
        lease: int = 0,
        previous: bool = False,
        keep_value: bool = False,
        keep_lease: bool = False,
        timeout: float | None = None,
    ) -> PutResult:
        """Set a key."""
        request = operations.put(
            key, value, lease, previous=previous, keep_value=keep_value, keep_lease=keep_lease
        )
        return await self.run(operations.put_operation(request), timeout)

    async def get(
        self,
        key: Text,
        *,
        revision: int = 0,
        serializable: bool = False,
        timeout: float | None = None,
    ) -> KeyValue | None:
        """Return a key, or None if it does not exist."""
        operation = operations.get_operation(key, revision, serializable=serializable)
        return await self.run(operation, timeout)

    async def range(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        revision: int = 0,
        serializable: bool = False,
        keys_only: bool = False,
        page: int = PAGE_KEYS,
        timeout: float | None = None,
    ) -> AsyncIterator[KeyValue]:
        """Go through keys in their order, as they were at one revision, page by page."""
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        while True:
            request = operations.range_request(
                keys,
                limit=page,
                revision=revision,
                serializable=serializable,
                keys_only=keys_only,
            )
            found = await self.run(operations.range_operation(request), timeout)
            for each in found.kvs:
                yield each
            if not found.has_more:
                return
            # All pages are of the revision of the first.
            revision = revision or found.revision
            keys = keys._replace(key=found.kvs[-1].key + b"\0")

    async def read(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        limit: int = 0,
        revision: int = 0,
        order: str = "",
        by: str = "key",
        serializable: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        mod_revisions: Sequence[int] = (0, 0),
        create_revisions: Sequence[int] = (0, 0),
        timeout: float | None = None,
    ) -> RangeResult:
        """Return keys in one answer, sorted and filtered by the server."""
        request = operations.range_request(
            key_range(key, prefix=prefix, end=end, from_key=from_key),
            limit=limit,
            revision=revision,
            order=order,
            by=by,
            serializable=serializable,
            keys_only=keys_only,
            count_only=count_only,
            mod_revisions=mod_revisions,
            create_revisions=create_revisions,
        )
        return await self.run(operations.range_operation(request), timeout)

    async def count(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        revision: int = 0,
        timeout: float | None = None,
    ) -> int:
        """Return how many keys there are."""
        found = await self.read(
            key,
            prefix=prefix,
            end=end,
            from_key=from_key,
            revision=revision,
            count_only=True,
            timeout=timeout,
        )
        return found.total

    async def delete(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        previous: bool = False,
        timeout: float | None = None,
    ) -> DeleteResult:
        """Delete keys."""
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        request = pb.DeleteRangeRequest(key=keys.key, range_end=keys.end, prev_kv=previous)
        return await self.run(operations.delete_operation(request), timeout)

    def txn(self) -> "AsyncTxn":
        """Begin to write a transaction."""
        return AsyncTxn(self)

    async def compact(
        self, revision: int, *, physical: bool = False, timeout: float | None = None
    ) -> int:
        """Forget history before a revision; return the store's revision."""
        return await self.run(operations.compact_operation(revision, physical=physical), timeout)

    # Leases.

    async def lease(self, ttl: int, *, lease: int = 0, timeout: float | None = None) -> AsyncLease:
        """Grant a lease for so many seconds; with `async with` it is kept alive."""
        return await grant(self, ttl, lease, timeout)

    async def leases(self, timeout: float | None = None) -> list[int]:
        """Return the ids of all leases."""
        return await self.run(operations.leases_operation(), timeout)

    # Watches.

    def watch(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        revision: int = 0,
        previous: bool = False,
        progress: bool = False,
        puts: bool = True,
        deletes: bool = True,
    ) -> "AsyncWatch":
        """Watch keys: from now on, or from a revision."""
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        request = operations.watch_request(
            keys, revision, previous=previous, progress=progress, puts=puts, deletes=deletes
        )
        return AsyncWatch(self.shell, request)


class AsyncTxn:
    """A transaction of a client, until it is committed."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._parts = TxnParts()

    def when(self, *conditions: Condition) -> Self:
        """Say what must hold."""
        self._parts.add_conditions(conditions)
        return self

    def then(self, *steps: Step) -> Self:
        """Say what is done if all of it holds."""
        self._parts.add_success(steps)
        return self

    def otherwise(self, *steps: Step) -> Self:
        """Say what is done if not."""
        self._parts.add_failure(steps)
        return self

    async def commit(self, timeout: float | None = None) -> TxnResult:
        """Do it, in one revision."""
        return await self._client.run(operations.txn_operation(self._parts.request), timeout)


class AsyncWatch:
    """The events of a watch, one after the other, for as long as it lasts."""

    def __init__(self, shell: Shell, request: pb.WatchCreateRequest) -> None:
        self._shell = shell
        self._waiter: Waiter | None = None
        self._events: list[Event] = []
        with shell.turn():
            self._watch = shell.watching.begin(request, self._ready)
            shell.start_reading()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event; raises what ended the watch."""
        while not self._events:
            try:
                changes = await self.changes()
            except ClosedError:
                raise StopAsyncIteration from None
            self._events = changes.events[::-1]
        return self._events.pop()

    async def changes(self) -> Changes:
        """Return the next changes, whole revisions at once; none of them if it is progress."""
        while True:
            with self._shell.turn():
                found = self._shell.watching.take(self._watch)
                if found is not None:
                    return found
                if self._watch.error is not None:
                    raise self._watch.error
                waiter = self._waiter = Waiter()
            await self._shell.wait(waiter)

    async def close(self) -> None:
        """End the watch; whoever waits for its events is told."""
        with self._shell.turn():
            self._shell.watching.cancel(self._watch)
            self._ready()

    def _ready(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()
