"""Calls for keys: serializable reads from the cache, namespaces, and revisions that never go back.

The proxy forwards calls that need no parsing unchanged. The cache answers a serializable read if it
can, otherwise a member does. If the member's answer is older than a write that this proxy has
acknowledged to a client, the proxy repeats the read as a linearizable one. With ordering, the same
holds for every revision in an answer to a read or write, not only in those to writes.
"""

from typing import Final

from kvorum.api.errors import Status
from kvorum.client import rpcs
from kvorum.network.edge.interface import Metadata
from kvorum.network.edge.upstream import End
from kvorum.network.edge.upstream import Metadata as UpstreamMetadata
from kvorum.proxy.cache import Cache
from kvorum.proxy.floor import WRITES, Floor, revision_of
from kvorum.proxy.interface import status_of
from kvorum.proxy.namespace import Namespace
from kvorum.proxy.routes import Routes

SERIALIZABLE: Final = b"\x38\x01"
"""The encoded field `serializable: true`; a read without these bytes counts as linearizable."""
LINEARIZABLE: Final = b"\x38\x00"
"""The encoded field `serializable: false`; appended to a request it overrides `SERIALIZABLE`,
because the last occurrence of a field counts."""
CREDENTIALS: Final = frozenset({"token", "authorization"})

_RANGE: Final = rpcs.RANGE.path


class ProxiedKeyValues:
    """Serves Range, and all calls that need the namespace added to their keys."""

    def __init__(
        self, routes: Routes, namespace: Namespace, cache: Cache | None, *, is_ordering: bool
    ) -> None:
        self._routes = routes
        self._namespace = namespace
        self._cache = cache
        self._is_ordering = is_ordering
        self.cached_answers: dict[bytes, bytes] = {}
        """The cache's answers to callers without credentials, by request. `Proxy` clears them
        before each batch of requests; within a batch they stay valid."""
        self.floor = Floor()
        self.noted_paths = frozenset((*WRITES, _RANGE) if is_ordering else WRITES)
        """The paths of calls whose answers raise the floor, the lowest revision reads may show."""
        for path in self.noted_paths:
            routes.taps[path] = self.floor.note

    def serve_range(self, call: int, message: bytes, metadata: Metadata | None) -> None:
        """Serve a Range call."""
        if SERIALIZABLE in message:
            self._serve_serializable(call, message, metadata)
        elif self._namespace.prefix:
            self.forward_namespaced(call, _RANGE, message, metadata)
        else:
            self._routes.forward(call, _RANGE, message, _upstream_metadata(metadata))

    def forward_namespaced(
        self, call: int, path: str, message: bytes, metadata: Metadata | None
    ) -> None:
        """Forward a call with the namespace added to its keys, and removed from the answer's."""
        request = self._namespace.request(path, message)
        if isinstance(request, Status):
            self._routes.refuse(call, path, request)
            return

        def take_answer(answer: bytes | End) -> None:
            if isinstance(answer, bytes):
                tap = self._routes.taps.get(path)
                if tap is not None:
                    tap(answer)
                self._routes.replies.append((call, self._namespace.answer(path, answer)))
            else:
                self._routes.replies.append((call, status_of(answer)))

        self._routes.start_unary_for(call, path, request, _upstream_metadata(metadata), take_answer)

    def _serve_serializable(self, call: int, message: bytes, metadata: Metadata | None) -> None:
        routes, cache = self._routes, self._cache
        floor = self.floor.revision
        is_anonymous = metadata is None or CREDENTIALS.isdisjoint(metadata)
        if cache is not None and is_anonymous:
            found = cache.find(message, floor, routes.now)
            if found is not None:
                self.cached_answers[message] = found
                routes.replies.append((call, found))
                return
        request = self._namespace.request(_RANGE, message)
        if isinstance(request, Status):
            routes.refuse(call, _RANGE, request)
            return
        sent = _upstream_metadata(metadata)

        def take_answer(answer: bytes | End) -> None:
            if not isinstance(answer, bytes):
                routes.replies.append((call, status_of(answer)))
            elif revision_of(answer) < floor:
                self._repeat_linearizable(call, request + LINEARIZABLE, sent, floor)
            else:
                shown = self._reply(call, answer)
                if cache is not None and is_anonymous:
                    cache.offer(message, request, answer, shown)

        routes.start_unary_for(call, _RANGE, request, sent, take_answer)

    def _repeat_linearizable(
        self, call: int, request: bytes, sent: UpstreamMetadata, floor: int
    ) -> None:
        def take_answer(answer: bytes | End) -> None:
            if isinstance(answer, bytes):
                if (revision := revision_of(answer)) < floor:
                    self.floor.restart_from(revision)
                self._reply(call, answer)
            else:
                self._routes.replies.append((call, status_of(answer)))

        self._routes.start_unary_again(call, _RANGE, request, sent, take_answer)

    def _reply(self, call: int, answer: bytes) -> bytes:
        if self._is_ordering:
            self.floor.note(answer)
        shown = self._namespace.answer(_RANGE, answer)
        self._routes.replies.append((call, shown))
        return shown


def _upstream_metadata(metadata: Metadata | None) -> UpstreamMetadata:
    return () if metadata is None else list(metadata.items())
