"""The member's own snapshots: they let it cut the log, and catch up lagging peers.

The backend's durable content is the snapshot; the `.snap` file only records the last entry in it
and the members. The member takes a snapshot after a number of applied entries, writes the file when
a flush has brought the backend at least that far, and then releases the log segments before it. It
drops entries from memory as soon as the backend has them, except those that followers may still
need to catch up. During a transfer to a peer, which will need the entries after the snapshot, it
drops only entries beyond a limit of bytes.
`kvorum.member.installing` handles received snapshots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvorum.api.coverage import reach
from kvorum.member import log_lines
from kvorum.member.images import BuildImage, CopyImage, ImageFacts, RemoveImage
from kvorum.member.jobs import ExecutorKind, Job, Nothing, ignore
from kvorum.member.outbox import SnapshotTransfer
from kvorum.raft.messages import ConfState, Message, MessageType, Snapshot
from kvorum.state.membership.documents import decode_conf_state
from kvorum.state.membership.v2_store import snapshot_data, stored_snapshot_data
from kvorum.storage.backend import BackendError
from kvorum.storage.backend.copies import Copying
from kvorum.storage.snap import ReleaseDatabases, WriteSnap

if TYPE_CHECKING:
    from kvorum.member.replica import Replica

TAKEN_MAX = 64
"""While this many `.snap` files wait to be written, the member takes no other snapshot."""


@dataclass(slots=True, frozen=True)
class SealedAt:
    """The log position at which a batch of the backend was sealed, and the members there."""

    index: int
    term: int
    conf_state: ConfState


def _takes_none(_peer: int) -> bool:
    return False


class SnapshotState:
    """The state of snapshots: the newest written one, those to write and those being sent."""

    __slots__ = (
        "_images",
        "building",
        "due_index",
        "held_until",
        "image_began",
        "index",
        "is_expected",
        "is_wanted",
        "sealed",
        "sending",
        "taken",
        "takes_copies",
        "transfers",
        "writing",
    )

    def __init__(self, index: int, entries: int) -> None:
        self.index = index  # of the newest `.snap` whose record is durable
        self.due_index = index + entries + 1  # of the next snapshot to take
        # The contents of the next `.snap` files.
        self.taken: deque[Snapshot] = deque()
        self.writing = False
        self.is_wanted = False  # take one regardless of the number of entries
        # The position of the batch being flushed; None if no snapshot work follows it.
        self.sealed: SealedAt | None = None
        # Raft's messages that wait for an image, and the index that the image has to reach.
        self.sending: list[tuple[Message, int]] = []
        self.building = False
        # Whether the helper was started ahead of an expected image.
        self.is_expected = False
        # How many transfers still read each image.
        self.transfers: dict[str, int] = {}
        # The stopwatch when each image was ready; for metrics.
        self.image_began: dict[str, float] = {}
        self.held_until = 0.0
        # Whether a peer accepts a copy of the database file; set by the transport's owner.
        self.takes_copies: Callable[[int], bool] = _takes_none
        self._images = 0

    def next_image(self) -> int:
        """Return a number for the name of an image."""
        self._images += 1
        return self._images


def current_position(replica: Replica) -> SealedAt:
    """Return the log position of the batch that is being sealed."""
    backend = replica.state.backend
    return SealedAt(backend.applied_index, backend.applied_term, replica.conf_state)


def take_due(replica: Replica) -> None:
    """Take a snapshot at the applied index, between two entries, if one is due or wanted."""
    snapshots, index = replica.snapshots, replica.state.backend.applied_index
    newest = snapshots.taken[-1].index if snapshots.taken else snapshots.index
    if (
        (index < snapshots.due_index and not snapshots.is_wanted)
        or index <= newest
        or not replica.conf_state.voters
        or len(snapshots.taken) == TAKEN_MAX
    ):
        return
    log_lines.log_snapshot_start(replica, index, newest)
    snapshots.is_wanted = False
    snapshots.due_index = index + replica.config.snapshot_entries + 1
    # Encode the members now: they may change before the file is written.
    data = snapshot_data(replica.state.cluster)
    term = replica.state.backend.applied_term
    snapshots.taken.append(Snapshot(index, term, replica.conf_state, data))
    if replica.state.backend.due_at is None:
        # Entries without an effect schedule no flush.
        replica.flush_soon()


def continue_after_flush(replica: Replica) -> None:
    """After a flush: drop entries from memory, write a `.snap` file, and build an image."""
    snapshots = replica.snapshots
    sealed, snapshots.sealed = snapshots.sealed, None
    if sealed is None:
        return
    if sealed.conf_state.voters:
        _compact_memory(replica, sealed)
    write_taken(replica)
    build_image(replica)


def write_taken(replica: Replica) -> None:
    """Write the next `.snap` file if the backend durably holds its entries."""
    snapshots = replica.snapshots
    if snapshots.writing or not snapshots.taken or replica.writer.received is not None:
        return
    snapshot = snapshots.taken[0]
    if snapshot.index > replica.state.backend.durable_index:
        return
    snapshots.writing = True
    work = WriteSnap(replica.snap_directory, snapshot)
    replica.out.jobs.append(Job(ExecutorKind.LOG, work, lambda _: _record(replica, snapshot)))


def _record(replica: Replica, snapshot: Snapshot) -> None:
    index = snapshot.index
    replica.writer.record_snapshot(
        index, snapshot.term, snapshot.conf_state, lambda _: _finish_record(replica, index)
    )


def _finish_record(replica: Replica, index: int) -> None:
    snapshots = replica.snapshots
    snapshots.writing = False
    snapshots.index = index
    replica.writer.release_to(index)
    work = ReleaseDatabases(replica.snap_directory, index)
    replica.out.jobs.append(Job(ExecutorKind.LOG, work))
    log_lines.log_saved_snapshot(replica, index)
    # An installation may have cleared `taken` meanwhile.
    if snapshots.taken and snapshots.taken[0].index == index:
        snapshots.taken.popleft()
    write_taken(replica)


def note_installed(replica: Replica, index: int) -> None:
    """Note that the leader's snapshot has replaced this member's state."""
    snapshots = replica.snapshots
    snapshots.index = index
    snapshots.due_index = index + replica.config.snapshot_entries + 1


def compact_after_start(replica: Replica) -> None:
    """Drop entries that a restart read into memory, as a running member would have.

    The log may hold more than `log_bytes_max` after the last `.snap`. If all of it is applied and
    durable, no flush would follow, and the member would refuse all proposals for ever.
    """
    index, term = replica.state.backend.durable_index, replica.state.backend.applied_term
    if index and replica.conf_state.voters:
        _compact_memory(replica, SealedAt(index, term, replica.conf_state))


def _compact_memory(replica: Replica, sealed: SealedAt) -> None:
    """Drop entries that the backend holds and that exceed the limits for catching up peers."""
    snapshots, storage, config = replica.snapshots, replica.storage, replica.config
    first = storage.first_index()
    is_sending = snapshots.sending or snapshots.building or snapshots.transfers
    if is_sending or replica.now < snapshots.held_until:
        index, bytes_max = 0, config.held_bytes_max
    else:
        index, bytes_max = sealed.index - config.catch_up_entries, config.catch_up_bytes_max
        if index - first < min(replica.limits.log_dropped_entries_min, config.catch_up_entries):
            index = 0
    if storage.memory_bytes > bytes_max:
        # Drop an eighth more than necessary, so that this does not repeat every few entries.
        index = max(index, storage.index_within(bytes_max - bytes_max // 8))
    # Raft still reads entries that it does not yet know as applied.
    index = min(index, sealed.index, replica.node.raft.log.applied)
    if index < first:
        return
    # A peer that needs older entries gets an image, which is always newer than this snapshot.
    if sealed.index > storage.snapshot().index:
        storage.create_snapshot(sealed.index, sealed.conf_state, b"")
    storage.compact(index)
    log_lines.log_dropped_entries(replica, index)
    if replica.is_leader and not snapshots.is_expected:
        _expect_image(replica, index)


def _expect_image(replica: Replica, index: int) -> None:
    """Start the helper if a peer lacks dropped entries and so will need an image."""
    progress = replica.node.raft.tracker.progress
    takes_copies = replica.snapshots.takes_copies
    if any(
        each.match < index and not takes_copies(peer)
        for peer, each in progress.items()
        if peer != replica.id
    ):
        replica.snapshots.is_expected = True
        replica.out.jobs.append(Job(ExecutorKind.HELPER, Nothing(), on_failure=ignore))


# Sending.


def send(replica: Replica, message: Message) -> None:
    """Send a peer a new image instead of the older snapshot that raft knows."""
    replica.snapshots.sending.append((message, replica.state.applied))
    replica.flush_soon()
    build_image(replica)


def build_image(replica: Replica) -> None:
    """Start an image if a peer waits for one and the backend durably holds the entries it needs.

    An image must include all entries applied at the request, because a peer refuses a snapshot
    with a configuration that does not contain it.
    """
    snapshots = replica.snapshots
    if snapshots.building or not snapshots.sending:
        return
    if max(index for _, index in snapshots.sending) > replica.state.backend.durable_index:
        return
    snapshots.building = True
    snapshots.is_expected = False
    path = "/".join((replica.snap_directory, f"tmp.image.{snapshots.next_image()}"))
    # Peers of one kind (copy or bbolt image) share a file; the others get the next one.
    takes_copies = snapshots.takes_copies
    copied = takes_copies(snapshots.sending[0][0].to)
    messages = [message for message, _ in snapshots.sending if takes_copies(message.to) == copied]
    snapshots.sending = [each for each in snapshots.sending if takes_copies(each[0].to) != copied]
    copying: Copying | None = None
    if copied:
        seams = replica.seams
        try:
            copying = Copying(
                seams.files,
                seams.environments,
                replica.backend_directory,
                replica.limits.view_scan_entries,
            )
        except BackendError as error:
            _fail_image(replica, messages, error, None)
            return
    replica.out.jobs.append(
        Job(
            ExecutorKind.HELPER if copying is None else ExecutorKind.POOL,
            BuildImage.of(replica.backend_directory, path, replica.limits)
            if copying is None
            else CopyImage(copying, path),
            lambda facts: _send_image(replica, messages, path, facts, copying),
            lambda error: _fail_image(replica, messages, error, copying),
        )
    )


def _send_image(
    replica: Replica, messages: list[Message], path: str, facts: object, copying: Copying | None
) -> None:
    assert isinstance(facts, ImageFacts)
    if copying is not None:
        copying.end()
    snapshots = replica.snapshots
    snapshots.building = False
    snapshots.transfers[path] = len(messages)
    snapshots.image_began[path] = replica.counters.stopwatch()
    conf_state = decode_conf_state(facts.conf_state)
    # Use the image's membership: the current one may differ by now.
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
        replica.out.snapshots.append(
            SnapshotTransfer(sent, path, facts.length, copying is not None)
        )
        reach("snapshot sent")
    replica.logger.info(
        f"made an image of {facts.length} bytes at index {facts.index} for "
        + ", ".join(f"{message.to:x}" for message in messages)
    )
    # A peer that has requested one meanwhile may be the one the quorum lacks: then no flush would
    # follow to start its image.
    build_image(replica)


def _fail_image(
    replica: Replica, messages: list[Message], error: Exception, copying: Copying | None
) -> None:
    if copying is not None:
        copying.end()
    replica.snapshots.building = False
    replica.logger.error(f"cannot make an image of the backend: {error}")
    for message in messages:
        replica.node.report_snapshot(message.to, failed=True)
    build_image(replica)


def finish_transfer(replica: Replica, transfer: SnapshotTransfer, *, failed: bool) -> None:
    """Take the outcome of a transfer; the last transfer of an image removes the file."""
    snapshots = replica.snapshots
    path = transfer.path
    snapshots.transfers[path] -= 1
    if not snapshots.transfers[path]:
        del snapshots.transfers[path]
        began = snapshots.image_began.pop(path)
        replica.counters.image_seconds.observe(replica.counters.stopwatch() - began)
        # The next start removes a leftover file.
        replica.out.jobs.append(Job(ExecutorKind.POOL, RemoveImage(path), on_failure=ignore))
    if failed:
        reach("snapshot not delivered")
    if not failed:
        snapshots.held_until = replica.now + replica.limits.log_held_after_sending_seconds
    replica.node.report_snapshot(transfer.message.to, failed=failed)
