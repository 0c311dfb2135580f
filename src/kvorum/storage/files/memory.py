"""A disk in memory that reports every call before it takes effect, fails, fills up and loses power.

A power cut may lose, keep or tear unsynced changes: each sector of each write since the last sync,
each change of a length, and each change of a name survives independently. A file system with a
journal is less harsh, so code that recovers here recovers there. The disk is deterministic: the
caller decides which changes survive, for example by a seed.
"""

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from kvorum.storage.files.interface import Opening

SECTOR_BYTES = 512

Survives = Callable[[], bool]


class DiskCall(NamedTuple):
    """One call that changes the disk or makes a change durable."""

    name: str
    path: str
    offset: int = 0
    length: int = 0


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Length(NamedTuple):
    length: int


class _MemoryFile:
    """Applying `durable` and then `pending`, in order, gives `content`."""

    __slots__ = ("content", "durable", "locked", "pending", "sync_failed")

    def __init__(self, durable: bytes = b"") -> None:
        self.content = bytearray(durable)
        self.durable = durable
        self.pending: list[_Write | _Length] = []
        self.locked = 0  # the descriptor that holds the lock
        # After a failed sync the system drops the pending writes: readers still see the data, but
        # it never becomes durable unless it is written again.
        self.sync_failed = False

    def change(self, change: _Write | _Length) -> None:
        self.pending.append(change)
        _apply(self.content, change)

    def sync(self) -> None:
        if self.sync_failed:
            durable = bytearray(self.durable)
            for change in self.pending:
                _apply(durable, change)
            self.durable = bytes(durable)
        else:
            self.durable = bytes(self.content)
        self.pending.clear()

    def fail_sync(self) -> None:
        self.sync_failed = True
        self.pending.clear()

    def flip(self, offset: int, mask: int) -> None:
        self.content[offset] ^= mask
        self.durable = _flipped(self.durable, offset, mask)
        for place, change in enumerate(self.pending):
            if isinstance(change, _Write):
                data = _flipped(change.data, offset - change.offset, mask)
                self.pending[place] = _Write(change.offset, data)

    def after_power_cut(self, survives: Survives) -> "_MemoryFile":
        content = bytearray(self.durable)
        for change in self.pending:
            if isinstance(change, _Length):
                if survives():
                    _apply(content, change)
                continue
            offset, data = change
            start = 0
            while start < len(data):
                end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
                if survives():
                    _apply(content, _Write(offset + start, data[start:end]))
                start = end
        return _MemoryFile(bytes(content))


def _apply(content: bytearray, change: _Write | _Length) -> None:
    if isinstance(change, _Length):
        length = change.length
        del content[length:]
    else:
        length = change.offset
    content.extend(bytes(max(0, length - len(content))))
    if isinstance(change, _Write):
        content[change.offset : change.offset + len(change.data)] = change.data


def _flipped(data: bytes, offset: int, mask: int) -> bytes:
    if not 0 <= offset < len(data):
        return data
    return data[:offset] + bytes((data[offset] ^ mask,)) + data[offset + 1 :]


class _Directory:
    """Applying `durable` and then `pending`, in order, gives `names`."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, _MemoryFile | _Directory] = {}
        self.durable: dict[str, _MemoryFile | _Directory] = {}
        # (old name, new name, node); None as old name adds a name, None as new name removes it.
        self.pending: list[tuple[str | None, str | None, _MemoryFile | _Directory]] = []

    def change(self, old: str | None, new: str | None, node: "_MemoryFile | _Directory") -> None:
        self.pending.append((old, new, node))
        _exchange(self.names, old, new, node)

    def after_power_cut(self, survives: Survives) -> "_Directory":
        names = dict(self.durable)
        for old, new, node in self.pending:
            if survives():
                _exchange(names, old, new, node)
        image = _Directory()
        image.names = {name: node.after_power_cut(survives) for name, node in names.items()}
        image.durable = dict(image.names)
        return image


def _exchange(
    names: "dict[str, _MemoryFile | _Directory]",
    old: str | None,
    new: str | None,
    node: "_MemoryFile | _Directory",
) -> None:
    if old is not None:
        names.pop(old, None)
    if new is not None:
        names[new] = node


class _Opened(NamedTuple):
    path: str
    file: _MemoryFile
    opening: Opening


class MemoryFiles:
    """Files in memory.

    Every call that changes or syncs something is passed to `before` before it takes effect.
    `before` may record the call, take an image with `after_power_cut`, or raise: an OSError as a
    disk does, or another exception to stop the run there. A write that fails with an OSError still
    writes the sectors of its first half. `bytes_max` is the size of the disk.
    """

    __slots__ = ("_next", "_opened", "_root", "before", "bytes_max")

    def __init__(self, before: Callable[[DiskCall], None] | None = None) -> None:
        self.before = before
        self.bytes_max: int | None = None
        self._root = _Directory()
        self._opened: dict[int, _Opened] = {}
        self._next = 3

    def after_power_cut(self, survives: Survives) -> "MemoryFiles":
        """Return the disk as a power cut now would leave it.

        `survives` decides for every written sector and every change of a length or a name that is
        not durable.
        """
        image = MemoryFiles()
        image._root = self._root.after_power_cut(survives)
        return image

    def kill(self) -> None:
        """Close all files, as the end of the process does; keep everything written."""
        for descriptor in list(self._opened):
            self.close(descriptor)

    def open_descriptors(self) -> int:
        """Return how many descriptors are still open."""
        return len(self._opened)

    def is_durable(self, path: str) -> bool:
        """Return whether every write to a file was synced."""
        file = self._find(path)
        return isinstance(file, _MemoryFile) and not file.pending and not file.sync_failed

    def flip(self, path: str, offset: int, mask: int) -> None:
        """Flip bits of a file silently, as a decaying disk does."""
        file = self._find(path)
        assert isinstance(file, _MemoryFile), f"{path} is no file"
        file.flip(offset, mask)

    def _ask(self, name: str, path: str, offset: int = 0, length: int = 0) -> None:
        if self.before is not None:
            self.before(DiskCall(name, path, offset, length))

    def _find(self, path: str) -> "_MemoryFile | _Directory | None":
        node: _MemoryFile | _Directory | None = self._root
        for part in path.split("/"):
            if part:
                node = node.names.get(part) if isinstance(node, _Directory) else None
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[_Directory, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        return self._directory(head), name

    def used_bytes(self) -> int:
        """Return how much of the disk is in use."""

        def size(node: "_MemoryFile | _Directory") -> int:
            if isinstance(node, _MemoryFile):
                return len(node.content)
            return sum(size(child) for child in node.names.values())

        return size(self._root)

    def _grow(self, opened: _Opened, length: int) -> None:
        growth = length - len(opened.file.content)
        if (
            self.bytes_max is not None
            and growth > 0
            and self.used_bytes() + growth > self.bytes_max
        ):
            raise _error(errno.ENOSPC, opened.path)

    def open(self, path: str, opening: Opening) -> int:
        """Return a descriptor for a file."""
        node = self._find(path)
        if opening is Opening.CREATE:
            directory, name = self._place(path)
            if node is not None:
                raise _error(errno.EEXIST, path)
            self._ask("create", path)
            node = _MemoryFile()
            directory.change(None, name, node)
        if not isinstance(node, _MemoryFile):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        self._next += 1
        self._opened[self._next] = _Opened(path, node, opening)
        return self._next

    def close(self, descriptor: int) -> None:
        """Close a descriptor and release its lock."""
        file = self._opened.pop(descriptor).file
        if file.locked == descriptor:
            file.locked = 0

    def lock(self, descriptor: int) -> bool:
        """Lock the whole file for writers until the descriptor is closed."""
        file = self._opened[descriptor].file
        file.locked = file.locked or descriptor
        return file.locked == descriptor

    def size(self, descriptor: int) -> int:
        """Return the length of a file."""
        return len(self._opened[descriptor].file.content)

    def pread(self, descriptor: int, offset: int, length: int) -> bytes:
        """Read `length` bytes, or fewer at the end of the file."""
        return bytes(self._opened[descriptor].file.content[offset : offset + length])

    def _writable(self, descriptor: int) -> _Opened:
        opened = self._opened[descriptor]
        if opened.opening is Opening.READ:
            raise _error(errno.EBADF, opened.path)
        return opened

    def pwrite(self, descriptor: int, offset: int, data: bytes) -> None:
        """Write all of the data."""
        opened = self._writable(descriptor)
        try:
            self._ask("pwrite", opened.path, offset, len(data))
            self._grow(opened, offset + len(data))
        except OSError:
            middle = offset + len(data) // 2
            part = max(0, middle - middle % SECTOR_BYTES - offset)
            opened.file.change(_Write(offset, data[:part]))
            raise
        opened.file.change(_Write(offset, data))

    def allocate(self, descriptor: int, length: int) -> None:
        """Reserve space up to a length."""
        opened = self._writable(descriptor)
        self._ask("allocate", opened.path, length=length)
        self._grow(opened, length)
        if length > len(opened.file.content):
            opened.file.change(_Length(length))

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file off at a length."""
        opened = self._writable(descriptor)
        self._ask("truncate", opened.path, length=length)
        opened.file.change(_Length(length))

    def fdatasync(self, descriptor: int) -> None:
        """Make the content and the length of a file durable."""
        opened = self._opened[descriptor]
        try:
            self._ask("fdatasync", opened.path)
        except OSError:
            opened.file.fail_sync()
            raise
        opened.file.sync()

    def start_sync(self, descriptor: int) -> None:
        """Do nothing: a real system makes no promise here, either."""

    def syncing(self, descriptor: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing."""
        return nullcontext()

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory in ascending order."""
        return sorted(self._directory(directory).names)

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name."""
        return self._find(path) is not None

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        directory, name = self._place(path)
        if name in directory.names:
            raise _error(errno.EEXIST, path)
        self._ask("make_directory", path)
        directory.change(None, name, _Directory())

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        directory, name = self._place(path)
        node = self._directory(path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        self._ask("remove_directory", path)
        directory.change(name, None, node)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory within its directory."""
        directory, old_name = self._place(old)
        target, new_name = self._place(new)
        assert directory is target, f"{old} and {new} are in different directories"
        node = directory.names.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, old)
        self._ask("rename", old)
        directory.change(old_name, new_name, node)

    def link(self, old: str, new: str) -> None:
        """Give a file another name."""
        directory, name = self._place(new)
        node = self._find(old)
        if not isinstance(node, _MemoryFile):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, old)
        if name in directory.names:
            raise _error(errno.EEXIST, new)
        self._ask("link", new)
        directory.change(None, name, node)

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""
        directory, name = self._place(path)
        node = directory.names.get(name)
        if not isinstance(node, _MemoryFile):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        self._ask("unlink", path)
        directory.change(name, None, node)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        directory = self._directory(path)
        self._ask("sync_directory", path)
        directory.durable = dict(directory.names)
        directory.pending.clear()


def _error(number: int, path: str) -> OSError:
    texts = {
        errno.ENOENT: "No such file or directory",
        errno.ENOTDIR: "Not a directory",
        errno.EISDIR: "Is a directory",
        errno.EEXIST: "File exists",
        errno.ENOTEMPTY: "Directory not empty",
        errno.ENOSPC: "No space left on device",
        errno.EBADF: "Bad file descriptor",
    }
    return OSError(number, texts[number], path)
