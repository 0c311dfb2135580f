"""Errors that refuse a start, and texts for system errors that advise what to do.

This module is separate from `refusals` for programs that run no member, because `refusals` imports
many modules, which is slow.
"""

import errno

from kvorum.process.settings.config import ConfigError


class AddressRefusedError(ConfigError):
    """An address that this server cannot listen at."""


class TlsRefusedError(ConfigError):
    """A TLS file that cannot be used."""


class DirectoryRefusedError(ConfigError):
    """A data directory that this server must not or cannot use."""


_ADVICE = {
    errno.EACCES: "give the user that this process runs as the right to it",
    errno.EPERM: "give the user that this process runs as the right to it",
    errno.EROFS: "the disk is mounted read-only: mount it writable, or name another place",
    errno.ENOSPC: "the disk is full: free some space, or name a place on another disk",
    errno.EDQUOT: "the user's disk quota is used up: free some space, or raise the quota",
    errno.ENOTDIR: "a part of the path is a file: name another place, or move the file away",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE=)",
}


def system_text(error: OSError) -> str:
    """Return an OSError as text: the file, the reason, and advice if there is any."""
    reason = error.strerror or str(error)
    text = f"{error.filename}: {reason.lower()}" if error.filename else reason
    advice = _ADVICE.get(error.errno or 0)
    return f"{text}; {advice}" if advice else text
