"""Where members are: addresses of hosts, looked up by threads, and what SRV records name.

The system's resolver blocks. A host is looked up once for all who ask meanwhile, and what is found
answers for `FRESH_SECONDS`.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from kvorum.cli.invocation import Invocation
from kvorum.net.urls import is_ip
from kvorum.process.errands import Errands
from kvorum.telemetry.logs import Logger

if TYPE_CHECKING:
    from kvorum.discovery.members import Found

FRESH_SECONDS = 1.0
"""How long an answer counts: a host may move."""

Addresses: TypeAlias = list[str]
"""Those of one host; empty: none is known."""


class Lookups:
    """Looks hosts up for a loop."""

    def __init__(self, errands: Errands, clock: Callable[[], float]) -> None:
        self._errands = errands
        self._clock = clock
        self._waiting: dict[str, list[Callable[[Addresses], None]]] = {}
        self._fresh: dict[str, tuple[float, Addresses]] = {}

    def ask(self, host: str, answered: Callable[[Addresses], None]) -> None:
        """Tell the addresses of a host, at once where they are known."""
        if is_ip(host):
            answered([host])
            return
        until, addresses = self._fresh.get(host, (0.0, []))
        if self._clock() < until:
            answered(addresses)
            return
        waiting = self._waiting.setdefault(host, [])
        waiting.append(answered)
        if len(waiting) == 1:
            self._errands.run(lambda: addresses_of(host), lambda found: self._found(host, found))

    def _found(self, host: str, addresses: Addresses) -> None:
        if addresses:
            self._fresh[host] = self._clock() + FRESH_SECONDS, addresses
        for answered in self._waiting.pop(host):
            answered(addresses)


def members_by_records(
    invocation: Invocation, trusted_files: tuple[str, ...], logger: Logger
) -> "list[Found]":
    """Return the members that the records of `--discovery-srv` name; this waits for them.

    The files are those of `Trust`. Raises ValueError if there are no records.
    """
    # Imported late: it takes a while, and is rarely needed.
    from kvorum.discovery.members import Trust, find_members
    from kvorum.discovery.names import SystemNames
    from kvorum.discovery.srv import LookupFailedError

    try:
        return find_members(
            invocation.text("discovery-srv"),
            invocation.text("discovery-srv-name"),
            SystemNames(),
            None if invocation.switch("insecure-discovery") else Trust(*trusted_files),
            logger,
        )
    except LookupFailedError as error:
        raise ValueError(str(error)) from None


def addresses_of(host: str) -> Addresses:
    """Return all addresses of a host, the system's favourites first; this waits for them."""
    try:
        # As bytes: Python would refuse some names that are usual in DNS.
        name = host.encode(errors="surrogateescape")
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))
