"""Why a command was refused or failed, with the exit codes that etcd's tools have."""

GENERAL = 1
BAD_CONNECTION = 2
INVALID_INPUT = 3
BAD_FEATURE = 4
INTERRUPTED = 5
BAD_ARGUMENTS = 128


class CommandError(Exception):
    """What the user is told, and the exit code.

    `hint` is a sentence before it: what happened behind etcd's words, and what to do.
    """

    def __init__(self, text: str, code: int = GENERAL, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint


class UsageError(Exception):
    """A command line that cannot be read; `usage` tells how it should have been."""

    def __init__(self, text: str, usage: str) -> None:
        super().__init__(text)
        self.usage = usage
