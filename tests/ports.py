"""Ports for the servers of tests."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port for a server of this machine, which may come, go and come again.

    It is bound but not listened at, with the same option as servers use: they can bind it, and
    whoever asks for any free port does not get it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Hold several ports, as `held_port` does."""
    with ExitStack() as held:
        yield [held.enter_context(held_port()) for _ in range(count)]
