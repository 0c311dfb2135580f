"""Defragmentation: replaces the database file by a new file without free pages.

A helper process makes the copy while reads and flushes continue. It then copies the changes flushed
meanwhile, in rounds, each shorter than the one before. When little is left, the next flush writes
the rest and its own batch into the new file, and then makes `CURRENT` name it: only that flush
takes longer than others. Until `CURRENT` is replaced, the old file is complete and valid; after a
crash the next start removes the new one.

Rows ascend, so a file lacks only rows after its last one. `FlushedChanges` keeps the names of
everything else that was flushed since the copy began.
"""

from dataclasses import dataclass, field

from kvorum.api.limits import WorkLimits
from kvorum.storage.backend.batch import FlushBatch, write_applied, write_entries
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.directory import database_path, remove_database, require_spare
from kvorum.storage.backend.encoding import parse_row_key, row_keys, sealed_rows
from kvorum.storage.backend.environment import DatabaseWrite, Environment, Environments, writing
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files, Opening


@dataclass(slots=True)
class FlushedChanges:
    """Changes flushed since a moment, by name. Rows that were put are only counted.

    `bring_over` finds the rows by their order.
    """

    deleted: dict[int, None] = field(default_factory=dict)
    names: dict[bytes, dict[bytes, None]] = field(default_factory=dict)
    row_count: int = 0

    def add(self, batch: FlushBatch) -> None:
        """Add the names of a batch."""
        self.deleted.update(batch.deleted)
        for bucket, entries in batch.entries.items():
            self.names.setdefault(bucket, {}).update(dict.fromkeys(entries))
        self.row_count += len(batch.rows)

    @property
    def writes(self) -> int:
        """The number of rows and entries to copy."""
        return self.row_count + len(self.deleted) + sum(map(len, self.names.values()))

    def bring_over(self, view: View, transaction: DatabaseWrite, piece_rows: int) -> None:
        """Copy these changes from a view into a database that has all earlier ones.

        Read at most `piece_rows` rows at once.
        """
        for bucket, names in self.names.items():
            write_entries(transaction, bucket, {name: view.get(bucket, name) for name in names})
        index, term = view.applied()
        if index:
            write_applied(transaction, index, term)
        transaction.delete(KEY, row_keys(self.deleted))
        last = transaction.last(KEY)
        first = 0 if last is None else parse_row_key(last) + 1
        while rows := view.scan_rows(first, 1 << 96, piece_rows):
            transaction.append(KEY, sealed_rows(rows))
            first = rows[-1][0] + 1


@dataclass(slots=True, frozen=True)
class CopyDatabase:
    """A helper's job: make a durable copy of the newest commit, without free pages."""

    source: str
    target: str

    def run(self, files: Files, environments: Environments) -> None:
        """Write the file, replacing any file of that name."""
        remove_database(files, self.target)
        source = environments.open_reader(self.source)
        try:
            descriptor = files.open(self.target, Opening.CREATE)
            try:
                # Sync during the copy: one sync of all of it would delay the log's syncs by a
                # second per gigabyte.
                with files.syncing(descriptor):
                    environments.copy(source, self.target, descriptor)
                # Sync now, so that the flush that switches has little left to sync.
                files.fdatasync(descriptor)
            finally:
                files.close(descriptor)
        finally:
            source.close()


@dataclass(slots=True, frozen=True)
class CopyChanges:
    """A helper's job: copy changes from a database to its copy."""

    source: str
    target: str
    map_bytes: int
    changes: FlushedChanges
    piece_rows: int
    scan_entries: int

    def run(self, files: Files, environments: Environments) -> None:
        """Commit the changes to the copy."""
        require_spare(files, self.target)
        source = environments.open_reader(self.source)
        try:
            target = environments.open(self.target, self.map_bytes)
            try:
                view = View(source, self.scan_entries)
                try:
                    with writing(target) as transaction:
                        self.changes.bring_over(view, transaction, self.piece_rows)
                finally:
                    view.end()
            finally:
                target.close()
        finally:
            source.close()


@dataclass(slots=True, frozen=True)
class RemoveDatabase:
    """A flusher's job: remove an obsolete database, which takes a while for large files."""

    path: str
    environment: Environment | None

    def run(self, files: Files, environments: Environments) -> None:  # noqa: ARG002
        """Close the database, if an environment was given, and remove its files."""
        if self.environment is not None:
            self.environment.close()
        remove_database(files, self.path)


@dataclass(slots=True, frozen=True)
class Switch:
    """The arguments of a flush that replaces the present database by another."""

    directory: str
    number: int
    map_bytes: int
    changes: FlushedChanges
    piece_rows: int


class Defragmentation:
    """A defragmentation in progress: the number of the new file, and the changes it lacks."""

    __slots__ = (
        "_directory",
        "_limits",
        "_map_bytes",
        "_rounds",
        "_source",
        "changes",
        "is_ready",
        "number",
    )

    def __init__(
        self, directory: str, source: str, number: int, map_bytes: int, limits: WorkLimits
    ) -> None:
        self.number = number
        self.changes = FlushedChanges()
        self.is_ready = False  # to switch at the next seal
        self._directory = directory
        self._source = source
        self._map_bytes = map_bytes
        self._limits = limits
        self._rounds = 0

    @property
    def target(self) -> str:
        """The path of the new file."""
        return database_path(self._directory, self.number)

    def begin(self) -> CopyDatabase:
        """Return the first job."""
        return CopyDatabase(self._source, self.target)

    def next_round(self, sealed: FlushBatch | None) -> CopyChanges | None:
        """Return the job that copies the changes flushed since the last job was made.

        Return None if the next flush can switch, because little is left or after
        `defragment_rounds_max` rounds. `sealed` is the batch being flushed: the helper may read
        before its commit, so the next round copies it again.
        """
        self._rounds += 1
        limits = self._limits
        is_little = self.changes.writes <= limits.defragment_switch_writes_max
        if is_little or self._rounds > limits.defragment_rounds_max:
            self.is_ready = True
            return None
        job = CopyChanges(
            self._source,
            self.target,
            self._map_bytes,
            self.changes,
            limits.defragment_piece_rows,
            limits.view_scan_entries,
        )
        self.changes = FlushedChanges()
        if sealed is not None:
            self.changes.add(sealed)
        return job

    def switch(self) -> Switch:
        """Return the arguments of the flush that switches."""
        piece_rows = self._limits.defragment_piece_rows
        return Switch(self._directory, self.number, self._map_bytes, self.changes, piece_rows)
