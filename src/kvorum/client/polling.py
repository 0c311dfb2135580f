"""Wait for several sockets where there is no `select.poll`, as on Windows.

`SelectPoll` takes its place, for the few sockets of a client.
"""

import select
import socket
from typing import Final

POLLIN: Final = 1
POLLOUT: Final = 4


class SelectPoll:
    """The part of `select.poll` that a client uses, on `select.select`."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, connection: socket.socket, events: int) -> None:
        """Report these events of a socket from now on."""
        self._events[connection.fileno()] = events

    modify = register

    def unregister(self, connection: socket.socket) -> None:
        """Report nothing of a socket any more."""
        del self._events[connection.fileno()]

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        """Wait for events; return the ready descriptors with theirs."""
        events = dict(self._events)
        writing = [each for each, kinds in events.items() if kinds & POLLOUT]
        # On Windows a connection that failed is in the third list alone.
        readable, writable, failed = select.select(
            list(events), writing, list(events), milliseconds / 1000
        )
        return [(each, events[each]) for each in {*readable, *writable, *failed}]
