# Written by `make client` from kvorum/client/aio; change that.
"""The recipes as methods of the client; a recipe is imported on first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from kvorum.client.keys import Text
from kvorum.client.options import SESSION_SECONDS
from kvorum.client.recipes.levels import Isolation
from kvorum.client.threads import Outcome

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client
    from kvorum.client.sync.recipes.barriers import Barrier, DoubleBarrier
    from kvorum.client.sync.recipes.caches import Cache
    from kvorum.client.sync.recipes.elections import Election
    from kvorum.client.sync.recipes.locks import Lock, ReadWriteLock, Semaphore
    from kvorum.client.sync.recipes.queues import PriorityQueue, Queue
    from kvorum.client.sync.recipes.registry import ServiceRegistry
    from kvorum.client.sync.recipes.sessions import Session
    from kvorum.client.sync.recipes.stm import Counter, Stm

T = TypeVar("T")


class Recipes:
    """The recipe methods of a client. A crash is noticed after `ttl` seconds."""

    def session(self, ttl: int = SESSION_SECONDS, *, lease: int = 0) -> "Session":
        """Begin a session for recipes to share, with an existing lease or a new one."""
        from kvorum.client.sync.recipes.sessions import begin_session

        return begin_session(self._client, ttl, lease)

    def lock(
        self,
        name: Text,
        *,
        ttl: int = SESSION_SECONDS,
        session: "Session | None" = None,
        timeout: float | None = None,
    ) -> "Lock":
        """Return a lock; `timeout` is how long `with` waits for it."""
        from kvorum.client.sync.recipes.locks import Lock

        return Lock(self._client, name, ttl, session, timeout)

    def semaphore(
        self,
        name: Text,
        permits: int,
        *,
        ttl: int = SESSION_SECONDS,
        session: "Session | None" = None,
        timeout: float | None = None,
    ) -> "Semaphore":
        """Return a semaphore that up to `permits` clients hold at a time."""
        from kvorum.client.sync.recipes.locks import Semaphore

        return Semaphore(self._client, name, permits, ttl, session, timeout)

    def read_write_lock(
        self, name: Text, *, ttl: int = SESSION_SECONDS, session: "Session | None" = None
    ) -> "ReadWriteLock":
        """Return a lock that many readers hold together, or one writer alone."""
        from kvorum.client.sync.recipes.locks import ReadWriteLock

        return ReadWriteLock(self._client, name, ttl, session)

    def election(
        self, name: Text, *, ttl: int = SESSION_SECONDS, session: "Session | None" = None
    ) -> "Election":
        """Return an election, to campaign in or to observe."""
        from kvorum.client.sync.recipes.elections import Election

        return Election(self._client, name, ttl, session)

    def barrier(self, key: Text) -> "Barrier":
        """Return a barrier, at which clients wait until one removes it."""
        from kvorum.client.sync.recipes.barriers import Barrier

        return Barrier(self._client, key)

    def double_barrier(
        self,
        key: Text,
        count: int,
        *,
        ttl: int = SESSION_SECONDS,
        session: "Session | None" = None,
    ) -> "DoubleBarrier":
        """Return a barrier at which `count` clients begin together, and end together."""
        from kvorum.client.sync.recipes.barriers import DoubleBarrier

        return DoubleBarrier(self._client, key, count, ttl, session)

    def queue(self, name: Text) -> "Queue":
        """Return a queue: first in, first out."""
        from kvorum.client.sync.recipes.queues import Queue

        return Queue(self._client, name)

    def priority_queue(self, name: Text) -> "PriorityQueue":
        """Return a queue from which clients take the lowest priority number first."""
        from kvorum.client.sync.recipes.queues import PriorityQueue

        return PriorityQueue(self._client, name)

    def counter(self, key: Text, default: int = 0) -> "Counter":
        """Return a number that many clients may change at a time."""
        from kvorum.client.sync.recipes.stm import Counter

        return Counter(self._client, key, default)

    def transact(
        self,
        function: "Callable[[Stm], Outcome[T]]",
        *,
        isolation: Isolation = Isolation.SERIALIZABLE_SNAPSHOT,
        timeout: float | None = None,
    ) -> T:
        """Run a function that reads and writes keys as one transaction; return its result.

        The function runs again whenever other clients change keys that it depends on, so it must
        have no other effects.
        """
        from kvorum.client.sync.recipes.stm import transact

        return transact(self._client, function, isolation, timeout)

    def service_registry(self, target: Text) -> "ServiceRegistry":
        """Return the registry of the services of a target."""
        from kvorum.client.sync.recipes.registry import ServiceRegistry

        return ServiceRegistry(self._client, target)

    def cache(self, prefix: Text, *, timeout: float | None = None) -> "Cache":
        """Return a local mirror of a prefix; `timeout` is how long `with` waits to fill it."""
        from kvorum.client.sync.recipes.caches import Cache

        return Cache(self._client, prefix, timeout)

    @property
    def _client(self) -> "Client":
        return cast("Client", self)
