"""Error messages of the command line, in etcdutl's words where it has some."""

from kvorum.backend import BackendError
from kvorum.cli.errors import CommandError
from kvorum.snap import SnapError
from kvorum.wal import WalError


def failure_of(error: Exception) -> CommandError | None:
    """Return the message for an error, or None for a bug of this program."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return CommandError(f"open {error.filename}: {error.strerror.lower()}")
    if isinstance(error, BackendError | OSError | SnapError | WalError):
        return CommandError(str(error))
    return None
