"""Prompts for passwords, answered by a person at a terminal or by a script in a pipe."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError

INTERRUPTED_CODE = 255


def ask_password(prompt: str) -> str:
    """Prompt for a password, which the terminal does not show.

    The prompt goes to the standard output, and the answer is a line of the standard input, even if
    these are no terminal. The end of the input is an empty answer.
    """
    try:
        with _hidden_input():
            # Prompt only when the echo is off, because an answer may come at once.
            sys.stdout.write(prompt)
            sys.stdout.flush()
            line = sys.stdin.buffer.readline()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_CODE) from None
    except OSError as error:
        raise CommandError(f"failed to ask password: {error}", BAD_ARGUMENTS) from error
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()
    return line.decode("utf-8", "surrogateescape").strip()


def new_password(name: str, *, is_asked: bool) -> str:
    """Return a user's new password: prompted for twice, or a word of the standard input."""
    if not is_asked:
        words = sys.stdin.buffer.readline().split()
        return words[0].decode("utf-8", "surrogateescape") if words else ""
    first = ask_password(f"Password of {name}: ")
    if not first:
        raise CommandError("empty password", BAD_ARGUMENTS)
    if first != ask_password(f"Type password of {name} again for confirmation: "):
        raise CommandError("given passwords are different", BAD_ARGUMENTS)
    return first


@contextmanager
def _hidden_input() -> Iterator[None]:
    """Turn off the terminal's echo in the block; restore its settings afterwards."""
    import termios

    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (termios.error, OSError, ValueError):
        # A pipe or a file has no echo.
        yield
        return
    hidden = list(before)
    hidden[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
