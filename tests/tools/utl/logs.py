"""What the log of a stopped member says."""

from pathlib import Path

from kvorum.raft.wire import decode_conf_change
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import SnapshotRecord, read_log, valid_snapshots


def logged(wal: Path) -> tuple[object, ...]:
    """Return all that a log says."""
    snapshots = valid_snapshots(RealFiles(), str(wal))
    content = read_log(RealFiles(), str(wal), SnapshotRecord())
    # The changes themselves, for 3.5 writes fields that newer versions leave out.
    changes = [(entry.index, entry.term, decode_conf_change(entry)) for entry in content.entries]
    return snapshots, content.metadata, content.state, changes
