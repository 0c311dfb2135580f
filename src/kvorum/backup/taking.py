"""Snapshots of a running store, taken into an archive: received, read, kept, read back.

A snapshot counts when its manifest is written, and older ones go only after that.
"""

import time
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from kvorum.backup.archive import Manifest, rotate
from kvorum.backup.errors import ArchiveError, StoreError
from kvorum.backup.images import examine
from kvorum.backup.moments import stamp_of
from kvorum.backup.names import MANIFEST_ENDING, SnapshotName
from kvorum.backup.stores import Spool, Store, write_verified
from kvorum.client import administration, rpcs
from kvorum.client.operations import Operation
from kvorum.client.options import FOREVER
from kvorum.client.sync.client import Client

ANSWER_SECONDS_MAX = 30.0
"""A backup has time: a cluster that is slow now needs it all the more."""


class StoppedError(Exception):
    """Somebody wants the backup to end."""


class Taken(NamedTuple):
    """A snapshot that counts."""

    name: SnapshotName
    manifest: Manifest
    removed: list[str]
    """What was rotated away for it."""


def header_of(client: Client) -> "pb.ResponseHeader":
    """Return what the cluster says of itself now: its id and revision."""
    request = pb.RangeRequest(key=b"\0", count_only=True, limit=1)

    def decode(answer: bytes) -> "pb.ResponseHeader":
        return pb.RangeResponse.FromString(answer).header

    operation = Operation(rpcs.RANGE, request.SerializeToString(), decode)
    return client.run(operation, ANSWER_SECONDS_MAX)


def take_snapshot(
    client: Client,
    store: Store,
    history: str,
    revision_min: int,
    keep: int,
    progress: Callable[[int, int], None],
) -> Taken:
    """Take a snapshot of this revision or a later one, and keep so many.

    `progress` is told the bytes that came, and those that are to come; it may raise.
    """
    with store.spool() as spool:
        taken, version = _receive(client, spool, progress)
        cluster_id = header_of(client).cluster_id
        name, manifest = keep_snapshot(
            store, spool, history, (cluster_id, taken, version), revision_min
        )
    return Taken(name, manifest, rotate(store, keep, history))


def keep_snapshot(
    store: Store,
    spool: Spool,
    history: str,
    origin: tuple[int, float, str],
    revision_min: int,
) -> tuple[SnapshotName, Manifest]:
    """Check a file, and make it a snapshot that counts.

    Its origin is the cluster's id, when it was taken, and the version of its storage.
    """
    cluster_id, taken, version = origin
    try:
        facts = examine(spool.files, spool.path, "the snapshot that was received")
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
    manifest = Manifest(cluster_id, taken, version, facts)
    write_verified(store, f"{name}{MANIFEST_ENDING}", manifest.encoded())
    return name, manifest


def _receive(
    client: Client, spool: Spool, progress: Callable[[int, int], None]
) -> tuple[float, str]:
    """Receive a snapshot; return when it was taken, and the version of its storage."""
    taken, version = 0.0, ""
    with client.messages(administration.snapshot(), FOREVER) as messages:
        for message in messages:
            # The first piece shows that the database was read by then.
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
