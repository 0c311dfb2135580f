"""Members of this process: those who run a test at their address get a client without a socket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvorum.embed import Config, Server

_SERVERS: dict[object, Server] = {}


@contextmanager
def embedded(**options: Any) -> Iterator[str]:
    """Run a member, and give its address."""
    with Server(Config(ephemeral=True, **options)) as server:
        address = server.client_url.removeprefix("http://")
        _SERVERS[address] = server
        try:
            yield address
        finally:
            del _SERVERS[address]


def made_here(run: Callable[..., None]) -> Callable[..., None]:
    """Return what runs a test as `run` does, but without a socket at such an address."""

    def run_here(test: Any, *arguments: Any, **options: Any) -> None:
        (address,) = arguments or ("",)
        server = _SERVERS.get(address) if isinstance(address, str) else None
        if server is None:
            run(test, *arguments, **options)
        else:
            make = server.client if run.__name__ == "run_threads" else server.async_client
            run(test, make=make, **options)

    return run_here


def client_here(address: str, *, is_async: bool) -> Callable[..., Any] | None:
    """Return what makes clients without a socket, if this is the address of such a member."""
    server = _SERVERS.get(address)
    if server is None:
        return None
    return server.async_client if is_async else server.client
