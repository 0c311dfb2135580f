"""Environments in memory, beside `MemoryFiles`, for tests and simulation.

Every environment is a file of these `MemoryFiles`, so a power cut keeps or loses its name as it
does other names. A commit calls `before` of the files with `commit` before it takes effect; if
`before` raises, the commit is unfinished, and `survives` decides whether it happened when the disk
is opened again. A copy, or a new database with unsynced commits, is unreadable after a power cut
unless its file was synced.
"""

from bisect import bisect_left
from collections.abc import Sequence

from kvorum.storage.backend.buckets import BUCKETS
from kvorum.storage.backend.encoding import KEY_BYTES_MAX
from kvorum.storage.backend.environment import Environment, ReadTransaction, Sizes
from kvorum.storage.backend.errors import BackendError, CorruptionError
from kvorum.storage.backend.native import NativeRows, RowPages
from kvorum.storage.files import Files
from kvorum.storage.files.interface import Opening, read_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles, Survives

_PAGE_BYTES = 4096
_COPIED = b"copied"


class _Bucket:
    """The entries of a bucket; a change copies the bucket first while a view uses it."""

    __slots__ = ("byte_count", "entries", "ordered")

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.ordered: list[bytes] | None = None  # the sorted keys, built by `keys`
        self.byte_count = 0

    def copy(self) -> "_Bucket":
        bucket = _Bucket()
        bucket.entries = dict(self.entries)
        bucket.ordered = None if self.ordered is None else list(self.ordered)
        bucket.byte_count = self.byte_count
        return bucket

    def change(self, key: bytes, value: bytes | None) -> None:
        before = self.entries.pop(key, None)
        if before is not None:
            self.byte_count -= len(key) + len(before)
        if value is not None:
            self.entries[key] = value
            self.byte_count += len(key) + len(value)
        if (before is None) == (value is None):
            return
        if self.ordered and value is not None and key > self.ordered[-1]:
            self.ordered.append(key)
        else:
            self.ordered = None

    def keys(self) -> list[bytes]:
        if self.ordered is None:
            self.ordered = sorted(self.entries)
        return self.ordered


class _Content:
    """The content of a file."""

    __slots__ = ("buckets", "committing", "is_copy", "page_count", "views")

    def __init__(self, buckets: dict[bytes, _Bucket], *, is_copy: bool) -> None:
        self.buckets = buckets
        self.is_copy = is_copy
        self.views = 0
        self.committing: MemoryWrite | None = None
        self.page_count = self.pages_in_use()

    def pages_in_use(self) -> int:
        content = sum(bucket.byte_count for bucket in self.buckets.values())
        return 2 + len(BUCKETS) + -(-content // _PAGE_BYTES)

    def change(self, changes: dict[bytes, dict[bytes, bytes | None]]) -> None:
        if self.views:
            self.buckets = dict(self.buckets)
        for name, entries in changes.items():
            if self.views:
                self.buckets[name] = self.buckets[name].copy()
            bucket = self.buckets[name]
            for key, value in entries.items():
                bucket.change(key, value)
        # A file only grows, like LMDB's.
        self.page_count = max(self.page_count, self.pages_in_use())

    def copy(self, *, is_copy: bool) -> "_Content":
        return _Content({name: each.copy() for name, each in self.buckets.items()}, is_copy=is_copy)


class MemoryRead:
    """A view of one commit."""

    __slots__ = ("_buckets", "_content")

    def __init__(self, content: _Content) -> None:
        self._content = content
        self._buckets = content.buckets
        content.views += 1

    def get(self, bucket: bytes, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self._buckets[bucket].entries.get(key)

    def get_many(self, bucket: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the keys that exist, in the order of `keys`."""
        entries = self._buckets[bucket].entries
        return [(key, entries[key]) for key in keys if key in entries]

    def scan(self, bucket: bytes, first: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys, from `first` on."""
        keys = self._buckets[bucket].keys()
        start = bisect_left(keys, first)
        return self.get_many(bucket, keys[start : start + limit])

    def scan_back(self, bucket: bytes, before: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values below `before` (empty for no bound), greatest first."""
        keys = self._buckets[bucket].keys()
        end = bisect_left(keys, before) if before else len(keys)
        return self.get_many(bucket, keys[max(0, end - limit) : end][::-1])

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""
        keys = self._buckets[bucket].keys()
        return keys[-1] if keys else None

    def count(self, bucket: bytes) -> int:
        """Return how many entries a bucket has."""
        return len(self._buckets[bucket].entries)

    def row_pages(self) -> RowPages | None:
        """Return None: there are no pages."""
        return None

    def end(self) -> None:
        """End the view."""
        self._content.views -= 1
        self._buckets = {}


class MemoryWrite:
    """Changes that become visible together."""

    __slots__ = ("_changes", "_environment")

    def __init__(self, environment: "MemoryEnvironment") -> None:
        assert not environment.is_writing, f"two write transactions in {environment.path}"
        environment.is_writing = True
        self._environment = environment
        self._changes: dict[bytes, dict[bytes, bytes | None]] = {}

    def append(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries with ascending keys, all greater than the last key of the bucket."""
        keys = [key for key, _ in items]
        last = self.last(bucket)
        assert keys == sorted(set(keys)), f"entries out of order in {bucket!r}"
        assert not keys or last is None or keys[0] > last, f"{keys[0]!r} is not behind {last!r}"
        self.put(bucket, items)

    def put(self, bucket: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put entries in any order, replacing existing ones."""
        for key, value in items:
            assert 0 < len(key) <= KEY_BYTES_MAX, f"a key of {len(key)} bytes"
            self._changes.setdefault(bucket, {})[key] = value

    def delete(self, bucket: bytes, keys: Sequence[bytes]) -> None:
        """Delete entries; ignore keys that do not exist."""
        self._changes.setdefault(bucket, {}).update(dict.fromkeys(keys))

    def last(self, bucket: bytes) -> bytes | None:
        """Return the greatest key of a bucket."""
        changes = self._changes.get(bucket, {})
        stored = self._environment.content.buckets[bucket].keys()
        kept = next((key for key in reversed(stored) if changes.get(key, b"") is not None), None)
        put = max((key for key, value in changes.items() if value is not None), default=None)
        return put if kept is None or (put is not None and put > kept) else kept

    def commit(self) -> None:
        """Commit the changes; they are durable when this returns."""
        environment = self._environment
        environment.content.committing = self
        environment.ask("commit")
        self.take_effect()
        environment.is_writing = False

    def take_effect(self) -> None:
        """Apply the commit to the file's content."""
        content = self._environment.content
        content.change(self._changes)
        content.committing = None
        # Any commit syncs the whole file, except one without changes.
        if self._environment.is_synced and any(self._changes.values()):
            content.is_copy = False

    def abort(self) -> None:
        """Discard the changes."""
        self._environment.is_writing = False


class MemoryEnvironment:
    """One open file, which several users may share."""

    __slots__ = ("_environments", "content", "is_synced", "is_writing", "native", "path", "users")

    def __init__(
        self,
        environments: "MemoryEnvironments",
        path: str,
        content: _Content,
        *,
        is_synced: bool = True,
    ) -> None:
        self._environments = environments
        self.path = path
        self.native = environments.native
        self.content = content
        self.is_synced = is_synced
        self.is_writing = False
        self.users = 1

    def ask(self, name: str) -> None:
        """Call `before` of the files, which may raise to inject a fault."""
        before = self._environments.files.before
        if before is not None:
            before(DiskCall(name, self.path))

    def begin(self) -> MemoryRead:
        """Begin a view of the newest commit."""
        return MemoryRead(self.content)

    def begin_write(self) -> MemoryWrite:
        """Begin the only write transaction."""
        return MemoryWrite(self)

    def sizes(self) -> Sizes:
        """Return the sizes of the file."""
        pages = self.content.pages_in_use()
        return Sizes(self.content.page_count * _PAGE_BYTES, pages * _PAGE_BYTES)

    def views_open(self) -> int:
        """Return 0: this class does not count views for callers."""
        return 0

    def check_readers(self) -> int:
        """Return 0: there are no other processes."""
        return 0

    def close(self) -> None:
        """Close the file."""
        self.users -= 1
        if not self.users:
            self._environments.forget(self.path)


class MemoryEnvironments:
    """Databases beside the files of one machine."""

    __slots__ = ("_contents", "_open", "files", "native")

    def __init__(self, files: MemoryFiles, native: NativeRows | None = None) -> None:
        self.files = files
        self.native = native
        self._contents: dict[str, _Content] = {}
        self._open: dict[str, MemoryEnvironment] = {}

    def after_power_cut(self, files: MemoryFiles, survives: Survives) -> "MemoryEnvironments":
        """Return the databases as a power cut now would leave them.

        `files` are the files after the same power cut; `survives` decides for every unfinished
        commit.
        """
        image = MemoryEnvironments(files, self.native)
        for path, content in self._contents.items():
            if not files.exists(path) or (content.is_copy and read_file(files, path) != _COPIED):
                continue
            if content.committing is not None and survives():
                content.committing.take_effect()
            image._contents[path] = content.copy(is_copy=content.is_copy)
        return image

    def kill(self, survives: Survives) -> None:
        """Simulate the end of the process; `survives` decides for every unfinished commit."""
        for environment in list(self._open.values()):
            writer = environment.content.committing
            environment.content.committing = None
            if writer is not None and survives():
                writer.take_effect()
            environment.content.views = 0
        self._open.clear()

    def open(
        self,
        path: str,
        map_bytes: int,  # noqa: ARG002
        *,
        is_synced: bool = True,
        checks: bool = False,  # noqa: ARG002
    ) -> Environment:
        """Open a file to read and write; create it, with its buckets, if there is none."""
        assert path not in self._open, f"{path} is open already"
        if not self.files.exists(path):
            descriptor = self.files.open(path, Opening.CREATE)
            if not is_synced:
                self.files.pwrite(descriptor, 0, _COPIED)
            self.files.close(descriptor)
            buckets = {name: _Bucket() for name in BUCKETS}
            self._contents[path] = _Content(buckets, is_copy=not is_synced)
        environment = MemoryEnvironment(self, path, self._content(path), is_synced=is_synced)
        self._open[path] = environment
        return environment

    def open_reader(
        self,
        path: str,
        *,
        checks: bool = False,  # noqa: ARG002
    ) -> Environment:
        """Open an existing file to read; share the environment if it is open already."""
        environment = self._open.get(path)
        if environment is not None:
            environment.users += 1
        else:
            if not self.files.exists(path):
                raise BackendError(f"{path}: No such file or directory")
            self._open[path] = environment = MemoryEnvironment(self, path, self._content(path))
        return environment

    def copy(self, source: Environment, path: str, descriptor: int) -> None:
        """Write the newest commit, without free pages, to a new, empty file."""
        assert isinstance(source, MemoryEnvironment)
        self._contents[path] = source.content.copy(is_copy=True)
        self.files.pwrite(descriptor, 0, _COPIED)

    @property
    def exports(self) -> bool:
        """False: content in memory has no bytes to export."""
        return False

    def export(
        self, source: Environment, view: ReadTransaction, path: str, descriptor: int
    ) -> None:
        """Never called."""
        del source, view, path, descriptor
        raise AssertionError("content in memory is no file")

    def adopt(self, files: Files, received: str, path: str) -> None:
        """Never called."""
        del files, received, path
        raise AssertionError("content in memory is no file")

    def forget(self, path: str) -> None:
        """Remove a closed file from the open ones."""
        del self._open[path]

    def _content(self, path: str) -> _Content:
        content = self._contents.get(path)
        if content is None:
            raise CorruptionError(path, "opening", "not a database")
        return content
