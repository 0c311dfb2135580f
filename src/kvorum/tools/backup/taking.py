"""Take snapshots of a running store into an archive: receive, check, store, read back.

A snapshot counts once its manifest is written, and older ones are removed only after that. Where
changes are recorded, the manifest waits until the log of the history has reached the snapshot, so
that no history has a hole before a snapshot, whenever a run is killed.
"""

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import administration, rpcs
from kvorum.client.operations import Operation
from kvorum.client.options import FOREVER
from kvorum.client.sync.client import Client
from kvorum.tools.backup.archive import Archive, ArchiveHistory, Manifest, read_manifest, rotate
from kvorum.tools.backup.errors import ArchiveError, HistoryEndedError, StoreError
from kvorum.tools.backup.images import examine
from kvorum.tools.backup.moments import stamp_of
from kvorum.tools.backup.names import MANIFEST_ENDING, SnapshotName
from kvorum.tools.backup.points import read_segment_of
from kvorum.tools.backup.segments import Known, digest_of
from kvorum.tools.backup.stores import ArchiveStore, Spool, write_verified

ANSWER_SECONDS_MAX = 30.0
"""Longer than usual, because a slow cluster needs its backup all the more."""


class BackupStoppedError(Exception):
    """The backup was asked to stop."""


class Received(NamedTuple):
    """A snapshot that is in the archive, and does not count yet."""

    name: SnapshotName
    manifest: Manifest
    known: list[Known]
    """Its newest revisions, which distinguish it from a snapshot of another store."""


class Taken(NamedTuple):
    """A snapshot that counts."""

    name: SnapshotName
    manifest: Manifest
    removed: list[str]
    """The names of the objects that were rotated out."""
    problem: ArchiveError | None = None
    """Why older snapshots could not be removed; this snapshot counts all the same."""


def header_of(client: Client) -> "pb.ResponseHeader":
    """Return the header of a small read: the cluster's id and current revision."""
    request = pb.RangeRequest(key=b"\0", count_only=True, limit=1)

    def decode(answer: bytes) -> "pb.ResponseHeader":
        return pb.RangeResponse.FromString(answer).header

    operation = Operation(rpcs.RANGE, request.SerializeToString(), decode)
    return client.run(operation, ANSWER_SECONDS_MAX)


def receive_snapshot(
    client: Client,
    store: ArchiveStore,
    history: str,
    revision_min: int,
    progress: Callable[[int, int], None],
) -> Received:
    """Receive a snapshot of at least this revision into the archive, where it does not count yet.

    `progress` receives the bytes so far and the remaining bytes; it may raise to cancel.
    """
    with store.spool() as spool:
        taken, version = _receive(client, spool, progress)
        header = header_of(client)
        if header.revision < revision_min:
            raise HistoryEndedError(
                f"the store went back: it is at revision {header.revision}, and was at "
                f"{revision_min}"
            )
        origin = header.cluster_id, taken, version
        return keep_snapshot(store, spool, history, origin, revision_min)


def keep_snapshot(
    store: ArchiveStore,
    spool: Spool,
    history: str,
    origin: tuple[int, float, str],
    revision_min: int,
) -> Received:
    """Check a file and store it as a snapshot that does not count yet.

    `origin` is the cluster's id, the time of the snapshot, and the version of its storage.
    """
    cluster_id, taken, version = origin
    try:
        facts, known = examine(spool.files, spool.path, "the snapshot that was received")
    except OSError as error:
        raise StoreError(str(error)) from error
    if facts.revision < revision_min:
        raise ArchiveError(
            f"the member that gave a snapshot lags behind: it is at revision "
            f"{facts.revision}, not at {revision_min} or later"
        )
    name = SnapshotName(history, facts.revision, stamp_of(taken))
    store.keep(spool, str(name))
    digest = sha256()
    store.read(str(name), digest.update)
    if digest.hexdigest() != facts.sha256:
        store.delete(str(name))
        raise StoreError(f"{name} was read back, and is not what was written")
    return Received(name, Manifest(cluster_id, taken, version, facts), known)


def count_snapshot(store: ArchiveStore, received: Received, keep: int, *, has_log: bool) -> Taken:
    """Write the snapshot's manifest, and remove all but the newest `keep` snapshots.

    Raise HistoryEndedError if the snapshot is another store's. With a log, the caller has made sure
    that the log has reached the snapshot's revision.
    """
    name, manifest, known = received
    archive = Archive(store)
    if str(name) not in archive.sizes:
        raise ArchiveError(f"{name} was removed before it counted")
    for history in archive.histories:
        if history.name == name.history:
            _check_same(store, history, known)
        elif history.name > name.history and history.snapshots:
            raise HistoryEndedError(f"another program has begun the newer history {history.name}")
    manifest = manifest._replace(has_log=has_log)
    write_verified(store, f"{name}{MANIFEST_ENDING}", manifest.encode())
    if str(name) not in store.sizes():
        # Another program removed it as abandoned.
        store.delete(f"{name}{MANIFEST_ENDING}")
        raise ArchiveError(f"{name} was removed while it began to count")
    try:
        return Taken(name, manifest, rotate(store, keep, name.history, name))
    except ArchiveError as error:
        return Taken(name, manifest, [], error)


def _check_same(store: ArchiveStore, history: ArchiveHistory, known: Sequence[Known]) -> None:
    """Check the newest revisions of a snapshot against those that the history has recorded."""
    expected = dict(known)
    found = [
        Known(each.revision, read_manifest(store, each).facts.rows_digest)
        for each in history.snapshots
        if each.revision in expected
    ]
    for segment in history.segments:
        if expected and segment.first <= known[-1].revision and segment.last >= known[0].revision:
            found += [
                Known(each.number, digest_of(each.rows))
                for each in read_segment_of(store, segment).revisions
                if each.number in expected
            ]
    for each in found:
        if each.digest and each.digest != expected[each.revision]:
            raise HistoryEndedError(
                f"the snapshot of revision {known[-1].revision} is another store's: "
                f"its revision {each.revision} is not the one that was recorded"
            )


def _receive(
    client: Client, spool: Spool, progress: Callable[[int, int], None]
) -> tuple[float, str]:
    """Receive a snapshot; return its time and the version of its storage."""
    taken, version = 0.0, ""
    with client.messages(administration.snapshot(), FOREVER) as messages:
        for message in messages:
            # By the first piece, the member has read the database.
            taken = taken or time.time()
            version = message.version
            try:
                spool.add(message.blob)
            except OSError as error:
                raise StoreError(str(error)) from error
            progress(spool.size, message.remaining_bytes)
    try:
        spool.sync()
    except OSError as error:
        raise StoreError(str(error)) from error
    return taken, version
