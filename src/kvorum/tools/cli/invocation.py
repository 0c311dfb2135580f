"""A running command: its flags and arguments, and its output."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.tools.cli.commands import Command
    from kvorum.tools.cli.output import ResultOutput
    from kvorum.tools.cli.parsing import Given


class Invocation:
    """One run of a command."""

    __slots__ = ("_output", "arguments", "given", "root")

    def __init__(self, root: Command, given: Given) -> None:
        self.root = root
        self.given = given
        self.arguments = given.arguments
        self._output: ResultOutput | None = None

    # Flags and arguments.

    def text(self, name: str) -> str:
        """Return a flag that is text."""
        value = self.given.values[name]
        assert isinstance(value, str)
        return value

    def texts(self, name: str) -> list[str]:
        """Return a flag that is a list."""
        value = self.given.values[name]
        assert isinstance(value, list)
        return value

    def number(self, name: str) -> int:
        """Return a flag that is a number, or a duration in nanoseconds."""
        value = self.given.values[name]
        assert isinstance(value, int)
        return value

    def switch(self, name: str) -> bool:
        """Return a flag that is a boolean."""
        value = self.given.values[name]
        assert isinstance(value, bool)
        return value

    def seconds(self, name: str) -> float:
        """Return a flag that is a duration, in seconds."""
        return self.number(name) / 1e9

    def require_flags(self, *names: str) -> None:
        """Refuse a command line without these flags."""
        missing = [f'"{name}"' for name in sorted(names) if name not in self.given.changed]
        if missing:
            self.refuse(f"required flag(s) {', '.join(missing)} not set")

    def require_arguments(self, count: int) -> None:
        """Refuse a command line with another number of arguments."""
        if len(self.arguments) != count:
            self.refuse(f"accepts {count} arg(s), received {len(self.arguments)}")

    def refuse(self, text: str) -> None:
        """Raise UsageError with this text and the usage of the command."""
        from kvorum.tools.cli.errors import UsageError
        from kvorum.tools.cli.help import usage_text

        raise UsageError(text, f"{usage_text(self.given.command)}\n")

    # Results.

    def output_line(self, text: str) -> None:
        """Print a line of text in any format; escape control characters for a terminal."""
        if sys.stdout.isatty():
            from kvorum.tools.cli.text import printable

            text = printable(text, kept="\n\t")
        sys.stdout.write(f"{text}\n")

    @property
    def output(self) -> ResultOutput:
        """The output for results; raises CommandError if the format does not exist."""
        if self._output is None:
            from kvorum.tools.cli.output import check_format

            self.configure()
            check_format(self.text("write-out"))
            self._output = self.make_output()
        return self._output

    def configure(self) -> None:
        """Apply settings from outside the command line; a tool that has some overrides this."""

    def make_output(self) -> ResultOutput:
        """Return an output in the format that `--write-out` names."""
        from kvorum.tools.cli.output import ResultOutput

        return ResultOutput(self.text("write-out"))
