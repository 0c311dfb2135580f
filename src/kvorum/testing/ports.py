"""Ports for servers of tests, which are not reused for a while.

A program that a test left running may still try to reach its server. If the next test got the same
port, that program would reach the next test's server. So ports stay bound for a while after their
use, without a listener.
"""

import socket
from collections import deque

HOST = "127.0.0.1"
GONE_PORTS_MAX = 200
"""The number of ports that stay bound after their use."""


class Ports:
    """Reserves ports that servers can bind, but that the kernel gives to no other program."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._gone: deque[socket.socket] = deque()

    def hold(self) -> int:
        """Reserve and return a free port."""
        holder = socket.socket()
        # Servers set this option, too, so they can bind the port as well.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        number: int = holder.getsockname()[1]
        self._held[number] = holder
        return number

    def give_back(self, number: int) -> None:
        """Release a port that is no longer used, after a while."""
        self._gone.append(self._held.pop(number))
        if len(self._gone) > GONE_PORTS_MAX:
            self._gone.popleft().close()

    def close(self) -> None:
        """Release all ports."""
        for holder in (*self._held.values(), *self._gone):
            holder.close()
        self._held.clear()
        self._gone.clear()
