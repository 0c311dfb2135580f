"""Planted bugs of the proxy: of its cache, its shared watches, and the leases it renews."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from unittest.mock import patch

from kvorum.api.pb.etcdserverpb import LeaseKeepAliveRequest, LeaseKeepAliveResponse
from kvorum.client import rpcs
from kvorum.network.edge.upstream import End
from kvorum.proxy.broadcasts import Broadcast, ClientWatcher
from kvorum.proxy.cache import Cache
from kvorum.proxy.leases import SharedKeepAlives
from kvorum.proxy.routes import Routes

RENEW_SECONDS = 0.5


@contextmanager
def answer_from_the_cache_after_a_put() -> Iterator[None]:
    """Answer from the cache even if the client knows of a write that the cache has not seen."""
    original = Cache.find

    def find(cache: Cache, request: bytes, floor: int, now: float) -> bytes | None:
        del floor
        return original(cache, request, 0, now)

    with patch.object(Cache, "find", find):
        yield


@contextmanager
def lose_an_event_where_watches_are_shared() -> Iterator[None]:
    """Start a watcher that joins a shared watch one revision too late."""
    original = Broadcast.join

    def join(broadcast: Broadcast, watcher: ClientWatcher) -> None:
        watcher.next_revision += bool(broadcast.members)
        original(broadcast, watcher)

    with patch.object(Broadcast, "join", join):
        yield


class _Renewal:
    """One renewal of a lease, which is repeated even after all clients have left."""

    def __init__(self, routes: Routes, lease: int) -> None:
        self._routes = routes
        self._lease = lease
        self.asks_at = inf
        self._stream = routes.open_stream(rpcs.LEASE_KEEP_ALIVE.path, (), self)
        routes.send(self._stream, LeaseKeepAliveRequest(ID=lease).SerializeToString())

    def take_message(self, data: bytes) -> None:
        self._routes.cancel(self._stream)
        if LeaseKeepAliveResponse.FromString(data).TTL:
            self.asks_at = self._routes.now + RENEW_SECONDS

    def take_end(self, _end: End) -> None:
        self.asks_at = self._routes.now + RENEW_SECONDS

    def take_writable(self) -> None:
        """Ignore the stream's readiness: there is nothing more to send."""

    def renew_if_due(self, now: float) -> "_Renewal":
        return self if self.asks_at > now else _Renewal(self._routes, self._lease)


@contextmanager
def renew_leases_of_clients_that_left() -> Iterator[None]:
    """Keep renewing every lease for which a client has asked once."""
    take, pass_time = SharedKeepAlives.take_message, SharedKeepAlives.pass_time
    renewals: dict[SharedKeepAlives, dict[int, _Renewal]] = {}

    def message(keep_alives: SharedKeepAlives, call: int, data: bytes) -> None:
        take(keep_alives, call, data)
        lease = LeaseKeepAliveRequest.FromString(data).ID
        known = renewals.setdefault(keep_alives, {})
        if lease not in known:
            known[lease] = _Renewal(keep_alives.routes, lease)

    def renew(keep_alives: SharedKeepAlives, now: float) -> float:
        known = renewals.get(keep_alives, {})
        for lease, renewal in known.items():
            known[lease] = renewal.renew_if_due(now)
        moments = [renewal.asks_at for renewal in known.values()]
        return min(pass_time(keep_alives, now), *moments, inf)

    with (
        patch.object(SharedKeepAlives, "take_message", message),
        patch.object(SharedKeepAlives, "pass_time", renew),
    ):
        yield
