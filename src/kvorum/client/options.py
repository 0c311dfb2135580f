"""Checks the arguments of both clients, and makes the core from them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvorum.client.core import Core, CoreSettings, Credentials
from kvorum.client.endpoints import Address, parse_endpoint

if TYPE_CHECKING:
    import ssl

TIMEOUT_SECONDS = 5.0
"""The default timeout of a call."""
CONNECT_SECONDS = 5.0
PAGE_KEYS = 1000
"""How many keys a page of a paged read has."""
SESSION_SECONDS = 60
"""The default TTL of a session: this long after a crash, others can take what it held."""
FOREVER = float("inf")

Shell = TypeVar("Shell", covariant=True)


class MakeShell(Protocol[Shell]):
    """Makes the shell that carries the calls of a client."""

    def __call__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
        /,
    ) -> Shell:
        """Make the shell of a core; `context` returns an address's TLS context, or None."""
        ...


def parse_endpoints(endpoints: str | Sequence[str]) -> list[Address]:
    """Read endpoints: a list, or text with commas between them."""
    texts = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    return [parse_endpoint(text.strip()) for text in texts if text.strip()]


def make_core(
    endpoints: str | Sequence[str],
    *,
    user: str,
    password: str,
    token: str,
    timeout: float,
    sync_seconds: float,
) -> Core:
    """Return the core of a client, which connects with its first call."""
    addresses = parse_endpoints(endpoints)
    if token and (user or password):
        raise ValueError("user and password, or a token, but not both")
    if user and not password:
        raise ValueError(f"user {user!r} was given without a password")
    # Start at a random endpoint, so that not all clients use the first one.
    start = 0
    if len(addresses) > 1:
        import random

        start = random.randrange(len(addresses))  # noqa: S311
    credentials = Credentials(user, password) if user else None
    settings = CoreSettings(
        credentials=credentials,
        token=token,
        login_seconds_max=timeout,
        sync_seconds=sync_seconds,
    )
    return Core(addresses, settings, start=start)
