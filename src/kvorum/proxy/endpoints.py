"""The members' addresses, and the connections to them.

The proxy reconnects with a growing back-off to a member that was lost or accepts no more calls.
Each connection has a number of its own. A connection to an address that leaves the list stays open
for `LINGER_SECONDS`, so that its calls can finish.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import Final

from kvorum.client.backoff import BackOff
from kvorum.client.endpoints import Address
from kvorum.network.edge.upstream import Upstream, UpstreamTls
from kvorum.proxy.interface import Logger

BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 5.0
LINGER_SECONDS: Final = 30.0

_NOTHING_CONNECTED: Final = "no member of the cluster can be reached"


class ProxyEndpoint:
    """A member's address, and the connection to it."""

    __slots__ = ("address", "back_off", "is_connected", "number", "problem")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.number = 0
        """The connection's number while it is open or being opened; 0 otherwise."""
        self.is_connected = False
        self.back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
        self.problem = ""
        """Why the connection was lost, or could not be opened."""


class ProxyEndpoints:
    """Keeps a connection to each member of one cluster."""

    def __init__(
        self,
        upstream: Upstream,
        addresses: Sequence[Address],
        tls: UpstreamTls | None,
        logger: Logger,
        first: int,
    ) -> None:
        """Connect to members; the one at index `first` gets calls first."""
        self._upstream = upstream
        self._tls = tls
        self._logger = logger
        self._next_endpoint: Callable[[], int] = count(1).__next__
        self.all = [ProxyEndpoint(address) for address in (*addresses[first:], *addresses[:first])]
        self._by_number: dict[int, ProxyEndpoint] = {}
        self._former: dict[int, float] = {}
        """Connections that get no more calls, and when each is closed."""

    def connected_numbers(self) -> list[int]:
        """Return the numbers of the open connections."""
        return [each.number for each in self.all if each.is_connected]

    def describe_problems(self) -> str:
        """Return why no member is connected."""
        reasons = [f"{each.address.text}: {each.problem}" for each in self.all if each.problem]
        return ": ".join([_NOTHING_CONNECTED, *filter(None, ["; ".join(reasons)])])

    def note_connected(self, number: int) -> None:
        """Note that a connection is open."""
        endpoint = self._by_number.get(number)
        if endpoint is not None:
            endpoint.is_connected = True
            endpoint.back_off.note_success()
            if endpoint.problem:
                self._logger.info("connected to a member again", endpoint=endpoint.address.text)
            endpoint.problem = ""

    def note_lost(self, number: int, reason: str, now: float) -> None:
        """Note that a connection accepts no more calls, was lost, or could not be opened."""
        self._former.pop(number, None)
        endpoint = self._by_number.pop(number, None)
        if endpoint is not None:
            if not endpoint.problem:
                self._logger.warning("lost a member", endpoint=endpoint.address.text, reason=reason)
            endpoint.problem = reason
            endpoint.number = 0
            endpoint.is_connected = False
            endpoint.back_off.note_failure(now)

    def replace(self, addresses: Sequence[Address], now: float) -> None:
        """Use the members at these addresses from now on."""
        kept: list[ProxyEndpoint] = []
        for address in addresses:
            matching = [each for each in (*kept, *self.all) if each.address.is_same(address)]
            endpoint = matching[0] if matching else ProxyEndpoint(address)
            if endpoint not in kept:
                kept.append(endpoint)
        for endpoint in self.all:
            if endpoint not in kept and endpoint.number:
                del self._by_number[endpoint.number]
                self._former[endpoint.number] = now + LINGER_SECONDS
        self.all = kept

    def pass_time(self, now: float) -> float:
        """Open and close the connections that are due; return when the next one is."""
        moment = inf
        for endpoint in self.all:
            if not endpoint.number:
                if endpoint.back_off.until <= now:
                    self._connect(endpoint)
                else:
                    moment = min(moment, endpoint.back_off.until)
        if self._former:
            for number in [each for each, until in self._former.items() if until <= now]:
                del self._former[number]
                self._upstream.disconnect(number)
            moment = min(moment, *self._former.values(), inf)
        return moment

    def close(self) -> None:
        """Close every connection."""
        for number in (*self._by_number, *self._former):
            self._upstream.disconnect(number)

    def _connect(self, endpoint: ProxyEndpoint) -> None:
        number = endpoint.number = self._next_endpoint()
        self._by_number[number] = endpoint
        address = endpoint.address
        tls = None
        if address.is_secure or (address.is_secure is None and self._tls is not None):
            tls = self._tls or UpstreamTls(server_name="")
            if not tls.server_name:
                host = address.host if address.port is not None else "localhost"
                tls = replace(tls, server_name=host)
        target = f"unix:{address.host}" if address.port is None else address.authority
        self._upstream.connect(number, target, address.authority, tls)
