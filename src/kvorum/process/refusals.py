"""Why a start was refused: the title of its one line in the log, and a text that says what to do.

Everything that an operator can put right is an error of `REFUSALS`; any other error is a defect.
"""

from kvorum.backend import BackendError
from kvorum.member.errors import StartRefused
from kvorum.membership.bootstrap import BootstrapError
from kvorum.process.refused import (
    AddressRefusedError,
    DirectoryRefusedError,
    TlsRefusedError,
    system_text,
)
from kvorum.settings.config import ConfigError
from kvorum.wal import WalError

_TITLES: tuple[tuple[type[Exception], str], ...] = (
    (AddressRefusedError, "cannot listen"),
    (TlsRefusedError, "a TLS file cannot be used"),
    (DirectoryRefusedError, "the data directory cannot be used"),
    (ConfigError, "a flag cannot be used"),
    (BootstrapError, "the member does not fit the cluster"),
    (StartRefused, "the data directory cannot be used"),
    (BackendError, "the database cannot be opened"),
    (WalError, "the write-ahead log cannot be opened"),
    (OSError, "the system refused"),
)
"""The first that an error is one of counts."""

REFUSALS = tuple(kind for kind, _ in _TITLES)


def title_of(error: Exception) -> str:
    """Return what was refused, in a few words."""
    return next(title for kind, title in _TITLES if isinstance(error, kind))


def text_of(error: Exception) -> str:
    """Return the reason; a bare error of the system is told with its file and what to do."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return system_text(error)
