"""The disk of a node: its log in `raftexample-<id>`, its snapshots in `raftexample-<id>-snap`.

All writes are durable when their call returns. A busier server would run the same jobs in a thread.
"""

from collections.abc import Sequence

from kvorum.raft import Entry, HardState, MemoryStorage, Snapshot
from kvorum.storage.files import Files
from kvorum.storage.files.interface import parent
from kvorum.storage.snap import RemoveLeftovers, WriteSnap, load_newest
from kvorum.storage.wal import SnapshotRecord, create_log, exists, open_log, valid_snapshots


class Disk:
    """The log on disk, and the same entries in memory, where raft reads them."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._snap_directory = f"{directory}-snap"
        self.storage = MemoryStorage()
        if not files.exists(self._snap_directory):
            files.make_directory(self._snap_directory)
            files.sync_directory(parent(self._snap_directory))
        RemoveLeftovers(self._snap_directory).run(files)
        self.snapshot: Snapshot | None = None
        if exists(files, directory):
            self._open(directory)
        else:
            self._log = create_log(files, directory, b"")
        self._prepare()

    @property
    def is_new(self) -> bool:
        """Whether no entry or snapshot was ever written."""
        return self.storage.last_index() == 0

    def _open(self, directory: str) -> None:
        valid = {(each.index, each.term) for each in valid_snapshots(self._files, directory)}
        self.snapshot, _ = load_newest(self._files, self._snap_directory, valid)
        record = SnapshotRecord()
        if self.snapshot is not None:
            record = SnapshotRecord(self.snapshot.index, self.snapshot.term)
            self.storage.apply_snapshot(self.snapshot)
        self._log, content = open_log(self._files, directory, record)
        self.storage.set_hard_state(content.state)
        self.storage.append(content.entries)

    def _prepare(self) -> None:
        """Prepare the log's next segment."""
        job = self._log.prepare()
        if job is not None:
            self._log.take_spare(job.run(self._files))

    def write(self, state: HardState | None, entries: Sequence[Entry]) -> None:
        """Make entries and state durable."""
        job = self._log.save(state, entries)
        if job is not None:
            job.run(self._files)
        cut = self._log.cut()
        if cut is not None:
            cut.run(self._files)
            self._prepare()
        if state is not None:
            self.storage.set_hard_state(state)
        self.storage.append(entries)

    def write_snapshot(self, snapshot: Snapshot) -> None:
        """Make a snapshot durable: first its file, then the log record that makes it valid."""
        WriteSnap(self._snap_directory, snapshot).run(self._files)
        record = self._log.save_snapshot(snapshot.index, snapshot.term, snapshot.conf_state)
        record.run(self._files)

    def release_to(self, index: int) -> None:
        """Close the log segments before a snapshot."""
        job = self._log.release_to(index)
        if job is not None:
            job.run(self._files)

    def close(self) -> None:
        """Flush and close the log."""
        job = self._log.flush()
        if job is not None:
            job.run(self._files)
        self._log.close().run(self._files)
