"""The commands `version`, `options` and `help`."""

from __future__ import annotations

import sys

from kvorum import __version__
from kvorum.tools.cli import API_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.tools.cli.commands import Command
    from kvorum.tools.cli.invocation import Invocation


def version(invocation: Invocation) -> None:
    """Print the version."""
    invocation.output_line(f"{invocation.root.name} version: {__version__}")
    invocation.output_line(f"API version: {API_VERSION}")


def options(invocation: Invocation) -> None:
    """Print the flags that all commands take."""
    from kvorum.tools.cli.help import flags_text

    invocation.output_line("The following options can be passed to any command:\n")
    invocation.output_line(flags_text(invocation.root.passed_on).rstrip("\n"))


def show_help(invocation: Invocation) -> None:
    """Print the help of a command."""
    from kvorum.tools.cli.help import usage_text

    command = invocation.root
    for word in invocation.arguments:
        child = command.child(word)
        if child is None:
            topic = " ".join(f"`{each}`" for each in invocation.arguments)
            sys.stderr.write(f"Unknown help topic [{topic}]\n{usage_text(invocation.root)}")
            return
        command = child
    print_help(command)


def print_help(command: Command) -> None:
    """Print the full help of a command."""
    from kvorum.tools.cli.help import help_text

    sys.stdout.write(help_text(command))
