"""The `kvorumctl` command: from arguments to an exit code.

Commands, flags, outputs and exit codes are etcdctl's where etcdctl has them. What only some
commands need is imported by those: `version` is there as soon as Python is.
"""

from __future__ import annotations

import sys

from kvorum.cli.errors import CommandError, UsageError
from kvorum.cli.parsing import parse
from kvorum.ctl.commands import ROOT
from kvorum.ctl.invocation import Invocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main() -> None:
    """Run the command."""
    # Bytes of an argument that are no text are told as they were given.
    sys.stderr.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run a command line; return its exit code."""
    try:
        return execute(words)
    except BrokenPipeError:
        _die("SIGPIPE")
    except KeyboardInterrupt:
        _die("SIGINT")
    return 0


def execute(words: Sequence[str]) -> int:
    """Run a command line; return its exit code, or let an interruption pass."""
    try:
        given = parse(ROOT, words)
        if given.is_help_asked or not given.command.run:
            from kvorum.ctl.about import print_help

            print_help(given.command)
            return 0
        _function(given.command.run)(Invocation(ROOT, given))
        sys.stdout.flush()
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n{error.usage}")
        return 1
    except CommandError as error:
        return _fail(error)
    except Exception as error:
        from kvorum.ctl.failures import failure_of

        failure = failure_of(error)
        if failure is None:
            raise
        return _fail(failure)
    return 0


def _fail(error: CommandError) -> int:
    # What was printed before comes before.
    sys.stdout.flush()
    text = f"Hint: {error.hint}\nError: {error}" if error.hint else f"Error: {error}"
    if sys.stderr.isatty():
        from kvorum.cli.text import printable

        # Some of it may come from a server, or from a store.
        text = printable(text, kept="\n\t")
    sys.stderr.write(f"{text}\n")
    return error.code


def _function(name: str) -> Callable[[Invocation], None]:
    from importlib import import_module

    module, _, function = name.partition(":")
    found: Callable[[Invocation], None] = getattr(import_module(module), function)
    return found


def _die(name: str) -> None:
    """End as a program ends that does not know the signal."""
    import os
    import signal

    number = getattr(signal, name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
