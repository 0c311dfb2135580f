"""Ports for servers of tests, which are not reused for a while.

A program that a test left running may still try to reach its server. If the next test got the same
port, that program would reach the next test's server. So ports stay bound for a while after their
use, without a listener.
"""

import socket
from collections import deque

from kvorum.storage.platform.sockets import hold_port

HOST = "127.0.0.1"
RELEASED_PORTS_MAX = 200
"""The number of ports that stay bound after their use."""


class Ports:
    """Reserves ports that servers can bind, but that the kernel gives to no other program."""

    def __init__(self) -> None:
        self._reserved: dict[int, socket.socket] = {}
        self._released: deque[socket.socket] = deque()

    def reserve(self) -> int:
        """Reserve and return a free port."""
        number, holder = hold_port(HOST)
        self._reserved[number] = holder
        return number

    def release(self, number: int) -> None:
        """Release a port that is no longer used, after a while."""
        self._released.append(self._reserved.pop(number))
        if len(self._released) > RELEASED_PORTS_MAX:
            self._released.popleft().close()

    def close(self) -> None:
        """Release all ports."""
        for holder in (*self._reserved.values(), *self._released):
            holder.close()
        self._reserved.clear()
        self._released.clear()
