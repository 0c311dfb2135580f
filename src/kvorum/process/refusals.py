"""Why a start was refused: the title of its one line in the log, and a text that says what to do.

Everything that an operator can put right is an error of `REFUSALS`; any other error is a defect.
"""

import errno

from kvorum.backend import BackendError
from kvorum.member.errors import StartRefused
from kvorum.membership.bootstrap import BootstrapError
from kvorum.settings.config import ConfigError
from kvorum.wal import WalError


class AddressRefusedError(ConfigError):
    """An address that this server cannot listen at."""


class TlsRefusedError(ConfigError):
    """A TLS file that cannot be used."""


class DirectoryRefusedError(ConfigError):
    """A data directory that this server must not or cannot use."""


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

_ADVICE = {
    errno.EACCES: "give the user that this process runs as the right to it",
    errno.EPERM: "give the user that this process runs as the right to it",
    errno.EROFS: "the disk is mounted read-only: mount it writable, or name another place",
    errno.ENOSPC: "the disk is full: free some space, or name a place on another disk",
    errno.EDQUOT: "the user's disk quota is used up: free some space, or raise the quota",
    errno.ENOTDIR: "a part of the path is a file: name another place, or move the file away",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE=)",
}


def title_of(error: Exception) -> str:
    """Return what was refused, in a few words."""
    return next(title for kind, title in _TITLES if isinstance(error, kind))


def text_of(error: Exception) -> str:
    """Return the reason; a bare error of the system is told with its file and what to do."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return system_text(error)


def system_text(error: OSError) -> str:
    """Return an error of the system as a text: the file, the reason, what to do."""
    reason = error.strerror or str(error)
    text = f"{error.filename}: {reason.lower()}" if error.filename else reason
    advice = _ADVICE.get(error.errno or 0)
    return f"{text}; {advice}" if advice else text
