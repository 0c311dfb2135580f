"""What a client is made from: the arguments of both clients, checked."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvorum.client.core import Core, Credentials, Settings
from kvorum.client.endpoints import Address, parse_endpoint

if TYPE_CHECKING:
    import ssl

TIMEOUT_SECONDS = 5.0
"""How long a call may take, unless it is told otherwise."""
CONNECT_SECONDS = 5.0
PAGE_KEYS = 1000
"""How many keys a paged read asks for at once."""
SESSION_SECONDS = 60
"""After so long without a sign of life, what a program holds is free for others."""
FOREVER = float("inf")

Shell = TypeVar("Shell", covariant=True)


class MakeShell(Protocol[Shell]):
    """Makes what carries the calls of a client."""

    def __call__(
        self,
        core: Core,
        context: "Callable[[Address], ssl.SSLContext | None]",
        connect_seconds_max: float,
        /,
    ) -> Shell:
        """Make it for this core; TLS is spoken as `context` says."""
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
    # Clients of one program, and of many, do not all begin with the same endpoint.
    start = 0
    if len(addresses) > 1:
        import random

        start = random.randrange(len(addresses))  # noqa: S311
    credentials = Credentials(user, password) if user else None
    settings = Settings(
        credentials=credentials,
        token=token,
        login_seconds_max=timeout,
        sync_seconds=sync_seconds,
    )
    return Core(addresses, settings, start=start)
