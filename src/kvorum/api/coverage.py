"""Coverage points: rare paths report by name that they were taken, to a listener if there is one.

Code that seldom runs is seldom tested. `reach` names such a path, a coverage point; the simulator
listens, and reports the points that its runs have reached. Without a listener a point costs one
call, so it does not belong in a loop.
"""

from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def reach(name: str) -> None:
    """Report that a coverage point was reached."""
    if _listener is not None:
        _listener(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Replace the listener, which gets the name of every mark; None removes it."""
    global _listener
    _listener = listener
