"""`hashkv`: compute, from files alone, the hash that members with the same history agree on.

The source is a snapshot, a database file of etcd's, or a data directory of ours. A scheduled
compaction counts as done, as it does when a member starts from the same files.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from kvorum.api.limits import PRODUCTION
from kvorum.network.edge import native_rows
from kvorum.state.mvcc.hashes import HashKV
from kvorum.storage.backend import Environments, View, open_view
from kvorum.storage.backend.buckets import (
    FINISHED_COMPACT_REVISION,
    KEY,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.images import image_rows
from kvorum.storage.backend.native import NativeRows, Row
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.backend.transfer import sealed_pieces
from kvorum.storage.files import Files
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.facts import ClusterBuckets
from kvorum.tools.offline.hashing import Hashing
from kvorum.tools.offline.locks import etcd_lock
from kvorum.tools.offline.members import database_of, is_ours
from kvorum.tools.offline.snapshots import HashCheck, open_snapshot
from kvorum.tools.utl.output import Column, print_row

_COMPACTIONS = (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION)


def run(invocation: Invocation) -> None:
    """Print the hash of the keys in a file or directory."""
    invocation.require_arguments(1)
    output = invocation.output
    path = Path(invocation.arguments[0])
    directory = DataDirectory(path)
    if path.is_dir() and not is_ours(directory) and database_of(directory).exists():
        path = database_of(directory)
    with ExitStack() as stack:
        if path.is_file():
            # The member of a directory of ours may run at the same time, so no lock is needed
            # there.
            lock = etcd_lock(path, invocation.seconds("timeout"), is_shared=True)
            stack.enter_context(lock)
        environments = LmdbEnvironments(native_rows())
        found = hash_kv(RealFiles(), environments, str(path), invocation.number("rev"))
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
    """Hash the keys at a revision; 0 means the newest."""
    native = environments.native
    if not Path(path).is_dir():
        with open_snapshot(files, path, HashCheck.WARNED) as image:
            facts, last = ClusterBuckets(image), image.last_key(KEY)
        walk = partial(_image_walk, files, path, native)
        # Reading an image computes the rows' checksums, so none of them can be wrong.
        hashing = Hashing(walk=walk, blame=lambda _: None, native=native)
        return _hash_kv(hashing, facts, last, revision)
    directory = Path(path) / "member" / "backend"
    if not (directory / "CURRENT").exists():
        raise CommandError(f"{path} is no database file, and no data directory of a member either")
    with open_view(files, environments, str(directory)) as view:
        facts, last = ClusterBuckets(view), view.last_row_key()
        hashing = Hashing(walk=partial(_view_walk, view), blame=view.keyed_rows, native=native)
        return _hash_kv(hashing, facts, last, revision)


@contextmanager
def _image_walk(
    files: Files, path: str, native: NativeRows | None
) -> Iterator[Iterator[list[Row]]]:
    # An image can be walked only once, so each walk opens it again.
    with open_snapshot(files, path, HashCheck.SKIPPED) as image:
        yield image_rows(image, native)


@contextmanager
def _view_walk(view: View) -> Iterator[Iterator[list[Row]]]:
    yield sealed_pieces(view, PRODUCTION.image_piece_entries)


def _hash_kv(hashing: Hashing, facts: ClusterBuckets, last: bytes | None, revision: int) -> HashKV:
    stored = [facts.get(META, name) for name in _COMPACTIONS]
    compacted = max((parse_row_key(each) >> 32 for each in stored if each), default=-1)
    newest = max(parse_row_key(last) >> 32 if last else 1, 1, compacted)
    if 0 < revision < compacted:
        raise CommandError("mvcc: required revision has been compacted")
    if revision > newest:
        raise CommandError("mvcc: required revision is a future revision")
    revision = revision or newest
    return HashKV(hashing.run(revision, compacted), revision, compacted)
