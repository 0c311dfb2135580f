"""Rare paths say by name that they were taken, to whoever wants to know.

Code that is seldom reached is seldom tested. `mark` names such a place; the simulator listens, and
tells which names its runs have come by. While nobody listens a mark costs a call, so it does not
belong into a loop.
"""

from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def mark(name: str) -> None:
    """Say that a place was reached."""
    if _listener is not None:
        _listener(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Let one listener, in place of any before, be told of every mark; None: nobody."""
    global _listener
    _listener = listener
