"""Makes, recognises and checks copies of a database file, for members with the same file format.

A copy is an LMDB file of one commit, without free pages. A member checks every page and every
checksum of a copy from another member before using it (`kvorum.storage.backend.pages`).
"""

import sys
from struct import calcsize
from typing import Final

from kvorum.storage.backend.directory import FORMAT_VERSION
from kvorum.storage.backend.encoding import CHECKSUM_BYTES, parse_stored
from kvorum.storage.backend.environment import Environments
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.backend.opening import begin_view
from kvorum.storage.backend.pages import (
    HEAD_BYTES,
    PageError,
    check_pages,
    is_database,
    read_commits,
)
from kvorum.storage.files import Files, Opening

COPY_FORMAT: Final = f"{FORMAT_VERSION}-lmdb-1-{sys.byteorder}-{8 * calcsize('P')}"
"""The properties that two members must share to exchange copies."""


class CopyError(BackendError):
    """Raised for a damaged copy."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the copy of a database is damaged: {problem}")


class Copying:
    """A view of the newest commit, held for a copy; create and end it on the loop."""

    __slots__ = ("_environment", "_environments", "view")

    def __init__(
        self, files: Files, environments: Environments, directory: str, scan_entries: int
    ) -> None:
        self._environments = environments
        self._environment, self.view = begin_view(
            files, environments, directory, scan_entries, checks=False
        )

    def write(self, files: Files, path: str) -> int:
        """Write the copy to a new file, off the loop, without a sync; return its length."""
        if files.exists(path):
            files.unlink(path)
        descriptor = files.open(path, Opening.CREATE)
        try:
            transaction = self.view.transaction
            self._environments.export(self._environment, transaction, path, descriptor)
            return files.size(descriptor)
        finally:
            files.close(descriptor)

    def end(self) -> None:
        """Release the commit."""
        self.view.end()
        self._environment.close()


def is_copy(files: Files, path: str) -> bool:
    """Return whether a received file is a copy of a database, and not one of etcd's files."""
    descriptor = files.open(path, Opening.READ)
    try:
        return is_database(files.pread(descriptor, 0, HEAD_BYTES))
    finally:
        files.close(descriptor)


def check_copy(files: Files, descriptor: int, native: NativeRows | None) -> dict[bytes, bytes]:
    """Raise CopyError if a file is not a whole copy with the buckets of a member.

    Returns the entries of bucket `meta`.
    """
    try:
        commits = read_commits(files, descriptor)
        length, expected = files.size(descriptor), commits[-1].page_count * commits[-1].page_bytes
        if length != expected:
            raise PageError(f"it has {length} bytes and should have {expected}")
        if any(commit.has_free_pages for commit in commits):
            raise PageError("it has free pages")
        found = check_pages(files, descriptor, commits[-1], native, is_copy=True)
    except PageError as error:
        raise CopyError(str(error)) from None
    return dict(parse_stored(key, sealed[:-CHECKSUM_BYTES]) for key, sealed in found)


def check_received(files: Files, path: str, native: NativeRows | None) -> None:
    """Open the file of this name and check it with `check_copy`."""
    descriptor = files.open(path, Opening.READ)
    try:
        check_copy(files, descriptor, native)
    finally:
        files.close(descriptor)
