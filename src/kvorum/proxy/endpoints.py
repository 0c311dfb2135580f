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
        self._given_up: dict[int, float] = {}
        """Connections that get no more calls, and when each is closed."""

    def ready(self) -> list[int]:
        """Return the numbers of the open connections."""
        return [each.number for each in self.all if each.is_connected]

    def problem(self) -> str:
        """Return why no member is connected."""
        reasons = [f"{each.address.text}: {each.problem}" for each in self.all if each.problem]
        return ": ".join([_NOTHING_CONNECTED, *filter(None, ["; ".join(reasons)])])

    def connected(self, number: int) -> None:
        """Note that a connection is open."""
        place = self._by_number.get(number)
        if place is not None:
            place.is_connected = True
            place.back_off.note_success()
            if place.problem:
                self._logger.info("connected to a member again", endpoint=place.address.text)
            place.problem = ""

    def lost(self, number: int, reason: str, now: float) -> None:
        """Note that a connection accepts no more calls, was lost, or could not be opened."""
        self._given_up.pop(number, None)
        place = self._by_number.pop(number, None)
        if place is not None:
            if not place.problem:
                self._logger.warning("lost a member", endpoint=place.address.text, reason=reason)
            place.problem = reason
            place.number = 0
            place.is_connected = False
            place.back_off.note_failure(now)

    def replace(self, addresses: Sequence[Address], now: float) -> None:
        """Use the members at these addresses from now on."""
        kept: list[ProxyEndpoint] = []
        for address in addresses:
            known = [each for each in (*kept, *self.all) if each.address.is_same(address)]
            place = known[0] if known else ProxyEndpoint(address)
            if place not in kept:
                kept.append(place)
        for place in self.all:
            if place not in kept and place.number:
                del self._by_number[place.number]
                self._given_up[place.number] = now + LINGER_SECONDS
        self.all = kept

    def pass_time(self, now: float) -> float:
        """Open and close the connections that are due; return when the next one is."""
        moment = inf
        for place in self.all:
            if not place.number:
                if place.back_off.until <= now:
                    self._connect(place)
                else:
                    moment = min(moment, place.back_off.until)
        if self._given_up:
            for number in [each for each, until in self._given_up.items() if until <= now]:
                del self._given_up[number]
                self._upstream.disconnect(number)
            moment = min(moment, *self._given_up.values(), inf)
        return moment

    def close(self) -> None:
        """Close every connection."""
        for number in (*self._by_number, *self._given_up):
            self._upstream.disconnect(number)

    def _connect(self, place: ProxyEndpoint) -> None:
        number = place.number = self._next_endpoint()
        self._by_number[number] = place
        address = place.address
        tls = None
        if address.is_secure or (address.is_secure is None and self._tls is not None):
            tls = self._tls or UpstreamTls(server_name="")
            if not tls.server_name:
                host = address.host if address.port is not None else "localhost"
                tls = replace(tls, server_name=host)
        target = f"unix:{address.host}" if address.port is None else address.authority
        self._upstream.connect(number, target, address.authority, tls)
