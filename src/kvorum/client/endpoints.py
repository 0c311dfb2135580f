"""The endpoints of a client: how they are written, and which of them is asked next.

A client stays with the endpoint that answers. One that cannot be reached, or cannot serve, is
avoided for a while that grows; where all are, the one whose time is over first is tried.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

BACK_OFF_SECONDS: Final = 0.05
"""How long an endpoint is avoided after its first failure; each one in a row doubles that."""
BACK_OFF_SECONDS_MAX: Final = 5.0
PORT: Final = 2379
PORT_MAX: Final = 65_535
_PLAIN: Final = re.compile(r"(?:(https?)://)?([A-Za-z0-9._-]+):([0-9]{1,5})", re.ASCII)
_SECURE: Final = {"http": False, "https": True, "": None}


class Address(NamedTuple):
    """Where an endpoint is."""

    text: str
    """As it was given."""
    host: str
    """A name or an address; a path if there is no port."""
    port: int | None
    """None for a unix socket."""
    is_secure: bool | None
    """Whether TLS is spoken; None if that depends on whether there are certificates."""

    @property
    def authority(self) -> str:
        """What the server is called in requests."""
        if self.port is None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def is_same(self, other: "Address") -> bool:
        """Return whether both are written for one place; TLS may be left open in one of them."""
        secure = {self.is_secure, other.is_secure} - {None}
        return (self.host, self.port) == (other.host, other.port) and len(secure) < 2


def parse_endpoint(text: str) -> Address:
    """Read an endpoint: `host:port`, a URL of http or https, or a socket of unix or unixs."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme in ("unix", "unixs"):
        path = rest.removeprefix("//")
        if not path:
            raise ValueError(f"endpoint {text!r} has no path; expected for example unix:///tmp/s")
        return Address(text, path, None, True if scheme == "unixs" else None)
    if (plain := _PLAIN.fullmatch(text)) is not None and int(plain[3]) <= PORT_MAX:
        # Nearly all are written so; what reads every URL takes long to load.
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
    """What is known of one endpoint."""

    __slots__ = (
        "address",
        "avoided_until",
        "connecting_since",
        "failures",
        "is_connected",
        "is_connecting",
        "is_named",
        "number",
    )

    def __init__(self, number: int, address: Address) -> None:
        self.number: int = number
        self.address: Address = address
        self.is_connected: bool = False
        self.is_connecting: bool = False
        self.connecting_since: float = 0.0
        self.is_named: bool = False
        """Whether calls were made that go to this one alone."""
        self.failures: int = 0
        """How often in a row it failed."""
        self.avoided_until: float = 0.0


class Endpoints:
    """All endpoints of a client, in the order in which they are tried."""

    def __init__(self, addresses: Sequence[Address], start: int) -> None:
        self._next_number = 0
        self.all: dict[int, Endpoint] = {}
        """Those that any call may go to."""
        self.known: dict[int, Endpoint] = {}
        """Those, those that were given up, and those that calls were made to by name."""
        self._current: Endpoint | None = None
        """The one that calls go to."""
        self.replace([*addresses[start:], *addresses[:start]])

    def replace(self, addresses: Sequence[Address]) -> list[Endpoint]:
        """Use these from now on; return those that are not among them, to be given up."""
        if not addresses:
            raise ValueError("a client needs an endpoint, for example 'localhost:2379'")
        before = self.all
        found = (self._known(address) for address in addresses)
        self.all = {each.number: each for each in found}
        if self._current is not None and self._current.number not in self.all:
            self._current = None
        return [each for number, each in before.items() if number not in self.all]

    def named(self, address: Address) -> Endpoint:
        """Return an endpoint that a call is to go to, whether others may go there or not."""
        endpoint = self._known(address)
        endpoint.is_named = True
        return endpoint

    def _known(self, address: Address) -> Endpoint:
        """Return the endpoint of an address, however that is written."""
        for endpoint in self.known.values():
            if endpoint.address.is_same(address):
                return endpoint
        endpoint = self.known[self._next_number] = Endpoint(self._next_number, address)
        self._next_number += 1
        return endpoint

    def pick(self, now: float) -> Endpoint:
        """Return the endpoint to ask: the current one, unless it is avoided."""
        current = self._current
        if current is not None and current.avoided_until <= now:
            return current
        # Those that are connected come first among those that are not avoided.
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

    def works(self, endpoint: Endpoint) -> None:
        """Note that an endpoint has answered."""
        endpoint.failures = 0
        endpoint.avoided_until = 0.0

    def fails(self, endpoint: Endpoint, now: float) -> None:
        """Avoid an endpoint for a while; all calls that fail with it together count once."""
        if endpoint.avoided_until > now:
            return
        seconds = BACK_OFF_SECONDS * 2.0 ** min(endpoint.failures, 10)
        endpoint.failures += 1
        endpoint.avoided_until = now + min(seconds, BACK_OFF_SECONDS_MAX)
