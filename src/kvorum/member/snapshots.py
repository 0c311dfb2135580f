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
    from kvorum.member.member import Member

HELD_AFTER_SENDING_SECONDS = 30.0
COMPACTED_ENTRIES_MIN = 100
"""The member drops at least this many entries at once, unless it keeps fewer at all."""
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


def sealed_at(member: Member) -> SealedAt:
    """Return the log position of the batch that is being sealed."""
    backend = member.state.backend
    return SealedAt(backend.applied_index, backend.applied_term, member.conf_state)


def take_due(member: Member) -> None:
    """Take a snapshot at the applied index, between two entries, if one is due or wanted."""
    snapshots, index = member.snapshots, member.state.backend.applied_index
    newest = snapshots.taken[-1].index if snapshots.taken else snapshots.index
    if (
        (index < snapshots.due_index and not snapshots.is_wanted)
        or index <= newest
        or not member.conf_state.voters
        or len(snapshots.taken) == TAKEN_MAX
    ):
        return
    log_lines.triggering_snapshot(member, index, newest)
    snapshots.is_wanted = False
    snapshots.due_index = index + member.config.snapshot_entries + 1
    # Encode the members now: they may change before the file is written.
    data = snapshot_data(member.state.cluster)
    term = member.state.backend.applied_term
    snapshots.taken.append(Snapshot(index, term, member.conf_state, data))
    if member.state.backend.due_at is None:
        # Entries without an effect schedule no flush.
        member.flush_soon()


def after_flush(member: Member) -> None:
    """After a flush: drop entries from memory, write a `.snap` file, and build an image."""
    snapshots = member.snapshots
    sealed, snapshots.sealed = snapshots.sealed, None
    if sealed is None:
        return
    if sealed.conf_state.voters:
        _compact_memory(member, sealed)
    write_taken(member)
    build_image(member)


def write_taken(member: Member) -> None:
    """Write the next `.snap` file if the backend durably holds its entries."""
    snapshots = member.snapshots
    if snapshots.writing or not snapshots.taken or member.writer.received is not None:
        return
    snapshot = snapshots.taken[0]
    if snapshot.index > member.state.backend.durable_index:
        return
    snapshots.writing = True
    work = WriteSnap(member.snap_directory, snapshot)
    member.out.jobs.append(Job(ExecutorKind.LOG, work, lambda _: _record(member, snapshot)))


def _record(member: Member, snapshot: Snapshot) -> None:
    index = snapshot.index
    member.writer.record_snapshot(
        index, snapshot.term, snapshot.conf_state, lambda _: _recorded(member, index)
    )


def _recorded(member: Member, index: int) -> None:
    snapshots = member.snapshots
    snapshots.writing = False
    snapshots.index = index
    member.writer.release_to(index)
    work = ReleaseDatabases(member.snap_directory, index)
    member.out.jobs.append(Job(ExecutorKind.LOG, work))
    log_lines.saved_snapshot(member, index)
    # An installation may have cleared `taken` meanwhile.
    if snapshots.taken and snapshots.taken[0].index == index:
        snapshots.taken.popleft()
    write_taken(member)


def installed(member: Member, index: int) -> None:
    """Note that the leader's snapshot has replaced this member's state."""
    snapshots = member.snapshots
    snapshots.index = index
    snapshots.due_index = index + member.config.snapshot_entries + 1


def after_start(member: Member) -> None:
    """Drop entries that a restart read into memory, as a running member would have.

    The log may hold more than `log_bytes_max` after the last `.snap`. If all of it is applied and
    durable, no flush would follow, and the member would refuse all proposals for ever.
    """
    index, term = member.state.backend.durable_index, member.state.backend.applied_term
    if index and member.conf_state.voters:
        _compact_memory(member, SealedAt(index, term, member.conf_state))


def _compact_memory(member: Member, sealed: SealedAt) -> None:
    """Drop entries that the backend holds and that exceed the limits for catching up peers."""
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
        # Drop an eighth more than necessary, so that this does not repeat every few entries.
        index = max(index, storage.index_within(bytes_max - bytes_max // 8))
    # Raft still reads entries that it does not yet know as applied.
    index = min(index, sealed.index, member.node.raft.log.applied)
    if index < first:
        return
    # A peer that needs older entries gets an image, which is always newer than this snapshot.
    if sealed.index > storage.snapshot().index:
        storage.create_snapshot(sealed.index, sealed.conf_state, b"")
    storage.compact(index)
    log_lines.compacted_log(member, index)
    if member.is_leader and not snapshots.is_expected:
        _expect_image(member, index)


def _expect_image(member: Member, index: int) -> None:
    """Start the helper if a peer lacks dropped entries and so will need an image."""
    progress = member.node.raft.tracker.progress
    takes_copies = member.snapshots.takes_copies
    if any(
        each.match < index and not takes_copies(peer)
        for peer, each in progress.items()
        if peer != member.id
    ):
        member.snapshots.is_expected = True
        member.out.jobs.append(Job(ExecutorKind.HELPER, Nothing(), on_failure=ignore))


# Sending.


def send(member: Member, message: Message) -> None:
    """Send a peer a new image instead of the older snapshot that raft knows."""
    member.snapshots.sending.append((message, member.state.applied))
    member.flush_soon()
    build_image(member)


def build_image(member: Member) -> None:
    """Start an image if a peer waits for one and the backend durably holds the entries it needs.

    An image must include all entries applied at the request, because a peer refuses a snapshot
    with a configuration that does not contain it.
    """
    snapshots = member.snapshots
    if snapshots.building or not snapshots.sending:
        return
    if max(index for _, index in snapshots.sending) > member.state.backend.durable_index:
        return
    snapshots.building = True
    snapshots.is_expected = False
    path = "/".join((member.snap_directory, f"tmp.image.{snapshots.next_image()}"))
    # Peers of one kind (copy or bbolt image) share a file; the others get the next one.
    takes_copies = snapshots.takes_copies
    copied = takes_copies(snapshots.sending[0][0].to)
    messages = [message for message, _ in snapshots.sending if takes_copies(message.to) == copied]
    snapshots.sending = [each for each in snapshots.sending if takes_copies(each[0].to) != copied]
    copying: Copying | None = None
    if copied:
        seams = member.seams
        try:
            copying = Copying(seams.files, seams.environments, member.backend_directory)
        except BackendError as error:
            _not_built(member, messages, error, None)
            return
    member.out.jobs.append(
        Job(
            ExecutorKind.HELPER if copying is None else ExecutorKind.POOL,
            BuildImage(member.backend_directory, path)
            if copying is None
            else CopyImage(copying, path),
            lambda facts: _built(member, messages, path, facts, copying),
            lambda error: _not_built(member, messages, error, copying),
        )
    )


def _built(
    member: Member, messages: list[Message], path: str, facts: object, copying: Copying | None
) -> None:
    assert isinstance(facts, ImageFacts)
    if copying is not None:
        copying.end()
    snapshots = member.snapshots
    snapshots.building = False
    snapshots.transfers[path] = len(messages)
    snapshots.image_began[path] = member.counters.stopwatch()
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
        member.out.snapshots.append(SnapshotTransfer(sent, path, facts.length, copying is not None))
        reach("snapshot sent")
    member.logger.info(
        f"made an image of {facts.length} bytes at index {facts.index} for "
        + ", ".join(f"{message.to:x}" for message in messages)
    )
    # A peer that has requested one meanwhile may be the one the quorum lacks: then no flush would
    # follow to start its image.
    build_image(member)


def _not_built(
    member: Member, messages: list[Message], error: Exception, copying: Copying | None
) -> None:
    if copying is not None:
        copying.end()
    member.snapshots.building = False
    member.logger.error(f"cannot make an image of the backend: {error}")
    for message in messages:
        member.node.report_snapshot(message.to, failed=True)
    build_image(member)


def sent(member: Member, transfer: SnapshotTransfer, *, failed: bool) -> None:
    """Take the outcome of a transfer; the last transfer of an image removes the file."""
    snapshots = member.snapshots
    path = transfer.path
    snapshots.transfers[path] -= 1
    if not snapshots.transfers[path]:
        del snapshots.transfers[path]
        began = snapshots.image_began.pop(path)
        member.counters.image_seconds.observe(member.counters.stopwatch() - began)
        # The next start removes a leftover file.
        member.out.jobs.append(Job(ExecutorKind.POOL, RemoveImage(path), on_failure=ignore))
    if failed:
        reach("snapshot not delivered")
    if not failed:
        snapshots.held_until = member.now + HELD_AFTER_SENDING_SECONDS
    member.node.report_snapshot(transfer.message.to, failed=failed)
