"""Verify a stopped member's files: the database matches the log, and neither is damaged.

`verify` compares database and log as etcd does under ETCD_VERIFY, with etcd's error texts. Then it
reads the whole database: every page of etcd's, every checksum of Kvorum's.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kvorum.storage.backend import Environments, View, dump
from kvorum.storage.backend.buckets import KEY, META, TERM
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.images import checked_content
from kvorum.storage.files import Files
from kvorum.storage.wal import read_log, valid_snapshots
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.facts import ClusterBuckets
from kvorum.tools.offline.members import open_database, require
from kvorum.tools.offline.progress import ByteProgress

VARIABLE = "ETCD_VERIFY"
VALUES = ("all", "storage_wal")
"""The values of the variable that request verification."""


class Verified(NamedTuple):
    """The numbers that verification read from a member's files."""

    consistent_index: int
    """The index of the last log entry whose effects the database holds."""
    term: int
    snapshot_index: int
    """The index of the snapshot after which the log begins."""
    commit: int
    last_index: int
    revision: int
    rows: int


def verify(
    files: Files, environments: Environments, directory: DataDirectory, *, is_exact: bool = False
) -> Verified:
    """Check the files of a stopped member; raises CommandError, WalError or BackendError.

    With `is_exact`, the database's index and term must equal the log's commit index and term, as
    in a directory that was just restored.
    """
    require(directory)
    snapshot = valid_snapshots(files, str(directory.log))[-1]
    log = read_log(files, str(directory.log), snapshot)
    with open_database(files, environments, directory) as database:
        facts = ClusterBuckets(database)
    index, term = facts.index, int.from_bytes(facts.get(META, TERM) or b"", "big")
    state = log.state
    problem = ""
    if is_exact and index != state.commit:
        problem = (
            f"backend.ConsistentIndex ({index}) expected == WAL.HardState.commit ({state.commit})"
        )
    elif is_exact and term != state.term:
        problem = f"backend.Term ({term}) expected == WAL.HardState.term, ({state.term})"
    elif index > state.commit:
        problem = (
            f"backend.ConsistentIndex ({index}) must be <= WAL.HardState.commit ({state.commit})"
        )
    elif term > state.term:
        problem = f"backend.Term ({term}) must be <= WAL.HardState.term, ({state.term})"
    elif index < snapshot.index:
        problem = (
            f"backend.ConsistentIndex ({index}) must be >= last snapshot index ({snapshot.index})"
        )
    if problem:
        raise CommandError(problem)
    revision, rows = _walk(files, environments, directory)
    last = snapshot.index + len(log.entries)
    return Verified(index, term, snapshot.index, state.commit, last, revision, rows)


def _walk(files: Files, environments: Environments, directory: DataDirectory) -> tuple[int, int]:
    """Read the whole database; return the newest revision and the number of rows."""
    key, rows = b"", 0
    with ExitStack() as stack:
        database = stack.enter_context(open_database(files, environments, directory))
        if isinstance(database, View):
            content, size = dump(database), Path(database.path).stat().st_size
        else:
            content, size = checked_content(database), database.size
        progress = stack.enter_context(ByteProgress("verifying", size))
        for bucket, entries in progress.count_content(content):
            for name, _ in entries:
                if bucket == KEY:
                    key, rows = name, rows + 1
    return parse_row_key(key) >> 32 if key else 0, rows
