"""The client: keys, transactions and watches, with every option they have.

Parts that few programs use are imported on first use, so that programs that start, read a key and
end, as tools on the command line do, are quick.
"""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import operations, rpcs
from kvorum.client.aio.recipes.methods import AsyncRecipes
from kvorum.client.credentials import TlsOptions, contexts
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import AuthNotEnabledError, ClosedError, KvorumError
from kvorum.client.keys import Text, as_bytes, key_range
from kvorum.client.loop import LoopClient as Shell
from kvorum.client.loop import Waiter, clock, monotonic
from kvorum.client.operations import Operation
from kvorum.client.options import (
    CONNECT_SECONDS,
    FOREVER,
    PAGE_KEYS,
    SESSION_SECONDS,
    TIMEOUT_SECONDS,
    MakeShell,
    make_core,
    parse_endpoints,
)
from kvorum.client.values import (
    Changes,
    ConditionalResult,
    DeleteResult,
    Event,
    KeyValue,
    PutResult,
    RangeResult,
)

if TYPE_CHECKING:
    from kvorum.client.aio.auth import AsyncAuth
    from kvorum.client.aio.carrier import AsyncCarrier
    from kvorum.client.aio.kubernetes import AsyncKubernetes
    from kvorum.client.aio.leases import AsyncLease
    from kvorum.client.aio.leasing import AsyncLeasing
    from kvorum.client.aio.maintenance import AsyncMaintenance
    from kvorum.client.aio.members import AsyncMembers
    from kvorum.client.aio.mirror import AsyncMirror
    from kvorum.client.aio.streams import AsyncMessages
    from kvorum.client.aio.transactions import AsyncTxn

T = TypeVar("T")


class AsyncClient(AsyncRecipes):
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
        srv: str = "",
        sync_seconds: float = FOREVER,
        shell: MakeShell[Shell] | None = None,
    ) -> None:
        """Make a client, which connects with its first call.

        `srv` is a domain whose SRV records name the endpoints, in place of `endpoints`. Every
        `sync_seconds` the client replaces its endpoints by those in the cluster's member list.
        `shell` is for `kvorum.embed`: it makes the shell if the network does not carry the calls.
        """
        if srv:
            from kvorum.client.finding import srv_endpoints

            endpoints = srv_endpoints(srv)
        core = make_core(
            endpoints,
            user=user,
            password=password,
            token=token,
            timeout=timeout,
            sync_seconds=sync_seconds,
        )
        tls = contexts(TlsOptions(ca, cert, key, insecure))
        self.shell: Shell = (shell or Shell)(core, tls, connect_timeout)
        """The shell that carries calls; for parts of the client."""
        self._carrier: AsyncCarrier = self.shell
        self._closes: Shell | AsyncLeasing | None = self.shell
        """The object that `close` closes; None if this client has nothing of its own."""
        self._timeout = timeout
        self._prefix = b""
        """The prefix of all keys at the server; empty unless this is a namespace."""
        if sync_seconds < FOREVER:
            with self.shell.turn():
                self.shell.start_reading()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call and watch, and close the connections.

        A namespace and an ordering client have nothing of their own to end; a leasing client
        releases the keys that it owns.
        """
        if self._closes is not None:
            await self._closes.close()

    async def log_in(self, timeout: float | None = None) -> None:
        """Log in now instead of with the first call; does nothing without a user."""
        message = self.shell.core.login_message()
        if message is None:
            return
        seconds = self._timeout if timeout is None else timeout
        outcome: bytes | KvorumError
        try:
            outcome = await self.shell.call(rpcs.AUTHENTICATE, message, seconds)
        except KvorumError as error:
            outcome = error
        with self.shell.turn():
            self.shell.core.take_login_answer(outcome)
        if isinstance(outcome, KvorumError) and not isinstance(outcome, AuthNotEnabledError):
            raise outcome

    async def run(
        self, operation: Operation[T], timeout: float | None = None, *, at: str | None = None
    ) -> T:
        """Make a call that is given as a value; with `at`, at that endpoint alone."""
        seconds = self._timeout if timeout is None else timeout
        number = None if at is None else self.endpoint_number(at)
        if self._prefix:
            operation = self._in_namespace(operation)
        answer = await self._carrier.call(operation.rpc, operation.message, seconds, number)
        return operation.decode(answer)

    def messages(self, operation: Operation[T], timeout: float) -> "AsyncMessages[T]":
        """Make a call that the server answers with several messages."""
        from kvorum.client.aio.streams import AsyncMessages

        if self._prefix:
            operation = self._in_namespace(operation)
        return AsyncMessages(self.shell, operation, timeout, None)

    # Parts and copies of the store.

    def namespace(self, prefix: Text) -> "AsyncClient":
        """Return a client of the same connections whose keys all begin with a prefix.

        The client adds the prefix to keys that it sends, and cuts it off keys that it receives.
        """
        if not prefix:
            raise ValueError("a namespace needs a prefix that is not empty")
        made = self._copy()
        made._prefix = self._prefix + as_bytes(prefix)
        made._closes = None
        return made

    def leasing(self, prefix: Text, *, ttl: int = SESSION_SECONDS) -> "AsyncClient":
        """Return a client of the same connections that owns the keys it reads, until it is closed.

        The client reads a key that it owns without a call, and never returns a value older than the
        store's. Other clients can write such a key after its owner has released it: all writers
        must use a leasing client of the same prefix, below which the ownership keys are stored. If
        an owner is gone, writers wait up to `ttl` seconds.
        """
        if not prefix:
            raise ValueError("leasing needs a prefix for its own keys that is not empty")
        from kvorum.client.aio.leasing import AsyncLeasing

        plain, made = self._copy(), self._copy()
        plain._prefix = b""
        made._carrier = made._closes = AsyncLeasing(
            plain, self._carrier, self._prefix, as_bytes(prefix), ttl
        )
        return made

    def ordering(self) -> "AsyncClient":
        """Return a client of the same connections whose answers never go back in revision.

        If the member that answers a serializable read lags behind a revision that this client has
        returned, the client repeats the read at other members; if all lag behind, the read raises
        MembersBehindError. `stream` and watches are exempt.
        """
        from kvorum.client.aio.ordering import AsyncOrdering

        made = self._copy()
        made._carrier = AsyncOrdering(self._carrier, self.shell)
        made._closes = None
        return made

    def _copy(self) -> "AsyncClient":
        from copy import copy

        return copy(self)

    @property
    def key_prefix(self) -> bytes:
        """The prefix of all keys at the server; empty unless this is a namespace."""
        return self._prefix

    def mirror(self, prefix: Text = b"") -> "AsyncMirror":
        """Return a mirror of all keys below a prefix: their present state, then every change."""
        from kvorum.client.aio.mirror import AsyncMirror

        return AsyncMirror(self, prefix)

    def _in_namespace(self, operation: Operation[T]) -> Operation[T]:
        from kvorum.client.namespacing import prefix_request, strip_answer

        prefix, path, decode = self._prefix, operation.rpc.path, operation.decode
        return operation._replace(
            message=prefix_request(prefix, path, operation.message),
            decode=lambda answer: decode(strip_answer(prefix, path, answer)),
        )

    # The cluster.

    @property
    def members(self) -> "AsyncMembers":
        """The members of the cluster."""
        from kvorum.client.aio.members import AsyncMembers

        return AsyncMembers(self)

    @property
    def maintenance(self) -> "AsyncMaintenance":
        """Status, alarms, space, hashes and snapshots."""
        from kvorum.client.aio.maintenance import AsyncMaintenance

        return AsyncMaintenance(self)

    @property
    def auth(self) -> "AsyncAuth":
        """Users and roles."""
        from kvorum.client.aio.auth import AsyncAuth

        return AsyncAuth(self)

    @property
    def kubernetes(self) -> "AsyncKubernetes":
        """The calls that Kubernetes makes, in the shape that it makes them."""
        from kvorum.client.aio.kubernetes import AsyncKubernetes

        return AsyncKubernetes(self)

    @property
    def endpoints(self) -> list[str]:
        """The endpoints that calls go to."""
        with self.shell.turn():
            return [each.address.text for each in self.shell.core.endpoints.all.values()]

    def set_endpoints(self, endpoints: str | Sequence[str]) -> None:
        """Use other endpoints; the former ones finish the calls that they have."""
        self.shell.set_endpoints(parse_endpoints(endpoints))

    async def sync_endpoints(self, timeout: float | None = None) -> list[str]:
        """Use the endpoints of all voters that have started, and return them."""
        from kvorum.client.finding import member_addresses, members_request

        operation = Operation(rpcs.MEMBER_LIST, members_request(), member_addresses)
        found = await self.run(operation, timeout)
        if found:
            self.shell.set_endpoints(found)
        return self.endpoints

    def endpoint_number(self, at: str | None) -> int | None:
        """Return the number of an endpoint, to direct calls to it; for parts of the client."""
        if at is None:
            return None
        with self.shell.turn():
            return self.shell.core.endpoints.pin_endpoint(parse_endpoint(at)).number

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
        """Iterate over keys in their order, as they were at one revision, page by page."""
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        while True:
            request = operations.range_request(
                keys,
                limit=page,
                revision=revision,
                serializable=serializable,
                keys_only=keys_only,
            )
            operation = operations.range_operation(request, serializable=serializable)
            found = await self.run(operation, timeout)
            for each in found.kvs:
                yield each
            if not found.has_more:
                return
            # All pages are of the revision of the first.
            revision = revision or found.revision
            keys = keys._replace(key=found.kvs[-1].key + b"\0")

    async def stream(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        end: Text | None = None,
        from_key: Text | None = None,
        limit: int = 0,
        revision: int = 0,
        serializable: bool = False,
        keys_only: bool = False,
        timeout: float = FOREVER,
    ) -> AsyncIterator[KeyValue]:
        """Iterate over keys in one call, which servers from 3.7 on answer in several messages."""
        request = operations.range_request(
            key_range(key, prefix=prefix, end=end, from_key=from_key),
            limit=limit,
            revision=revision,
            serializable=serializable,
            keys_only=keys_only,
        )
        operation = operations.stream_operation(request, serializable=serializable)
        async with self.messages(operation, timeout) as messages:
            async for found in messages:
                for each in found.kvs:
                    yield each

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
        operation = operations.range_operation(request, serializable=serializable)
        return await self.run(operation, timeout)

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
        return await self.run(operations.delete_operation(keys, previous=previous), timeout)

    async def put_if(
        self,
        key: Text,
        value: Text = b"",
        *,
        revision: int,
        lease: int = 0,
        timeout: float | None = None,
    ) -> ConditionalResult:
        """Set a key if its mod revision is `revision`; 0 if the key must not exist.

        After OutcomeUnknownError the call can be repeated: it takes effect at most once.
        """
        from kvorum.client import transactions

        step = transactions.put(key, value, lease=lease)
        return await self.run(operations.conditional_operation(key, revision, step), timeout)

    async def delete_if(
        self, key: Text, *, revision: int, timeout: float | None = None
    ) -> ConditionalResult:
        """Delete a key if its mod revision is `revision`."""
        from kvorum.client import transactions

        step = transactions.delete(key)
        return await self.run(operations.conditional_operation(key, revision, step), timeout)

    def txn(self) -> "AsyncTxn":
        """Return a new transaction, to add conditions and steps to."""
        from kvorum.client.aio.transactions import AsyncTxn

        return AsyncTxn(self)

    async def compact(
        self, revision: int, *, physical: bool = False, timeout: float | None = None
    ) -> int:
        """Compact the history before a revision; return the store's revision."""
        return await self.run(operations.compact_operation(revision, physical=physical), timeout)

    # Leases.

    async def lease(
        self, ttl: int, *, lease: int = 0, timeout: float | None = None
    ) -> "AsyncLease":
        """Grant a lease for `ttl` seconds; as a context manager it is kept alive."""
        from kvorum.client.aio.leases import grant

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
        resume: bool = True,
    ) -> "AsyncWatch":
        """Watch keys: from now on, or from a revision.

        With `resume=False` the watch raises WatchLostError when its stream is lost, instead of
        continuing on another stream: for programs that have to compare before they go on.
        """
        keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
        request = operations.watch_request(
            keys, revision, previous=previous, progress=progress, puts=puts, deletes=deletes
        )
        if self._prefix:
            from kvorum.client.namespacing import prefix_range_end

            request.key = self._prefix + request.key
            request.range_end = prefix_range_end(self._prefix, request.range_end)
        return AsyncWatch(self.shell, request, self._prefix, resumes=resume)


class AsyncWatch:
    """Iterates over the events of a watch until the watch ends."""

    def __init__(
        self,
        shell: Shell,
        request: "pb.WatchCreateRequest",
        prefix: bytes = b"",
        *,
        is_plain: bool = False,
        resumes: bool = True,
    ) -> None:
        self._shell = shell
        self._prefix = prefix
        self._waiter: Waiter | None = None
        self._is_woken = False
        self._events: list[Event] = []
        with shell.turn():
            self._watch = shell.watching.begin(
                request, self._ready, is_plain=is_plain, resumes=resumes
            )
            shell.start_reading()

    async def __aenter__(self) -> Self:
        try:
            await self.wait_started()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event; raises the error that ended the watch."""
        while not self._events:
            try:
                changes = await self.changes()
            except ClosedError:
                raise StopAsyncIteration from None
            self._events = changes.events[::-1]
        return self._events.pop()

    def knows(self, revision: int) -> None:
        """Record that the store has had a revision, so that the watch notices if it goes back.

        The watch itself records the revisions that it receives.
        """
        with self._shell.turn():
            self._watch.seen = max(self._watch.seen, revision)

    async def wait_started(self) -> int:
        """Return the start revision, once it is known.

        The watch returns every change from that revision on, and so all changes that this program
        makes afterwards.
        """
        while not self._watch.is_started:
            with self._shell.turn():
                if self._watch.error is not None:
                    raise self._watch.error
                waiter = self._waiter = Waiter()
                if self._watch.is_started:
                    break
            await self._shell.wait(waiter)
        return self._watch.revision

    @property
    def refusal(self) -> "pb.WatchResponse | None":
        """The response with which the server ended the watch, if it did."""
        return self._watch.refusal

    async def changes(self) -> Changes:
        """Return the next changes, whole revisions at once; progress comes without events."""
        while (found := await self.changes_by(FOREVER)) is None:
            pass
        return found

    async def changes_until(self, moment: float) -> Changes | None:
        """Return the next changes if there are any; otherwise wait, and return None.

        The wait ends with new changes, with `wake`, or at a moment of `time.monotonic`.
        """
        return await self.changes_by(clock() + (moment - monotonic()))

    async def changes_by(self, moment: float) -> Changes | None:
        """Do as `changes_until`, with a moment of the shell's clock; for parts of the client."""
        with self._shell.turn():
            found = self._shell.watching.take(self._watch)
            if found is not None:
                return self._strip_prefix(found)
            if self._watch.error is not None:
                raise self._watch.error
            if self._is_woken:
                self._is_woken = False
                return None
            waiter = self._waiter = Waiter()
        await self._shell.wait(waiter, moment)
        return None

    def _strip_prefix(self, changes: Changes) -> Changes:
        """Return changes without the prefix of the namespace."""
        if not self._prefix:
            return changes
        from kvorum.client.namespacing import strip_changes

        return strip_changes(self._prefix, changes)

    def wake(self) -> None:
        """Make a caller that waits in `changes_until` return."""
        self._is_woken = True
        self._ready()

    async def close(self) -> None:
        """End the watch, and wake a caller that waits for its events."""
        with self._shell.turn():
            self._shell.watching.cancel(self._watch)
            self._ready()

    def _ready(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()
