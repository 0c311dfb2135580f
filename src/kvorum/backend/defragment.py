"""Defragmenting: a new file without free pages takes the place of the old one.

The copy is made in a helper process while reads and flushes go on. What was flushed meanwhile is
copied by the helper, too, in rounds, each shorter than the one before. When little is left, the
next flush writes the rest and its own batch into the new file, and then makes `CURRENT` name it:
only that flush takes longer than others. Until `CURRENT` is replaced the old file has everything
and counts; a crash leaves the new one for the next start to remove.

Rows ascend, so the rows that a file lacks are those after its last one. Of everything else that was
flushed since the copy began, `Changes` keeps the names.
"""

from dataclasses import dataclass, field

from kvorum.backend.batch import Batch, write_applied, write_entries
from kvorum.backend.buckets import KEY
from kvorum.backend.directory import database_path, remove_database, require_spare
from kvorum.backend.encoding import parse_row_key, row_keys, sealed_rows
from kvorum.backend.environment import Environment, Environments, WriteTransaction, writing
from kvorum.backend.view import View
from kvorum.files import Files, Opening

# How much may be left for the flush that switches: a stage of a few milliseconds.
SWITCH_WRITES_MAX = 10_000
# If writers outrun the helper, the last stage grows, but the defragmentation ends.
ROUNDS_MAX = 10
_PIECE_ROWS = 1_000


@dataclass(slots=True)
class Changes:
    """What was flushed since a moment, except rows that were put: those are found anyway."""

    deleted: dict[int, None] = field(default_factory=dict)
    names: dict[bytes, dict[bytes, None]] = field(default_factory=dict)
    row_count: int = 0

    def add(self, batch: Batch) -> None:
        """Note a batch."""
        self.deleted.update(batch.deleted)
        for bucket, entries in batch.entries.items():
            self.names.setdefault(bucket, {}).update(dict.fromkeys(entries))
        self.row_count += len(batch.rows)

    @property
    def writes(self) -> int:
        """How much there is to copy."""
        return self.row_count + len(self.deleted) + sum(map(len, self.names.values()))

    def bring_over(self, view: View, transaction: WriteTransaction) -> None:
        """Make a database equal to the one in view, given that all other changes are in it."""
        for bucket, names in self.names.items():
            write_entries(transaction, bucket, {name: view.get(bucket, name) for name in names})
        index, term = view.applied()
        if index:
            write_applied(transaction, index, term)
        transaction.delete(KEY, row_keys(self.deleted))
        last = transaction.last(KEY)
        first = 0 if last is None else parse_row_key(last) + 1
        while rows := view.scan_rows(first, 1 << 96, _PIECE_ROWS):
            transaction.append(KEY, sealed_rows(rows))
            first = rows[-1][0] + 1


@dataclass(slots=True, frozen=True)
class CopyDatabase:
    """A job of the helper: make a durable copy, without free pages, of what is committed."""

    source: str
    target: str

    def run(self, files: Files, environments: Environments) -> None:
        """Write the file; whatever has its name is replaced."""
        remove_database(files, self.target)
        source = environments.open_reader(self.source)
        try:
            descriptor = files.open(self.target, Opening.CREATE)
            try:
                # The log's syncs would wait for one of all of it, a second for each gigabyte.
                with files.syncing(descriptor):
                    environments.copy(source, self.target, descriptor)
                # Synced here, so that the flush that switches has little left to sync.
                files.fdatasync(descriptor)
            finally:
                files.close(descriptor)
        finally:
            source.close()


@dataclass(slots=True, frozen=True)
class CatchUp:
    """A job of the helper: copy changes from one database to its copy."""

    source: str
    target: str
    map_bytes: int
    changes: Changes

    def run(self, files: Files, environments: Environments) -> None:
        """Commit them to the copy."""
        require_spare(files, self.target)
        source = environments.open_reader(self.source)
        try:
            target = environments.open(self.target, self.map_bytes)
            try:
                view = View(source)
                try:
                    with writing(target) as transaction:
                        self.changes.bring_over(view, transaction)
                finally:
                    view.end()
            finally:
                target.close()
        finally:
            source.close()


@dataclass(slots=True, frozen=True)
class RemoveDatabase:
    """A job of the flusher: remove a database that no longer counts. Large files take a while."""

    path: str
    environment: Environment | None

    def run(self, files: Files, environments: Environments) -> None:  # noqa: ARG002
        """Close the database, if it is open here, and remove its files."""
        if self.environment is not None:
            self.environment.close()
        remove_database(files, self.path)


@dataclass(slots=True, frozen=True)
class Switch:
    """What a flush needs to replace the present database by another."""

    directory: str
    number: int
    map_bytes: int
    changes: Changes


class Defragmentation:
    """A defragmentation in progress: the number of the new file, and what it still lacks."""

    __slots__ = ("_directory", "_map_bytes", "_rounds", "_source", "changes", "is_ready", "number")

    def __init__(self, directory: str, source: str, number: int, map_bytes: int) -> None:
        self.number = number
        self.changes = Changes()
        self.is_ready = False  # to switch at the next seal
        self._directory = directory
        self._source = source
        self._map_bytes = map_bytes
        self._rounds = 0

    @property
    def target(self) -> str:
        """The path of the new file."""
        return database_path(self._directory, self.number)

    def begin(self) -> CopyDatabase:
        """Return the first job."""
        return CopyDatabase(self._source, self.target)

    def next_round(self, sealed: Batch | None) -> CatchUp | None:
        """Return the job that copies what was flushed since the last one was made.

        None: so little is left that the next flush can switch. `sealed` is the batch that is on its
        way: the helper may read before it is committed, so it has to be copied later.
        """
        self._rounds += 1
        if self.changes.writes <= SWITCH_WRITES_MAX or self._rounds > ROUNDS_MAX:
            self.is_ready = True
            return None
        job = CatchUp(self._source, self.target, self._map_bytes, self.changes)
        self.changes = Changes()
        if sealed is not None:
            self.changes.add(sealed)
        return job

    def switch(self) -> Switch:
        """Return what the flush that switches needs."""
        return Switch(self._directory, self.number, self._map_bytes, self.changes)
