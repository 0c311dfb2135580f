"""The members' log messages, as lines of the trace."""

from kvorum.sim.world import World


class CollectedLogs:
    """A logger whose messages go into the trace, marked with their level."""

    __slots__ = ("_name", "_world")

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def debug(self, message: str, /, **fields: object) -> None:
        """Leave the message out: the trace has the member's messages, which say the same."""

    def info(self, message: str, /, **fields: object) -> None:
        """Add a message to the trace."""
        self._line("I", message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Add a message to the trace."""
        self._line("W", message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Add a message to the trace."""
        self._line("E", message, fields)

    def critical(self, message: str, /, **fields: object) -> None:
        """Add a message to the trace."""
        self._line("C", message, fields)

    def _line(self, level: str, message: str, fields: dict[str, object]) -> None:
        trace = self._world.trace
        if trace is not None:
            named = "".join(f" {name}={value}" for name, value in fields.items())
            trace.line(self._world.now, self._name, f"{level} {message}{named}")
