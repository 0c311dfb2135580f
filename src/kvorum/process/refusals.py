"""Describe a refused start: the title of its log line, and a text with advice.

Every error that an operator can correct has a type in `REFUSALS`; any other error is a defect.
"""

from kvorum.member.errors import StartRefused
from kvorum.process.settings.config import ConfigError
from kvorum.process.start_errors import (
    AddressRefusedError,
    DirectoryRefusedError,
    TlsRefusedError,
    system_text,
)
from kvorum.state.membership.bootstrap import ClusterSettingsError
from kvorum.storage.backend import BackendError
from kvorum.storage.wal import WalError

_TITLES: tuple[tuple[type[Exception], str], ...] = (
    (AddressRefusedError, "cannot listen"),
    (TlsRefusedError, "a TLS file cannot be used"),
    (DirectoryRefusedError, "the data directory cannot be used"),
    (ConfigError, "a flag cannot be used"),
    (ClusterSettingsError, "the member does not fit the cluster"),
    (StartRefused, "the data directory cannot be used"),
    (BackendError, "the database cannot be opened"),
    (WalError, "the write-ahead log cannot be opened"),
    (OSError, "the system refused"),
)
"""The first row that matches an error counts."""

REFUSALS = tuple(kind for kind, _ in _TITLES)


def title_of(error: Exception) -> str:
    """Return a short title for an error of `REFUSALS`."""
    return next(title for kind, title in _TITLES if isinstance(error, kind))


def text_of(error: Exception) -> str:
    """Return the reason; for a bare OSError, add its file and advice."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return system_text(error)
