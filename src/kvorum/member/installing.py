"""Install a received snapshot: one procedure that replaces a member's state.

`_install` does all of it, from raft's storage write that holds a snapshot to raft's answer; the
snapshot's image arrived before and is durable. The member's turn drives the installation. If one of
its jobs fails the member stops, as with any job of the log and the backend. An installation is
never abandoned: if the process ends during one, the next start finishes it according to the log
(`kvorum.member.recovery`).

Until the log records that the snapshot counts, the member serves its old state and applies nothing.
From then on it has no state: it does not apply, read or flush until the new state is in use. It
takes messages from peers all the time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from kvorum.api.coverage import reach
from kvorum.api.errors import TIMEOUT
from kvorum.member import flushing, log_lines, snapshots
from kvorum.member.images import InstallImage, RemoveImage, note_image
from kvorum.member.jobs import Barrier, ExecutorKind, Job, Nothing, Work, ignore
from kvorum.member.publishing import UNSEEN
from kvorum.member.restoring import open_database, reread_state
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.storage.backend.copies import is_copy
from kvorum.storage.snap import WriteSnap, database_path

if TYPE_CHECKING:
    from kvorum.member.replica import Replica
    from kvorum.member.waits import Steps
    from kvorum.raft.messages import ConfState, Message
    from kvorum.state.apply.state import State
    from kvorum.state.auth.store import AuthStore
    from kvorum.state.auth.tokens import Tokens
    from kvorum.state.lease.lessor import Lessor
    from kvorum.state.mvcc.restore import RowIndex
    from kvorum.state.mvcc.store import Store


class Completion:
    """The completion of a job, which an installation may await."""

    __slots__ = ("is_complete",)

    def __init__(self) -> None:
        self.is_complete = False

    def complete(self, _result: object) -> None:
        """Take the result of the job."""
        self.is_complete = True


InstallSteps = Generator[Completion | None, None, None]
"""Yields the completion of a job to wait for it, and None between two slices of work."""


class Installation:
    """A running installation: the rest of the procedure, and the completion it waits for."""

    __slots__ = ("_awaited", "_replica", "_steps")

    def __init__(self, replica: Replica, received: Message) -> None:
        self._replica = replica
        self._steps = _install(replica, received)
        self._awaited: Completion | None = None

    def advance(self, deadline: float) -> bool:
        """Continue until the deadline or the next wait for a job; return whether work is left.

        At the end the member drops the installation.
        """
        clock, awaited = self._replica.clock, self._awaited
        while awaited is None or awaited.is_complete:
            try:
                awaited = self._awaited = next(self._steps)
            except StopIteration:
                self._replica.installation = None
                return True
            if awaited is None and clock() >= deadline:
                return True
        return False


def _install(replica: Replica, received: Message) -> InstallSteps:
    snapshot = received.snapshot
    assert snapshot is not None
    index, writer, config = snapshot.index, replica.writer, replica.config
    image = database_path(replica.snap_directory, index)

    # Each write is durable before the next starts: a record is worthless without its file, and
    # counts only with the commit index written after it.
    written, recorded, committed = Completion(), Completion(), Completion()
    writer.submit(WriteSnap(replica.snap_directory, snapshot), written.complete)
    yield written
    writer.record_snapshot(index, snapshot.term, snapshot.conf_state, recorded.complete)
    yield recorded
    writer.save_received(committed.complete)
    yield committed

    replica.logger.info(f"installing the snapshot at index {index}")
    _abandon_state(replica)

    while replica.state.backend.is_flushing:
        yield _submit(replica, ExecutorKind.FLUSHER, Nothing())
    replica.state.backend.close()
    # Let the flusher finish its remaining jobs on the old files first.
    yield _submit(replica, ExecutorKind.FLUSHER, Nothing())
    work = InstallImage(
        image,
        replica.backend_directory,
        config.quota_bytes,
        config.limits.image_commit_entries,
        is_checked=True,
    )
    noted: RowIndex | None = None
    if is_copy(replica.seams.files, image):
        # Drain the helper first: a running defragmentation uses the same file number.
        yield _submit(replica, ExecutorKind.HELPER, Barrier())
        yield _submit(replica, ExecutorKind.FLUSHER, work)
    else:
        loaded = _submit(replica, ExecutorKind.HELPER, work)
        seams = replica.seams
        noted = yield from note_image(seams.files, seams.environments, image, config.limits)
        yield loaded
    loaded_backend = open_database(config, replica.seams)
    assert loaded_backend.applied_index == index, (
        f"the image of the snapshot at {index} holds what was applied up to "
        f"{loaded_backend.applied_index}"
    )
    cluster_id, member_id = replica.state.cluster.cluster_id, replica.state.cluster.local_id
    state = yield from reread_state(
        config,
        replica.seams,
        loaded_backend,
        replica.state.header,
        replica.hub,
        cluster_id,
        member_id,
        noted,
    )

    replica.procedures.start(None, MEMBER, _free_state(replica.state.store, replica.state.lessor))
    _use_state(replica, state, snapshot.conf_state)
    log_lines.log_recovered_members(replica)
    reach("snapshot installed")
    snapshots.note_installed(replica, index)
    writer.finish_received()
    writer.release_to(index)
    # The next start removes a leftover file.
    replica.out.jobs.append(Job(ExecutorKind.LOG, RemoveImage(image), on_failure=ignore))
    replica.logger.info(f"installed the snapshot at index {index}")
    if replica.is_closing:
        flushing.close_when_flushed(replica)


def _submit(replica: Replica, executor: ExecutorKind, work: Work) -> Completion:
    """Submit a job; return its completion."""
    completion = Completion()
    replica.out.jobs.append(Job(executor, work, completion.complete))
    return completion


def _abandon_state(replica: Replica) -> None:
    """Stop using the old state; work on it restarts later or ends."""
    replica.is_installing = True
    replica.restart_reads()
    replica.state.lessor.demote()
    queue = replica.apply_queue
    if queue.slices is not None:
        # The snapshot contains the entry's effects, so this member does not know its result.
        queue.slices.close()
        replica.answer(queue.waiter, TIMEOUT)
        queue.slices = queue.entry = None
    # No snapshot work may follow a batch that is still being flushed.
    replica.snapshots.sealed = None
    replica.snapshots.taken.clear()
    replica.state.backend.end_turn()


def _use_state(replica: Replica, state: State, conf_state: ConfState) -> None:
    """Put the new state to use, and resume the waiters for something in the old one."""
    # A higher generation shows every observer of the membership that it changed.
    state.cluster.generation = replica.state.cluster.generation + 1
    replica.is_installing = False
    # The new state holds the committed entries; the next turn measures the lag again.
    replica.is_behind = False
    replica.conf_state = conf_state
    _end_tokens(state.tokens, replica.state.auth, state.auth)
    replica.state = state
    replica.hub.resync()
    replica.procedures.wake_flushed(state.backend.durable_index)
    replica.procedures.signal_all()
    # The snapshot may contain the entry that publishes this member, which then is not applied here.
    # Clients wait for that entry, so the member proposes it again.
    for waiter in replica.proposals.abandon(requests.CLUSTER_MEMBER_ATTR_SET):
        replica.answer(waiter, UNSEEN)


def _end_tokens(tokens: Tokens, before: AuthStore, now: AuthStore) -> None:
    """End all tokens if the snapshot's revision of users and roles differs.

    The changes themselves are unknown: a user may have been deleted and added again, and
    authentication disabled and enabled again.
    """
    if now.revision != before.revision:
        reach("tokens ended by a snapshot")
        tokens.forget_all()


def _free_state(store: Store, lessor: Lessor) -> Steps:
    """Free the replaced state in slices, because freeing it at once would block the loop."""
    for _ in lessor.free_all():
        yield None
    for _ in store.free_all():
        yield None
    return None
