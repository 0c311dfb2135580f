"""Where archives are stored: objects by name, each of them whole or absent.

A store has no directories and changes nothing in place. An object is durable when `write` or `keep`
has returned. `clean` removes the temporary files of killed programs, unless another program is
still using them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from secrets import token_hex
from typing import Protocol

from kvorum.storage.files import Files, Opening
from kvorum.tools.backup.errors import ArchiveError, StoreError

PIECE_BYTES = 1 << 20
_TEMPORARY = "tmp."


class Spool:
    """A new local file under a temporary name."""

    def __init__(self, files: Files, path: str, descriptor: int) -> None:
        self.files = files
        self.path = path
        self._descriptor = descriptor
        self.size = 0

    def add(self, data: bytes) -> None:
        """Append data."""
        self.files.pwrite(self._descriptor, self.size, data)
        self.size += len(data)

    def sync(self) -> None:
        """Make the file durable."""
        self.files.fdatasync(self._descriptor)


class ArchiveStore(Protocol):
    """The objects of one archive. Every failure is a StoreError."""

    def sizes(self) -> dict[str, int]:
        """Return the names of all objects in ascending order, with their sizes."""

    def read(self, name: str, take: Callable[[bytes], object]) -> None:
        """Pass the content of an object to `take`, piece by piece."""

    def write(self, name: str, data: bytes) -> None:
        """Create an object with this content, or replace the one of this name."""

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""

    def spool(self) -> AbstractContextManager[Spool]:
        """Create a local file that may become an object; otherwise the block removes it."""

    def keep(self, spool: Spool, name: str) -> None:
        """Turn a file into an object."""

    def local(self, name: str) -> AbstractContextManager[tuple[Files, str]]:
        """Provide a local file with the content of an object, during the block."""

    def clean(self) -> None:
        """Remove temporary files of killed programs."""


def read_whole(store: ArchiveStore, name: str) -> bytes:
    """Return the content of a small object."""
    pieces: list[bytes] = []
    store.read(name, pieces.append)
    return b"".join(pieces)


def write_verified(store: ArchiveStore, name: str, data: bytes) -> None:
    """Write an object and read it back; if it differs, delete it and raise StoreError."""
    store.write(name, data)
    if read_whole(store, name) != data:
        store.delete(name)
        raise StoreError(f"{name} was read back, and is not what was written")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn OSErrors into StoreErrors."""
    try:
        yield
    except OSError as error:
        raise StoreError(str(error)) from error


class DirectoryStore:
    """An archive in a directory of its own, which is created if it is missing."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path.rstrip("/") or "/"

    def __str__(self) -> str:
        return self._path

    def _in(self, name: str) -> str:
        return "/".join((self._path, name))

    def sizes(self) -> dict[str, int]:
        """Return the names of all objects, with their sizes."""
        with _translate_errors():
            files = self._files
            if not files.exists(self._path):
                return {}
            names = [name for name in files.list(self._path) if not name.startswith(_TEMPORARY)]
            return {name: size for name in names if (size := self._size(name)) is not None}

    def _size(self, name: str) -> int | None:
        try:
            descriptor = self._files.open(self._in(name), Opening.READ)
        except FileNotFoundError:
            return None  # another program rotates at the same time
        try:
            return self._files.size(descriptor)
        finally:
            self._files.close(descriptor)

    def read(self, name: str, take: Callable[[bytes], object]) -> None:
        """Pass the content of an object to `take`, piece by piece."""
        with _translate_errors():
            files = self._files
            descriptor = files.open(self._in(name), Opening.READ)
            try:
                offset = 0
                while piece := files.pread(descriptor, offset, PIECE_BYTES):
                    offset += len(piece)
                    take(piece)
            finally:
                files.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Create an object with this content."""
        with self.spool() as spool:
            with _translate_errors():
                spool.add(data)
                spool.sync()
            self.keep(spool, name)

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with _translate_errors():
            try:
                self._files.unlink(self._in(name))
            except FileNotFoundError:
                return
            self._files.sync_directory(self._path)

    @contextmanager
    def spool(self) -> Iterator[Spool]:
        """Create a temporary file in the directory, locked while this program uses it."""
        files = self._files
        path = self._in(f"{_TEMPORARY}{token_hex(8)}")
        with _translate_errors():
            self._make_directory()
            descriptor = files.open(path, Opening.CREATE)
        try:
            with _translate_errors():
                files.lock(descriptor)
            yield Spool(files, path, descriptor)
        finally:
            with _translate_errors():
                # Unlink before the close releases the lock, so that no other program can remove the
                # file.
                if files.exists(path):
                    files.unlink(path)
                files.close(descriptor)

    def keep(self, spool: Spool, name: str) -> None:
        """Rename a file to the object's name."""
        with _translate_errors():
            self._files.rename(spool.path, self._in(name))
            self._files.sync_directory(self._path)

    @contextmanager
    def local(self, name: str) -> Iterator[tuple[Files, str]]:
        """Provide the object's own file."""
        yield self._files, self._in(name)

    def clean(self) -> None:
        """Remove temporary files that no program has locked."""
        with _translate_errors():
            files = self._files
            if not files.exists(self._path):
                return
            for name in files.list(self._path):
                if name.startswith(_TEMPORARY):
                    self._remove_unlocked(self._in(name))

    def _remove_unlocked(self, path: str) -> None:
        files = self._files
        try:
            descriptor = files.open(path, Opening.WRITE)
        except FileNotFoundError:
            return
        try:
            if files.lock(descriptor) and files.exists(path):
                files.unlink(path)
        finally:
            files.close(descriptor)

    def _make_directory(self) -> None:
        files = self._files
        missing = []
        path = self._path
        while not files.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        for each in reversed(missing):
            files.make_directory(each)
            files.sync_directory(each.rpartition("/")[0] or ("/" if each.startswith("/") else "."))


def check_location(location: str) -> None:
    """Refuse an impossible archive location without opening it; raise ArchiveError."""
    if location.startswith("s3://"):
        if find_spec("botocore") is None:
            raise ArchiveError("s3:// needs botocore: install it with the extra kvorum[s3]")
    elif not location or "://" in location:
        raise ArchiveError(
            f"{location!r} is no location for backups: expected a directory, or s3://bucket/prefix"
        )


def open_store(location: str) -> ArchiveStore:
    """Return the store of a directory or of an `s3://` URL; raise ArchiveError if it is invalid."""
    check_location(location)
    if location.startswith("s3://"):
        from kvorum.tools.backup.s3 import S3Store

        return S3Store.of_url(location)
    from kvorum.storage.files.real import RealFiles

    return DirectoryStore(RealFiles(), location)
