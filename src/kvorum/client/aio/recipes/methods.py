"""The recipes as methods of the client."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from kvorum.client.aio.recipes.barriers import AsyncBarrier, AsyncDoubleBarrier
from kvorum.client.aio.recipes.caches import AsyncCache
from kvorum.client.aio.recipes.elections import AsyncElection
from kvorum.client.aio.recipes.locks import AsyncLock, AsyncReadWriteLock, AsyncSemaphore
from kvorum.client.aio.recipes.queues import AsyncPriorityQueue, AsyncQueue
from kvorum.client.aio.recipes.registry import AsyncServiceRegistry
from kvorum.client.aio.recipes.sessions import SESSION_SECONDS, AsyncSession, begin_session
from kvorum.client.aio.recipes.stm import AsyncCounter, AsyncStm, transact
from kvorum.client.keys import Text
from kvorum.client.loop import Outcome
from kvorum.client.recipes.isolation import Isolation

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient

T = TypeVar("T")


class AsyncRecipes:
    """What a client has beside calls. `ttl` are the seconds after which a crash is noticed."""

    async def session(self, ttl: int = SESSION_SECONDS, *, lease: int = 0) -> AsyncSession:
        """Begin a session, for recipes to share; with a lease that there is, or a new one."""
        return await begin_session(self._client, ttl, lease)

    def lock(
        self,
        name: Text,
        *,
        ttl: int = SESSION_SECONDS,
        session: AsyncSession | None = None,
        timeout: float | None = None,
    ) -> AsyncLock:
        """Return a lock; `timeout` is how long `with` waits for it."""
        return AsyncLock(self._client, name, ttl, session, timeout)

    def semaphore(
        self,
        name: Text,
        permits: int,
        *,
        ttl: int = SESSION_SECONDS,
        session: AsyncSession | None = None,
        timeout: float | None = None,
    ) -> AsyncSemaphore:
        """Return a semaphore that so many hold at a time."""
        return AsyncSemaphore(self._client, name, permits, ttl, session, timeout)

    def read_write_lock(
        self, name: Text, *, ttl: int = SESSION_SECONDS, session: AsyncSession | None = None
    ) -> AsyncReadWriteLock:
        """Return a lock that many readers hold together, or one writer alone."""
        return AsyncReadWriteLock(self._client, name, ttl, session)

    def election(
        self, name: Text, *, ttl: int = SESSION_SECONDS, session: AsyncSession | None = None
    ) -> AsyncElection:
        """Return an election: to campaign in, or to see who leads."""
        return AsyncElection(self._client, name, ttl, session)

    def barrier(self, key: Text) -> AsyncBarrier:
        """Return a barrier, which many wait at until somebody removes it."""
        return AsyncBarrier(self._client, key)

    def double_barrier(
        self,
        key: Text,
        count: int,
        *,
        ttl: int = SESSION_SECONDS,
        session: AsyncSession | None = None,
    ) -> AsyncDoubleBarrier:
        """Return a barrier at which so many begin together, and end together."""
        return AsyncDoubleBarrier(self._client, key, count, ttl, session)

    def queue(self, name: Text) -> AsyncQueue:
        """Return a queue: first in, first out."""
        return AsyncQueue(self._client, name)

    def priority_queue(self, name: Text) -> AsyncPriorityQueue:
        """Return a queue from which the lowest number is taken first."""
        return AsyncPriorityQueue(self._client, name)

    def counter(self, key: Text, default: int = 0) -> AsyncCounter:
        """Return a number that many may change at a time."""
        return AsyncCounter(self._client, key, default)

    async def transact(
        self,
        function: "Callable[[AsyncStm], Outcome[T]]",
        *,
        isolation: Isolation = Isolation.SERIALIZABLE_SNAPSHOT,
        timeout: float | None = None,
    ) -> T:
        """Run a function that reads and writes keys as one transaction; return what it returns.

        It is run again whenever others change what it depends on: it must have no other effects.
        """
        return await transact(self._client, function, isolation, timeout)

    def service_registry(self, target: Text) -> AsyncServiceRegistry:
        """Return the registry of the services of a target."""
        return AsyncServiceRegistry(self._client, target)

    def cache(self, prefix: Text, *, timeout: float | None = None) -> AsyncCache:
        """Return a local mirror of a prefix; `timeout` is how long `with` waits to fill it."""
        return AsyncCache(self._client, prefix, timeout)

    @property
    def _client(self) -> "AsyncClient":
        return cast("AsyncClient", self)
