"""Snapshots: taken so that the log can be cut, sent to a peer, received from a leader.

What the backend holds durably is the snapshot; the `.snap` file only says up to which entry, and
who the members are. So everything here follows a finished flush: it knows exactly the index and
the members that the batch was sealed at. A `.snap` file is written after so many entries, and
then the log's segments before it are given up. The entries in memory are dropped as soon as
the backend has them, but for those that followers may still catch up with; while a snapshot is on
its way to a peer, who will need what comes after it, only those that are too much to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvorum.api.marks import mark
from kvorum.member.images import (
    BuildImage,
    ImageFacts,
    InstallImage,
    Nothing,
    RemoveImage,
    note_image,
)
from kvorum.member.jobs import Job, Place
from kvorum.member.outbox import SnapshotTransfer
from kvorum.member.state import State, open_database, read_again
from kvorum.membership.documents import decode_conf_state
from kvorum.membership.v2_store import snapshot_data, stored_snapshot_data
from kvorum.raft.messages import ConfState, Message, MessageType, Snapshot
from kvorum.snap import ReleaseDatabases, WriteSnap, database_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from kvorum.backend import Backend
    from kvorum.lease.lessor import Lessor
    from kvorum.member.member import Member
    from kvorum.member.waits import Steps
    from kvorum.mvcc.restore import Noted
    from kvorum.mvcc.slices import Slices
    from kvorum.mvcc.store import Store

HELD_AFTER_SENDING_SECONDS = 30.0
COMPACTED_ENTRIES_MIN = 100
"""The entries in memory are not dropped one by one, unless only so few are kept at all."""


@dataclass(slots=True, frozen=True)
class SealedAt:
    """What a batch of the backend amounts to."""

    index: int
    term: int
    conf_state: ConfState
    data: bytes | None
    """The membership at that index, where a `.snap` file is to be written."""


class Snapshots:
    """What is known of snapshots: the newest own one, and those on their way."""

    __slots__ = (
        "_images",
        "building",
        "held_until",
        "index",
        "installing",
        "is_expected",
        "is_wanted",
        "loaded",
        "noted",
        "noting",
        "reading",
        "sealed",
        "sending",
        "transfers",
        "writing",
    )

    def __init__(self, index: int) -> None:
        self.index = index  # of the newest `.snap` whose record is durable
        self.writing = False
        self.is_wanted = False  # whatever the number of entries
        self.sealed: SealedAt | None = None
        # Messages of raft that wait for an image, and the index it must have.
        self.sending: list[tuple[Message, int]] = []
        self.building = False
        # Whether the helper was told that an image will be asked for.
        self.is_expected = False
        # How many transfers still read each image.
        self.transfers: dict[str, int] = {}
        self.held_until = 0.0
        self.installing: Snapshot | None = None
        # The rest of noting its rows and what came of that; the database that was made of it; the
        # rest of reading the state from both.
        self.noting: Slices[Noted | None] | None = None
        self.noted: Noted | None = None
        self.loaded: Backend | None = None
        self.reading: Generator[None, None, State] | None = None
        self._images = 0

    def next_image(self) -> int:
        """Return a number for the name of an image."""
        self._images += 1
        return self._images


def sealed_at(member: Member) -> SealedAt:
    """Return what the batch amounts to that is sealed now, and whether a `.snap` follows it."""
    snapshots = member.snapshots
    index, term = member.backend.applied_index, member.backend.applied_term
    due = index - snapshots.index > member.config.snapshot_entries or snapshots.is_wanted
    data = None
    if due and member.conf_state.voters and not snapshots.writing and index > snapshots.index:
        snapshots.is_wanted = False
        # When the batch is durable, the members may be others.
        data = snapshot_data(member.cluster)
    return SealedAt(index, term, member.conf_state, data)


def after_flush(member: Member) -> None:
    """Do what may be done now that a batch of the backend is durable."""
    snapshots = member.snapshots
    sealed, snapshots.sealed = snapshots.sealed, None
    assert sealed is not None, "a flush ended that did not begin"
    if sealed.conf_state.voters:
        _compact_memory(member, sealed)
    if sealed.data is not None:
        _write_snap(member, sealed, sealed.data)
    build_image(member)


def _compact_memory(member: Member, sealed: SealedAt) -> None:
    """Drop entries that are in the backend and too old, or too much, to catch up with."""
    snapshots, storage, config = member.snapshots, member.storage, member.config
    first = storage.first_index()
    is_sending = snapshots.sending or snapshots.building or snapshots.transfers
    if is_sending or member.now < snapshots.held_until:
        index, bytes_max = 0, config.held_bytes_max
    else:
        index, bytes_max = sealed.index - config.catch_up_entries, config.catch_up_bytes_max
        if index - first < min(COMPACTED_ENTRIES_MIN, config.catch_up_entries):
            index = 0
    if storage.memory_bytes > bytes_max:
        # Some more than that, so that it is not for every few entries.
        index = max(index, storage.index_within(bytes_max - bytes_max // 8))
    # Raft looks through what it does not know to be applied.
    index = min(index, sealed.index, member.node.raft.log.applied)
    if index < first:
        return
    # A peer that needs older entries is sent an image, which is newer than this in any case.
    if sealed.index > storage.snapshot().index:
        storage.create_snapshot(sealed.index, sealed.conf_state, b"")
    storage.compact(index)
    if member.is_leader and not snapshots.is_expected:
        _expect_image(member, index)


def _expect_image(member: Member, index: int) -> None:
    """Have the helper started if a peer lacks what was dropped: it will ask for an image."""
    progress = member.node.raft.tracker.progress
    if any(each.match < index for peer, each in progress.items() if peer != member.id):
        member.snapshots.is_expected = True
        member.out.jobs.append(Job(Place.HELPER, Nothing(), _nothing, _ignore))


def _write_snap(member: Member, sealed: SealedAt, data: bytes) -> None:
    member.snapshots.writing = True
    snapshot = Snapshot(sealed.index, sealed.term, sealed.conf_state, data)
    work = WriteSnap(member.snap_directory, snapshot)
    member.out.jobs.append(Job(Place.LOG, work, lambda _: _record(member, sealed)))


def _record(member: Member, sealed: SealedAt) -> None:
    index = sealed.index
    member.writer.record_snapshot(
        index, sealed.term, sealed.conf_state, lambda _: _recorded(member, index)
    )


def _recorded(member: Member, index: int) -> None:
    member.snapshots.writing = False
    member.snapshots.index = index
    member.writer.release_to(index)
    work = ReleaseDatabases(member.snap_directory, index)
    member.out.jobs.append(Job(Place.LOG, work, _nothing))
    member.logger.info(f"wrote the snapshot at index {index}")


# Sending.


def send(member: Member, message: Message) -> None:
    """Send a peer an image in place of the snapshot raft knows of, which is older."""
    member.snapshots.sending.append((message, member.applied))
    member.flush_soon()
    build_image(member)


def build_image(member: Member) -> None:
    """Begin an image if one is asked for and the backend has durably what it must hold.

    It must hold what is applied by now, because a peer refuses a snapshot of a configuration
    that it is not in.
    """
    snapshots = member.snapshots
    if snapshots.building or not snapshots.sending:
        return
    if max(index for _, index in snapshots.sending) > member.backend.durable_index:
        return
    snapshots.building = True
    snapshots.is_expected = False
    path = "/".join((member.snap_directory, f"tmp.image.{snapshots.next_image()}"))
    work = BuildImage(member.backend_directory, path)
    messages = [message for message, _ in snapshots.sending]
    snapshots.sending = []
    member.out.jobs.append(
        Job(
            Place.HELPER,
            work,
            lambda facts: _built(member, messages, path, facts),
            lambda error: _not_built(member, messages, error),
        )
    )


def _built(member: Member, messages: list[Message], path: str, facts: object) -> None:
    assert isinstance(facts, ImageFacts)
    snapshots = member.snapshots
    snapshots.building = False
    snapshots.transfers[path] = len(messages)
    conf_state = decode_conf_state(facts.conf_state)
    # The members may be others by now.
    data = stored_snapshot_data(facts.membership)
    snapshot = Snapshot(facts.index, facts.term, conf_state, data)
    for message in messages:
        sent = Message(
            MessageType.SNAP,
            to=message.to,
            sender=message.sender,
            term=message.term,
            snapshot=snapshot,
        )
        member.out.snapshots.append(SnapshotTransfer(sent, path))
        mark("snapshot sent")
    member.logger.info(
        f"made an image of {facts.length} bytes at index {facts.index} for "
        + ", ".join(f"{message.to:x}" for message in messages)
    )
    # Whoever asked while this one was made may be the one the quorum lacks: no flush would follow.
    build_image(member)


def _not_built(member: Member, messages: list[Message], error: Exception) -> None:
    member.snapshots.building = False
    member.logger.error(f"cannot make an image of the backend: {error}")
    for message in messages:
        member.node.report_snapshot(message.to, failed=True)
    build_image(member)


def sent(member: Member, transfer: SnapshotTransfer, *, failed: bool) -> None:
    """Note what became of a transfer; the last one of an image removes it."""
    snapshots = member.snapshots
    path = transfer.path
    snapshots.transfers[path] -= 1
    if not snapshots.transfers[path]:
        del snapshots.transfers[path]
        member.out.jobs.append(Job(Place.POOL, RemoveImage(path), _nothing, _ignore))
    if failed:
        mark("snapshot not delivered")
    if not failed:
        snapshots.held_until = member.now + HELD_AFTER_SENDING_SECONDS
    member.node.report_snapshot(transfer.message.to, failed=failed)


# Receiving.


def install(member: Member, snapshot: Snapshot) -> None:
    """Begin to replace the backend by the image that came with a snapshot.

    The log has a record of the snapshot by now; after a crash the start does the same. Nothing
    is applied or read until it is done.
    """
    member.logger.info(f"installing the snapshot at index {snapshot.index}")
    member.snapshots.installing = snapshot
    member.begin_install()
    install_when_flushed(member)


def install_when_flushed(member: Member) -> None:
    """Go on once no batch of the old backend is on its way."""
    snapshot = member.snapshots.installing
    if snapshot is None or member.backend.is_flushing:
        return
    member.backend.close()
    # What the flusher still has to do with the old files comes first.
    member.out.jobs.append(Job(Place.FLUSHER, Nothing(), lambda _: _load(member, snapshot)))


def _load(member: Member, snapshot: Snapshot) -> None:
    path = database_path(member.snap_directory, snapshot.index)
    work = InstallImage(path, member.backend_directory, member.config.quota_bytes)
    member.out.jobs.append(Job(Place.HELPER, work, lambda _: _loaded(member, snapshot)))
    member.snapshots.noting = note_image(member.seams.files, member.seams.environments, path)


def _loaded(member: Member, snapshot: Snapshot) -> None:
    backend = open_database(member.config, member.seams)
    assert backend.applied_index == snapshot.index, (
        f"the image of the snapshot at {snapshot.index} holds what was applied up to "
        f"{backend.applied_index}"
    )
    member.snapshots.loaded = backend
    if member.snapshots.noting is None:
        _begin_reading(member)


def _begin_reading(member: Member) -> None:
    """Read the state: the rows are noted, and the database is there."""
    snapshots, cluster = member.snapshots, member.cluster
    backend, snapshots.loaded = snapshots.loaded, None
    noted, snapshots.noted = snapshots.noted, None
    assert backend is not None
    snapshots.reading = read_again(
        member.config,
        backend,
        member.header,
        member.hub,
        cluster.cluster_id,
        cluster.local_id,
        noted,
    )


def go_on_installing(member: Member, deadline: float) -> bool:
    """Read the state that a snapshot brought, until the deadline; tell whether there is more."""
    snapshots, clock = member.snapshots, member.clock
    noting, reading = snapshots.noting, snapshots.reading
    work: Iterator[None] | None = noting if noting is not None else reading
    if work is None:
        return False
    try:
        while True:
            next(work)
            if clock() >= deadline:
                return True
    except StopIteration as end:
        if noting is None:
            snapshots.reading = None
            _installed(member, end.value)
        else:
            snapshots.noting, snapshots.noted = None, end.value
            if snapshots.loaded is not None:
                _begin_reading(member)
        return True


def _installed(member: Member, state: State) -> None:
    snapshot = member.snapshots.installing
    assert snapshot is not None
    # Whoever follows the membership sees that it changed.
    state.cluster.generation = member.cluster.generation + 1
    mark("snapshot installed")
    member.snapshots.installing = None
    member.snapshots.index = snapshot.index
    member.conf_state = snapshot.conf_state
    member.start(None, _forget(member.store, member.lessor))
    member.end_install(state)
    member.writer.installed()
    member.writer.release_to(snapshot.index)
    path = database_path(member.snap_directory, snapshot.index)
    member.out.jobs.append(Job(Place.LOG, RemoveImage(path), _nothing, _ignore))
    member.logger.info(f"installed the snapshot at index {snapshot.index}")


def _forget(store: Store, lessor: Lessor) -> Steps:
    """Free what a snapshot has replaced: at once, that would hold the loop."""
    for _ in lessor.emptied():
        yield None
    for _ in store.emptied():
        yield None
    return None


def _nothing(_result: object) -> None:
    """Take the result of a job that nobody waits for."""


def _ignore(_error: Exception) -> None:
    """Go on: a file that is left is removed by the next start, a helper starts with its work."""
