"""Ports for servers of tests, which are not used again for a while.

A program that a test left running may still look for its server. Were the port given to the next
test, it would find that one's server; so ports stay bound for a while, but are not listened at.
"""

import socket
from collections import deque

HOST = "127.0.0.1"
GONE_PORTS_MAX = 200
"""So many ports are held back after their use."""


class Ports:
    """Holds ports of this machine that servers may bind, and nobody who asks for any port gets."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._gone: deque[socket.socket] = deque()

    def hold(self) -> int:
        """Return a free port."""
        holder = socket.socket()
        # As servers do, which can bind it then as well.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        number: int = holder.getsockname()[1]
        self._held[number] = holder
        return number

    def give_back(self, number: int) -> None:
        """Let go a port that is used no more, later."""
        self._gone.append(self._held.pop(number))
        if len(self._gone) > GONE_PORTS_MAX:
            self._gone.popleft().close()

    def close(self) -> None:
        """Let all of them go."""
        for holder in (*self._held.values(), *self._gone):
            holder.close()
        self._held.clear()
        self._gone.clear()
