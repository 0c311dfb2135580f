"""The endpoints of a client: their notation, and the choice of the one for the next call.

A client stays with the endpoint that answers. It avoids an endpoint that is unreachable or cannot
serve, for longer after each failure. If it avoids all of them, it picks the one whose time is over
first.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

BACK_OFF_SECONDS: Final = 0.05
"""How long an endpoint is avoided after its first failure; each failure in a row doubles it."""
BACK_OFF_SECONDS_MAX: Final = 5.0
PORT: Final = 2379
PORT_MAX: Final = 65_535
_PLAIN: Final = re.compile(r"(?:(https?)://)?([A-Za-z0-9._-]+):([0-9]{1,5})", re.ASCII)
_SECURE: Final = {"http": False, "https": True, "": None}


class Address(NamedTuple):
    """The address of an endpoint."""

    text: str
    """The address as the user wrote it."""
    host: str
    """A name or an address; a path if there is no port."""
    port: int | None
    """None for a unix socket."""
    is_secure: bool | None
    """Whether to use TLS; None if that depends on the client's TLS options."""

    @property
    def authority(self) -> str:
        """The server's name in requests."""
        if self.port is None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def is_same(self, other: "Address") -> bool:
        """Return whether both address the same target; one of them may leave TLS open."""
        secure = {self.is_secure, other.is_secure} - {None}
        return (self.host, self.port) == (other.host, other.port) and len(secure) < 2


def parse_endpoint(text: str) -> Address:
    """Parse an endpoint: `host:port`, a URL of http or https, or a socket of unix or unixs."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme in ("unix", "unixs"):
        path = rest.removeprefix("//")
        if not path:
            raise ValueError(f"endpoint {text!r} has no path; expected for example unix:///tmp/s")
        return Address(text, path, None, True if scheme == "unixs" else None)
    if (plain := _PLAIN.fullmatch(text)) is not None and int(plain[3]) <= PORT_MAX:
        # Nearly all endpoints look like this; `urllib` takes long to import.
        return Address(text, plain[2].lower(), int(plain[3]), _SECURE[plain[1] or ""])
    from urllib.parse import urlsplit

    has_scheme = "://" in text
    try:
        parts = urlsplit(text if has_scheme else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"endpoint {text!r} cannot be read: {error}") from None
    if parts.scheme not in _SECURE:
        raise ValueError(
            f"endpoint {text!r} has the scheme {parts.scheme!r}; expected http, https, unix, unixs"
        )
    if not host:
        raise ValueError(f"endpoint {text!r} has no host; expected for example localhost:2379")
    return Address(text, host, PORT if port is None else port, _SECURE[parts.scheme])


class Endpoint:
    """An endpoint and its state."""

    __slots__ = (
        "address",
        "avoided_until",
        "connecting_since",
        "failures",
        "is_connected",
        "is_connecting",
        "is_pinned",
        "number",
    )

    def __init__(self, number: int, address: Address) -> None:
        self.number: int = number
        self.address: Address = address
        self.is_connected: bool = False
        self.is_connecting: bool = False
        self.connecting_since: float = 0.0
        self.is_pinned: bool = False
        """Whether a call named this endpoint as the only one that it may go to."""
        self.failures: int = 0
        """The number of failures in a row."""
        self.avoided_until: float = 0.0


class Endpoints:
    """All endpoints of a client, in the order in which they are tried."""

    def __init__(self, addresses: Sequence[Address], start: int) -> None:
        self._next_number = 0
        self.all: dict[int, Endpoint] = {}
        """The endpoints that any call may go to."""
        self.known: dict[int, Endpoint] = {}
        """Every endpoint so far: those in `all`, former ones, and those that calls have named."""
        self._current: Endpoint | None = None
        """The endpoint that calls go to."""
        self.replace([*addresses[start:], *addresses[:start]])

    def replace(self, addresses: Sequence[Address]) -> list[Endpoint]:
        """Use these addresses from now on; return the former endpoints that are not among them."""
        if not addresses:
            raise ValueError("a client needs an endpoint, for example 'localhost:2379'")
        before = self.all
        found = (self._find_or_add(address) for address in addresses)
        self.all = {each.number: each for each in found}
        if self._current is not None and self._current.number not in self.all:
            self._current = None
        return [each for number, each in before.items() if number not in self.all]

    def pin_endpoint(self, address: Address) -> Endpoint:
        """Return the endpoint of an address for a call that goes to it alone."""
        endpoint = self._find_or_add(address)
        endpoint.is_pinned = True
        return endpoint

    def _find_or_add(self, address: Address) -> Endpoint:
        """Return the endpoint of an address, a new one if no endpoint has that address."""
        for endpoint in self.known.values():
            if endpoint.address.is_same(address):
                return endpoint
        endpoint = self.known[self._next_number] = Endpoint(self._next_number, address)
        self._next_number += 1
        return endpoint

    def pick(self, now: float) -> Endpoint:
        """Return the endpoint for the next call: the current one, unless it is avoided."""
        current = self._current
        if current is not None and current.avoided_until <= now:
            return current
        # Among endpoints that are not avoided, connected ones come first.
        best = min(
            self.all.values(),
            key=lambda each: (
                max(each.avoided_until, now),
                not each.is_connected,
                each is current,
            ),
        )
        self._current = best
        return best

    def note_success(self, endpoint: Endpoint) -> None:
        """Record that an endpoint has answered."""
        endpoint.failures = 0
        endpoint.avoided_until = 0.0

    def avoid(self, endpoint: Endpoint, now: float) -> None:
        """Avoid an endpoint for a while; calls that fail while it is avoided count once."""
        if endpoint.avoided_until > now:
            return
        seconds = BACK_OFF_SECONDS * 2.0 ** min(endpoint.failures, 10)
        endpoint.failures += 1
        endpoint.avoided_until = now + min(seconds, BACK_OFF_SECONDS_MAX)
