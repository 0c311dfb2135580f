"""The recipes as methods of the client; a recipe is imported on first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from kvorum.client.keys import Text
from kvorum.client.loop import Outcome
from kvorum.client.options import SESSION_SECONDS
from kvorum.client.recipes.levels import Isolation

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.aio.recipes.barriers import AsyncBarrier, AsyncDoubleBarrier
    from kvorum.client.aio.recipes.caches import AsyncCache
    from kvorum.client.aio.recipes.elections import AsyncElection
    from kvorum.client.aio.recipes.locks import AsyncLock, AsyncReadWriteLock, AsyncSemaphore
    from kvorum.client.aio.recipes.queues import AsyncPriorityQueue, AsyncQueue
    from kvorum.client.aio.recipes.registry import AsyncServiceRegistry
    from kvorum.client.aio.recipes.sessions import AsyncSession
    from kvorum.client.aio.recipes.stm import AsyncCounter, AsyncStm

T = TypeVar("T")


class AsyncRecipes:
    """The recipe methods of a client. A crash is noticed after `ttl` seconds."""

    async def session(self, ttl: int = SESSION_SECONDS, *, lease: int = 0) -> "AsyncSession":
        """Begin a session for recipes to share, with an existing lease or a new one."""
        from kvorum.client.aio.recipes.sessions import begin_session

        return await begin_session(self._client, ttl, lease)

    def lock(
        self,
        name: Text,
        *,
        ttl: int = SESSION_SECONDS,
        session: "AsyncSession | None" = None,
        timeout: float | None = None,
    ) -> "AsyncLock":
        """Return a lock; `timeout` is how long `with` waits for it."""
        from kvorum.client.aio.recipes.locks import AsyncLock

        return AsyncLock(self._client, name, ttl, session, timeout)

    def semaphore(
        self,
        name: Text,
        permits: int,
        *,
        ttl: int = SESSION_SECONDS,
        session: "AsyncSession | None" = None,
        timeout: float | None = None,
    ) -> "AsyncSemaphore":
        """Return a semaphore that up to `permits` clients hold at a time."""
        from kvorum.client.aio.recipes.locks import AsyncSemaphore

        return AsyncSemaphore(self._client, name, permits, ttl, session, timeout)

    def read_write_lock(
        self, name: Text, *, ttl: int = SESSION_SECONDS, session: "AsyncSession | None" = None
    ) -> "AsyncReadWriteLock":
        """Return a lock that many readers hold together, or one writer alone."""
        from kvorum.client.aio.recipes.locks import AsyncReadWriteLock

        return AsyncReadWriteLock(self._client, name, ttl, session)

    def election(
        self, name: Text, *, ttl: int = SESSION_SECONDS, session: "AsyncSession | None" = None
    ) -> "AsyncElection":
        """Return an election, to campaign in or to observe."""
        from kvorum.client.aio.recipes.elections import AsyncElection

        return AsyncElection(self._client, name, ttl, session)

    def barrier(self, key: Text) -> "AsyncBarrier":
        """Return a barrier, at which clients wait until one removes it."""
        from kvorum.client.aio.recipes.barriers import AsyncBarrier

        return AsyncBarrier(self._client, key)

    def double_barrier(
        self,
        key: Text,
        count: int,
        *,
        ttl: int = SESSION_SECONDS,
        session: "AsyncSession | None" = None,
    ) -> "AsyncDoubleBarrier":
        """Return a barrier at which `count` clients begin together, and end together."""
        from kvorum.client.aio.recipes.barriers import AsyncDoubleBarrier

        return AsyncDoubleBarrier(self._client, key, count, ttl, session)

    def queue(self, name: Text) -> "AsyncQueue":
        """Return a queue: first in, first out."""
        from kvorum.client.aio.recipes.queues import AsyncQueue

        return AsyncQueue(self._client, name)

    def priority_queue(self, name: Text) -> "AsyncPriorityQueue":
        """Return a queue from which clients take the lowest priority number first."""
        from kvorum.client.aio.recipes.queues import AsyncPriorityQueue

        return AsyncPriorityQueue(self._client, name)

    def counter(self, key: Text, default: int = 0) -> "AsyncCounter":
        """Return a number that many clients may change at a time."""
        from kvorum.client.aio.recipes.stm import AsyncCounter

        return AsyncCounter(self._client, key, default)

    async def transact(
        self,
        function: "Callable[[AsyncStm], Outcome[T]]",
        *,
        isolation: Isolation = Isolation.SERIALIZABLE_SNAPSHOT,
        timeout: float | None = None,
    ) -> T:
        """Run a function that reads and writes keys as one transaction; return its result.

        The function runs again whenever other clients change keys that it depends on, so it must
        have no other effects.
        """
        from kvorum.client.aio.recipes.stm import transact

        return await transact(self._client, function, isolation, timeout)

    def service_registry(self, target: Text) -> "AsyncServiceRegistry":
        """Return the registry of the services of a target."""
        from kvorum.client.aio.recipes.registry import AsyncServiceRegistry

        return AsyncServiceRegistry(self._client, target)

    def cache(self, prefix: Text, *, timeout: float | None = None) -> "AsyncCache":
        """Return a local mirror of a prefix; `timeout` is how long `with` waits to fill it."""
        from kvorum.client.aio.recipes.caches import AsyncCache

        return AsyncCache(self._client, prefix, timeout)

    @property
    def _client(self) -> "AsyncClient":
        return cast("AsyncClient", self)
