"""`hashkv`: the hash that members with the same history agree on, from files alone.

It is computed from a snapshot, a database file of etcd's, or a data directory of ours. A compaction
that was begun counts as done, as it does when a member starts from the same files.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from kvorum.backend import Environments, open_view
from kvorum.backend.buckets import FINISHED_COMPACT_REVISION, META, SCHEDULED_COMPACT_REVISION
from kvorum.backend.encoding import parse_row_key
from kvorum.backend.images import checked_rows
from kvorum.backend.real import LmdbEnvironments
from kvorum.cli.errors import CommandError
from kvorum.cli.invocation import Invocation
from kvorum.files import Files
from kvorum.files.real import RealFiles
from kvorum.mvcc.hashes import HashKV, hash_rows, scanned_rows
from kvorum.mvcc.history import bound
from kvorum.offline.directories import DataDirectory
from kvorum.offline.facts import Facts
from kvorum.offline.locks import etcd_lock
from kvorum.offline.members import database_of, is_ours
from kvorum.offline.snapshots import HashCheck, opened_snapshot
from kvorum.utl.output import Column, print_row

Rows = Iterator[tuple[int, bytes]]

_COMPACTIONS = (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION)
_LAST_MAIN = (1 << 63) - 1


def run(invocation: Invocation) -> None:
    """Print the hash of a file's keys."""
    invocation.require_arguments(1)
    output = invocation.output
    path = Path(invocation.arguments[0])
    directory = DataDirectory(path)
    if path.is_dir() and not is_ours(directory) and database_of(directory).exists():
        path = database_of(directory)
    with ExitStack() as stack:
        if path.is_file():
            # A directory of ours can be read beside its member.
            lock = etcd_lock(path, invocation.seconds("timeout"), is_shared=True)
            stack.enter_context(lock)
        found = hash_kv(RealFiles(), LmdbEnvironments(), str(path), invocation.number("rev"))
    revision, compacted = found.revision, found.compact_revision
    columns = [
        Column("hash", "Hash", "hash", found.hash, str(found.hash)),
        Column("hash revision", "Hash revision", "hashRevision", revision, str(revision)),
        Column(
            "compact revision", "Compact revision", "compactRevision", compacted, str(compacted)
        ),
    ]
    print_row(output, columns)


def hash_kv(files: Files, environments: Environments, path: str, revision: int) -> HashKV:
    """Hash the keys at a revision, 0 for the newest."""
    if not Path(path).is_dir():
        with opened_snapshot(files, path, HashCheck.TOLD) as image:
            facts = Facts(image)
        return _hash_kv(lambda main: _image_rows(files, path, main), facts, revision)
    directory = Path(path) / "member" / "backend"
    if not (directory / "CURRENT").exists():
        raise CommandError(f"{path} is no database file, and no data directory of a member either")
    with open_view(files, environments, str(directory)) as view:
        return _hash_kv(lambda main: scanned_rows(view, bound(main)), Facts(view), revision)


def _hash_kv(rows_to: Callable[[int], Rows], facts: Facts, revision: int) -> HashKV:
    stored = [facts.get(META, name) for name in _COMPACTIONS]
    compacted = max((parse_row_key(each) >> 32 for each in stored if each), default=-1)
    newest = 1
    for row, _ in rows_to(_LAST_MAIN):
        newest = row >> 32
    newest = max(newest, compacted)
    if 0 < revision < compacted:
        raise CommandError("mvcc: required revision has been compacted")
    if revision > newest:
        raise CommandError("mvcc: required revision is a future revision")
    revision = revision or newest
    value = hash_rows(rows_to, revision, compacted, is_compaction=False)
    return HashKV(value, revision, compacted)


def _image_rows(files: Files, path: str, main: int) -> Rows:
    # An image can be walked only once, so each walk opens it anew.
    with opened_snapshot(files, path, HashCheck.SKIPPED) as image:
        for key, value in checked_rows(image):
            row = parse_row_key(key)
            if row >> 32 > main:
                return
            yield row, value
