"""Why a command was refused or failed, with the exit code that etcd's tools have for it."""

GENERAL = 1
BAD_FEATURE = 4
INTERRUPTED = 5
BAD_ARGUMENTS = 128


class UtlError(Exception):
    """What the user is told, and the exit code."""

    def __init__(self, text: str, code: int = GENERAL) -> None:
        super().__init__(text)
        self.code = code
