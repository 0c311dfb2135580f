"""Locks, semaphores, and locks for readers and writers: keys that wait in a queue for their turn.

The queue is in the order of the keys' creation. The create revision of its key is the holder's
fencing number: later holders have greater ones.
"""

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvorum.client.aio.recipes.sessions import AsyncSession, begin_session
from kvorum.client.aio.recipes.waiting import AsyncDeadline
from kvorum.client.errors import KvorumError
from kvorum.client.keys import Text, as_bytes, key_range
from kvorum.client.loop import unix_nanoseconds
from kvorum.client.operations import txn_operation
from kvorum.client.recipes.errors import NotHeldError, session_expired
from kvorum.client.transactions import Condition, TxnParts, create_revision, get, put
from kvorum.client.values import RangeResult

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient


class AsyncHolder:
    """A holder of a lock, or one that waits for its turn: the base of all kinds of locks."""

    def __init__(
        self,
        client: "AsyncClient",
        name: Text,
        ttl: int,
        session: AsyncSession | None,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._name = as_bytes(name, "name")
        self._ttl = ttl
        self._shared = session
        self._timeout = timeout
        self._permits = 1
        self._value = b""
        self._blockers = self._name + b"/"
        """Older keys under this prefix go first."""
        self._is_trying = False
        self._session: AsyncSession | None = None
        self._key = b""
        self._revision = 0

    async def __aenter__(self) -> Self:
        await self.acquire(self._timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.release()
            return
        # The first error matters, not that of the release.
        with suppress(KvorumError):
            await self.release()

    # The holder's state.

    @property
    def key(self) -> bytes:
        """The key that stands for the holder."""
        self._require_session()
        return self._key

    @property
    def fencing(self) -> int:
        """A number that grows with each holder: send it to the systems that the lock protects."""
        self._require_session()
        return self._revision

    @property
    def condition(self) -> Condition:
        """The condition, for a transaction, that the lock is still held."""
        self._require_session()
        return create_revision(self._key) == self._revision

    @property
    def is_held(self) -> bool:
        """Whether the lock is surely held."""
        return self._session is not None and self._session.lost is None

    @property
    def lost(self) -> KvorumError | None:
        """Why the lock is no longer held although it was not released; None while it is held."""
        return self._require_session().lost

    async def wait_lost(self) -> KvorumError:
        """Wait until the lock is no longer held, and return why."""
        return await self._require_session().wait_lost()

    def _require_session(self) -> AsyncSession:
        if self._session is None:
            raise NotHeldError(self._name.decode(errors="replace"))
        return self._session

    # Acquiring and releasing.

    async def acquire(self, timeout: float | None = None) -> None:
        """Wait until the lock is held; raises DeadlineError after `timeout` seconds."""
        await self._acquire(timeout, waits=True)

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it is held now."""
        return await self._acquire(None, waits=False)

    async def _acquire(self, timeout: float | None, *, waits: bool) -> bool:
        with self._client.shell.turn():
            if self._session is not None or self._is_trying:
                raise RuntimeError(
                    f"this object holds {self._name!r} already, or waits for it; each holder "
                    "needs its own"
                )
            self._is_trying = True
        try:
            session = self._shared or await begin_session(self._client, self._ttl)
            what = f"{self._name.decode(errors='replace')!r} was not free"
            deadline = AsyncDeadline(self._client, what, timeout, session)
            self._claim_key(session)
            self._revision = 0
            try:
                found = await self._enter(session, deadline)
                is_free = not self._is_blocked(found)
                if not is_free and waits:
                    await self._wait_turn(found, deadline)
                    is_free = True
                lost = session.lost
                if lost is not None:
                    raise lost
            except BaseException:
                await self._release_key(session)
                raise
            if not is_free:
                await self._release_key(session)
                return False
            self._session = session
            return True
        finally:
            self._is_trying = False

    async def release(self) -> None:
        """Release the lock; if it was lost before, raises the error that explains the loss."""
        session = self._require_session()
        lost = session.lost
        self._session = None
        await self._release_key(session)
        if lost is not None:
            raise lost

    async def _release_key(self, session: AsyncSession) -> None:
        try:
            if session is self._shared:
                await session.remove(self._key, self._revision)
            else:
                await session.close()
        finally:
            session.unclaim(self._key)

    # The queue.

    def _new_key(self, session: AsyncSession) -> bytes:
        return b"%s/%x" % (self._name, session.id)

    def _claim_key(self, session: AsyncSession) -> None:
        key = self._new_key(session)
        session.claim(key)
        self._key = key

    async def _enter(self, session: AsyncSession, deadline: AsyncDeadline) -> RangeResult:
        """Create the key in the queue; return the oldest keys that may block it."""
        front = get(
            prefix=self._blockers, limit=self._permits, order="ascending", by="create_revision"
        )
        while True:
            parts = TxnParts()
            parts.add_conditions((create_revision(self._key) == 0,))
            parts.add_success((put(self._key, self._value, lease=session.id), front))
            parts.add_failure((get(self._key), front))
            done = await deadline.run(txn_operation(parts.request))
            own, found = done.responses
            assert isinstance(found, RangeResult)
            self._revision = done.revision
            if not isinstance(own, RangeResult):
                return found
            self._revision = own.kvs[0].create_revision
            if own.kvs[0].lease == session.id or self._key == self._new_key(session):
                return found
            # Another client chose the same key.
            session.unclaim(self._key)
            self._claim_key(session)

    def _is_blocked(self, found: RangeResult) -> bool:
        older = sum(1 for each in found.kvs if each.create_revision < self._revision)
        return older >= self._permits

    async def _wait_turn(self, found: RangeResult, deadline: AsyncDeadline) -> None:
        if self._permits == 1:
            await deadline.wait_older_gone(self._blockers, self._revision)
        else:
            keys = key_range(prefix=self._blockers)
            while self._is_blocked(found):
                await deadline.wait_event(keys, found.revision + 1, deletes=True)
                found = await deadline.read(
                    keys, limit=self._permits, order="ascending", by="create_revision"
                )
        own = (await deadline.read(key_range(self._key))).kvs
        if not own or own[0].create_revision != self._revision:
            raise session_expired()


class AsyncLock(AsyncHolder):
    """A lock: one holder at a time, in the order of arrival."""


class AsyncSemaphore(AsyncHolder):
    """A semaphore: up to `permits` holders at a time, in the order of arrival."""

    def __init__(
        self,
        client: "AsyncClient",
        name: Text,
        permits: int,
        ttl: int,
        session: AsyncSession | None,
        timeout: float | None,
    ) -> None:
        super().__init__(client, name, ttl, session, timeout)
        if permits < 1:
            raise ValueError(f"a semaphore of {permits} was asked for; expected 1 or more")
        self._permits = permits
        self._value = b"%d" % permits

    def _is_blocked(self, found: RangeResult) -> bool:
        for each in found.kvs:
            if each.value != self._value:
                raise ValueError(
                    f"semaphore {self._name!r} is for {self._permits} here, and for "
                    f"{each.value.decode(errors='replace')} by {each.key!r}; all must say the same"
                )
        return super()._is_blocked(found)


class AsyncReadLock(AsyncHolder):
    """The read side of a lock for readers and writers: its keys have names of their own."""

    def __init__(
        self,
        client: "AsyncClient",
        name: Text,
        ttl: int,
        session: AsyncSession | None,
        timeout: float | None,
    ) -> None:
        super().__init__(client, name, ttl, session, timeout)
        self._names = self._name + b"/read/"
        self._blockers = self._name + b"/write/"

    def _new_key(self, session: AsyncSession) -> bytes:  # noqa: ARG002
        return b"%s%d" % (self._names, unix_nanoseconds())


class AsyncWriteLock(AsyncReadLock):
    """The write side of a lock for readers and writers: it waits for all earlier keys."""

    def __init__(
        self,
        client: "AsyncClient",
        name: Text,
        ttl: int,
        session: AsyncSession | None,
        timeout: float | None,
    ) -> None:
        super().__init__(client, name, ttl, session, timeout)
        self._names = self._name + b"/write/"
        self._blockers = self._name + b"/"


class AsyncReadWriteLock:
    """A lock that many readers hold together, or one writer alone."""

    def __init__(
        self, client: "AsyncClient", name: Text, ttl: int, session: AsyncSession | None
    ) -> None:
        self._client = client
        self._name = name
        self._ttl = ttl
        self._session = session

    def read(self, *, timeout: float | None = None) -> AsyncReadLock:
        """Return the lock of one reader; each reader needs its own."""
        return AsyncReadLock(self._client, self._name, self._ttl, self._session, timeout)

    def write(self, *, timeout: float | None = None) -> AsyncWriteLock:
        """Return the lock of one writer; each writer needs its own."""
        return AsyncWriteLock(self._client, self._name, self._ttl, self._session, timeout)
