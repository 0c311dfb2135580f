"""What members log, as lines of the trace."""

from sim.world import World


class CollectedLogs:
    """A logger whose messages go into the trace, marked with their level."""

    __slots__ = ("_name", "_world")

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def debug(self, message: str) -> None:
        """Leave it out: it repeats the messages in the trace."""

    def info(self, message: str) -> None:
        """Take a message."""
        self._line("I", message)

    def warning(self, message: str) -> None:
        """Take a message."""
        self._line("W", message)

    def error(self, message: str) -> None:
        """Take a message."""
        self._line("E", message)

    def critical(self, message: str) -> None:
        """Take a message."""
        self._line("C", message)

    def _line(self, level: str, message: str) -> None:
        trace = self._world.trace
        if trace is not None:
            trace.line(self._world.now, self._name, f"{level} {message}")
