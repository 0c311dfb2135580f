"""Calls for keys: serializable reads from the cache, namespaces, and answers in their order.

Whatever needs no look into it is passed on as it came. A serializable read is answered by the cache
if that can be, and otherwise by a member. One that lags behind what clients of this proxy were told
of their writes is not believed: the cluster is asked once more, for the newest. With ordering, that
holds for everything that they were told.
"""

from typing import Final

from kvorum.api.errors import Status
from kvorum.client import rpcs
from kvorum.edge.interface import Metadata
from kvorum.edge.upstream import End
from kvorum.edge.upstream import Metadata as UpstreamMetadata
from kvorum.proxy.cache import Cache
from kvorum.proxy.floor import WRITES, Floor, revision_of
from kvorum.proxy.interface import status_of
from kvorum.proxy.namespace import Namespace
from kvorum.proxy.routes import Routes

SERIALIZABLE: Final = b"\x38\x01"
"""The field of a serializable read; a read without these bytes is none."""
LINEARIZABLE: Final = b"\x38\x00"
"""Behind a request it takes that back: of a field that is there twice, the last counts."""
CREDENTIALS: Final = frozenset({"token", "authorization"})

_RANGE: Final = rpcs.RANGE.path


class KeyValues:
    """Serves Range, and all calls whose keys are in a namespace."""

    def __init__(
        self, routes: Routes, namespace: Namespace, cache: Cache | None, *, is_ordering: bool
    ) -> None:
        self._routes = routes
        self._namespace = namespace
        self._cache = cache
        self._is_ordering = is_ordering
        self.found: dict[bytes, bytes] = {}
        """What the cache answered to callers without credentials, by request. Whoever serves a
        batch clears it first; while only requests are served, the cache would say the same."""
        self.floor = Floor()
        self.noted = frozenset((*WRITES, _RANGE) if is_ordering else WRITES)
        """The paths of calls whose answers raise the floor."""
        for path in self.noted:
            routes.taps[path] = self.floor.note

    def range(self, call: int, message: bytes, metadata: Metadata | None) -> None:
        """Serve a read."""
        if SERIALIZABLE in message:
            self._serializable(call, message, metadata)
        elif self._namespace.prefix:
            self.namespaced(call, _RANGE, message, metadata)
        else:
            self._routes.forward(call, _RANGE, message, _sent(metadata))

    def namespaced(self, call: int, path: str, message: bytes, metadata: Metadata | None) -> None:
        """Pass a call on whose keys are in a namespace."""
        request = self._namespace.request(path, message)
        if isinstance(request, Status):
            self._routes.refuse(call, path, request)
            return

        def answered(answer: bytes | End) -> None:
            if isinstance(answer, bytes):
                tap = self._routes.taps.get(path)
                if tap is not None:
                    tap(answer)
                self._routes.replies.append((call, self._namespace.answer(path, answer)))
            else:
                self._routes.replies.append((call, status_of(answer)))

        self._routes.unary_for(call, path, request, _sent(metadata), answered)

    def _serializable(self, call: int, message: bytes, metadata: Metadata | None) -> None:
        routes, cache = self._routes, self._cache
        floor = self.floor.revision
        is_anonymous = metadata is None or CREDENTIALS.isdisjoint(metadata)
        if cache is not None and is_anonymous:
            found = cache.find(message, floor, routes.now)
            if found is not None:
                self.found[message] = found
                routes.replies.append((call, found))
                return
        request = self._namespace.request(_RANGE, message)
        if isinstance(request, Status):
            routes.refuse(call, _RANGE, request)
            return
        sent = _sent(metadata)

        def answered(answer: bytes | End) -> None:
            if not isinstance(answer, bytes):
                routes.replies.append((call, status_of(answer)))
            elif revision_of(answer) < floor:
                self._ask_again(call, request + LINEARIZABLE, sent, floor)
            else:
                shown = self._show(call, answer)
                if cache is not None and is_anonymous:
                    cache.offer(message, request, answer, shown)

        routes.unary_for(call, _RANGE, request, sent, answered)

    def _ask_again(self, call: int, request: bytes, sent: UpstreamMetadata, floor: int) -> None:
        def answered(answer: bytes | End) -> None:
            if isinstance(answer, bytes):
                if (revision := revision_of(answer)) < floor:
                    self.floor.begin_anew(revision)
                self._show(call, answer)
            else:
                self._routes.replies.append((call, status_of(answer)))

        self._routes.unary(_RANGE, request, sent, answered)

    def _show(self, call: int, answer: bytes) -> bytes:
        if self._is_ordering:
            self.floor.note(answer)
        shown = self._namespace.answer(_RANGE, answer)
        self._routes.replies.append((call, shown))
        return shown


def _sent(metadata: Metadata | None) -> UpstreamMetadata:
    return () if metadata is None else list(metadata.items())
