"""Addresses of hosts, looked up by threads: the system's resolver blocks.

An address is looked up once for all who ask meanwhile, and answers for `FRESH_SECONDS`. The threads
end with the process, whatever the resolver does.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from kvorum.net.urls import is_ip

FRESH_SECONDS = 1.0
"""How long an answer counts: a host may move."""
THREADS = 4

Addresses: TypeAlias = list[str]
"""Those of one host; empty: none is known."""


class Lookups:
    """Answers on the loop's thread, which calls `settle` after `wake` was called in another."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._asked: SimpleQueue[str] = SimpleQueue()
        self._found: deque[tuple[str, Addresses]] = deque()
        self._waiting: dict[str, list[Callable[[Addresses], None]]] = {}
        self._fresh: dict[str, tuple[float, Addresses]] = {}
        self._threads = 0

    def ask(self, host: str, now: float, answered: Callable[[Addresses], None]) -> None:
        """Tell the addresses of a host, at once where they are known."""
        if is_ip(host):
            answered([host])
            return
        until, addresses = self._fresh.get(host, (0.0, []))
        if now < until:
            answered(addresses)
            return
        waiting = self._waiting.get(host)
        if waiting is not None:
            waiting.append(answered)
            return
        self._waiting[host] = [answered]
        if self._threads < THREADS:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        self._asked.put(host)

    def settle(self, now: float) -> None:
        """Tell what was found since."""
        while self._found:
            host, addresses = self._found.popleft()
            if addresses:
                self._fresh[host] = now + FRESH_SECONDS, addresses
            for answered in self._waiting.pop(host):
                answered(addresses)

    def _work(self) -> None:
        while True:
            host = self._asked.get()
            self._found.append((host, addresses_of(host)))
            self._wake()


def addresses_of(host: str) -> Addresses:
    """Return all addresses of a host, the system's favourites first; this waits for them."""
    if not host:
        return []
    try:
        # As bytes: Python would refuse some names that are usual in DNS.
        found = socket.getaddrinfo(
            host.encode(errors="surrogateescape"), None, type=socket.SOCK_STREAM
        )
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))
