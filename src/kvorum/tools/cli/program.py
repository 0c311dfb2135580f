"""Run a tool: parse its command line, run the command, return an exit code.

Only the commands that need a module import it, so that `version` is as fast as Python's start.
"""

from __future__ import annotations

import sys

from kvorum.tools.cli.errors import CommandError, UsageError
from kvorum.tools.cli.parsing import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kvorum.tools.cli.commands import Command
    from kvorum.tools.cli.invocation import Invocation
    from kvorum.tools.cli.parsing import Given


class Program:
    """A tool: its commands, and how it starts them and handles their failures."""

    __slots__ = ("_failures", "_invocation", "_repeats_misuse", "root")

    def __init__(
        self,
        root: Command,
        invocation: Callable[[Command, Given], Invocation],
        failures: str,
        *,
        repeats_misuse: bool = False,
    ) -> None:
        """Make a tool.

        `failures` names a function as `package.module:function` that turns an exception into a
        CommandError, or returns None if the exception is a bug. With `repeats_misuse`, the
        tool repeats the text of a UsageError below the usage.
        """
        self.root = root
        self._invocation = invocation
        self._failures = failures
        self._repeats_misuse = repeats_misuse

    def main(self) -> None:
        """Run the command line of this process, and exit."""
        # Print bytes of an argument that are not UTF-8 as they were given.
        sys.stderr.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
        code = self.run(sys.argv[1:])
        import gc

        # Skip the garbage collection at exit, which takes as long as a call to a server.
        gc.freeze()
        sys.exit(code)

    def run(self, words: Sequence[str]) -> int:
        """Run a command line; return its exit code."""
        try:
            return self.execute(words)
        except BrokenPipeError:
            _die("SIGPIPE")
        except KeyboardInterrupt:
            _die("SIGINT")
        return 0

    def execute(self, words: Sequence[str]) -> int:
        """Run a command line; return its exit code, or let interruptions propagate."""
        try:
            given = parse(self.root, words)
            if given.is_help_asked or not given.command.run:
                from kvorum.tools.cli.about import print_help

                print_help(given.command)
                return 0
            _function(given.command.run)(self._invocation(self.root, given))
            sys.stdout.flush()
        except UsageError as error:
            sys.stderr.write(f"Error: {error}\n{error.usage}")
            if self._repeats_misuse:
                sys.stderr.write(f"Error: {error}\n")
            return 1
        except CommandError as error:
            return _fail(error)
        except BrokenPipeError:
            raise
        except Exception as error:
            failure = _function(self._failures)(error)
            if failure is None:
                raise
            return _fail(failure)
        return 0


def _fail(error: CommandError) -> int:
    # Keep the error behind the output that precedes it.
    sys.stdout.flush()
    text = f"Hint: {error.hint}\nError: {error}" if error.hint else f"Error: {error}"
    if sys.stderr.isatty():
        from kvorum.tools.cli.text import printable

        # The text may hold data from a server or a store.
        text = printable(text, kept="\n\t")
    sys.stderr.write(f"{text}\n")
    return error.code


def _function(name: str) -> Callable[[Any], Any]:
    from importlib import import_module

    module, _, function = name.partition(":")
    found: Callable[[Any], Any] = getattr(import_module(module), function)
    return found


def _die(name: str) -> None:
    """End the process by the default action of a signal."""
    import os
    import signal

    number = getattr(signal, name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
