"""Look up the addresses of hosts in threads, and the members that SRV records name.

The system's resolver blocks. Concurrent requests for a host share one lookup, whose result is
cached for `FRESH_SECONDS`.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from kvorum.network.urls import is_ip
from kvorum.process.thread_executor import ThreadExecutor
from kvorum.server.telemetry.logs import Logger
from kvorum.tools.cli.invocation import Invocation

if TYPE_CHECKING:
    from kvorum.process.discovery.members import FoundMember

FRESH_SECONDS = 1.0
"""How long a result is cached: a host may move."""

Addresses: TypeAlias = list[str]
"""The addresses of one host; empty if the lookup failed."""


class Lookups:
    """Resolves host names without blocking the loop."""

    def __init__(self, thread_executor: ThreadExecutor, clock: Callable[[], float]) -> None:
        self._thread_executor = thread_executor
        self._clock = clock
        self._waiting: dict[str, list[Callable[[Addresses], None]]] = {}
        self._fresh: dict[str, tuple[float, Addresses]] = {}

    def look_up(self, host: str, take_addresses: Callable[[Addresses], None]) -> None:
        """Call `take_addresses` with the addresses of a host, at once if they are cached."""
        if is_ip(host):
            take_addresses([host])
            return
        until, addresses = self._fresh.get(host, (0.0, []))
        if self._clock() < until:
            take_addresses(addresses)
            return
        waiting = self._waiting.setdefault(host, [])
        waiting.append(take_addresses)
        if len(waiting) == 1:
            self._thread_executor.run(
                lambda: addresses_of(host), lambda found: self._take_found(host, found)
            )

    def _take_found(self, host: str, addresses: Addresses) -> None:
        if addresses:
            self._fresh[host] = self._clock() + FRESH_SECONDS, addresses
        for take_addresses in self._waiting.pop(host):
            take_addresses(addresses)


def members_by_records(
    invocation: Invocation, trusted_files: tuple[str, ...], logger: Logger
) -> "list[FoundMember]":
    """Return the members in the SRV records of `--discovery-srv`, blocking during the lookup.

    `trusted_files` are the arguments of `Trust`. Raises ValueError if there are no records.
    """
    # Imported late: the import is slow, and few proxies need it.
    from kvorum.process.discovery.members import Trust, find_members
    from kvorum.process.discovery.names import SystemNames
    from kvorum.process.discovery.srv import LookupFailedError

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
    """Return all addresses of a host in the system's order, blocking during the lookup."""
    try:
        # Pass bytes: Python refuses some text names that are usual in DNS.
        name = host.encode(errors="surrogateescape")
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM) if host else []
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))
