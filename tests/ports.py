"""Ports for the servers of tests."""

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kvorum.testing.ports import Ports

# Those that tests have used stay bound for a while: a program that still looks for its server is
# refused, and does not find the server of another test.
_ports = Ports()
atexit.register(_ports.close)


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port for a server of this machine, which may come, go and come again.

    It is bound but not listened at, with the same option as servers use: they can bind it, and
    whoever asks for any free port does not get it.
    """
    port = _ports.reserve()
    try:
        yield port
    finally:
        _ports.release(port)


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Hold several ports, as `held_port` does."""
    with ExitStack() as held:
        yield [held.enter_context(held_port()) for _ in range(count)]
