"""Errors that end a command, with the exit codes of etcd's tools."""

GENERAL = 1
BAD_CONNECTION = 2
INVALID_INPUT = 3
BAD_FEATURE = 4
INTERRUPTED = 5
BAD_ARGUMENTS = 128


class CommandError(Exception):
    """An error text for the user, and the exit code.

    `hint` is printed before the text: it names the cause behind etcd's words, and what to do.
    """

    def __init__(self, text: str, code: int = GENERAL, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint


class UsageError(Exception):
    """A command line that cannot be parsed; `usage` shows the correct form."""

    def __init__(self, text: str, usage: str) -> None:
        super().__init__(text)
        self.usage = usage
