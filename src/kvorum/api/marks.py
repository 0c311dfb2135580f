"""Rare paths report by name that they were taken, to a listener if there is one.

Code that is seldom reached is seldom tested. `mark` names such a place; the simulator listens, and
reports which names its runs have reached. While nobody listens a mark costs a call, so it does not
belong in a loop.
"""

from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def mark(name: str) -> None:
    """Report that a place was reached."""
    if _listener is not None:
        _listener(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Call a listener, in place of any before, with the name of every mark; None: no listener."""
    global _listener
    _listener = listener
