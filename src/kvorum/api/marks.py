"""Coverage points: rare paths report by name that they were taken, to a listener if there is one.

Code that seldom runs is seldom tested. `mark` names such a path; the simulator listens, and reports
the names that its runs have reached. Without a listener a mark costs one call, so it does not
belong in a loop.
"""

from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def mark(name: str) -> None:
    """Report that a coverage point was reached."""
    if _listener is not None:
        _listener(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Replace the listener, which gets the name of every mark; None removes it."""
    global _listener
    _listener = listener
