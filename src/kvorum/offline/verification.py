"""What must hold of a member's files: the database fits the log, and both are whole.

The first part is what etcd checks under ETCD_VERIFY, in its words. The database is read to its end:
every page of an etcd's, every checksum of ours.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kvorum.backend import Environments, View, dump
from kvorum.backend.buckets import KEY, META, TERM
from kvorum.backend.encoding import parse_row_key
from kvorum.backend.images import checked_content
from kvorum.cli.errors import CommandError
from kvorum.files import Files
from kvorum.offline.directories import DataDirectory
from kvorum.offline.facts import Facts
from kvorum.offline.members import opened_database, require
from kvorum.offline.progress import Progress
from kvorum.wal import read_log, valid_snapshots

VARIABLE = "ETCD_VERIFY"
VALUES = ("all", "storage_wal")
"""What the variable has where files are to be verified."""


class Verified(NamedTuple):
    """What the files of a member say."""

    consistent_index: int
    """The entry up to which the database holds the effects."""
    term: int
    snapshot_index: int
    """Where the log begins."""
    commit: int
    last_index: int
    revision: int
    rows: int


def verify(
    files: Files, environments: Environments, directory: DataDirectory, *, is_exact: bool = False
) -> Verified:
    """Check the files of a stopped member; raises CommandError, WalError or BackendError.

    With `is_exact` the database must hold the effects of exactly what is committed, as in a
    directory that was just restored.
    """
    require(directory)
    snapshot = valid_snapshots(files, str(directory.log))[-1]
    log = read_log(files, str(directory.log), snapshot)
    with opened_database(files, environments, directory) as database:
        facts = Facts(database)
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
    """Read the database to its end; return the newest revision and how many rows there are."""
    key, rows = b"", 0
    with ExitStack() as stack:
        database = stack.enter_context(opened_database(files, environments, directory))
        if isinstance(database, View):
            content, size = dump(database), Path(database.path).stat().st_size
        else:
            content, size = checked_content(database), database.size
        progress = stack.enter_context(Progress("verifying", size))
        for bucket, entries in progress.counted(content):
            for name, _ in entries:
                if bucket == KEY:
                    key, rows = name, rows + 1
    return parse_row_key(key) >> 32 if key else 0, rows
