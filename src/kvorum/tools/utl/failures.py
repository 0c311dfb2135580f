"""Error messages of the command line, in etcdutl's words where it has some."""

from kvorum.storage.backend import BackendError
from kvorum.storage.snap import SnapError
from kvorum.storage.wal import WalError
from kvorum.tools.cli.errors import CommandError


def failure_of(error: Exception) -> CommandError | None:
    """Return the message for an error, or None for a bug of this program."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return CommandError(f"open {error.filename}: {error.strerror.lower()}")
    if isinstance(error, BackendError | OSError | SnapError | WalError):
        return CommandError(str(error))
    return None
