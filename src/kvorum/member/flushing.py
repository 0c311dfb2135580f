"""Flush the backend's batches to disk, and shut a member down cleanly.

The member seals a batch between two entries, when a flush is due or requested. At most one batch is
being flushed. A finished flush starts here what depends on it: resumed procedures, snapshots,
images, the shutdown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.member import snapshots
from kvorum.member.jobs import ExecutorKind, Job
from kvorum.member.lifecycle import MemberEvent
from kvorum.member.waits import Signal

if TYPE_CHECKING:
    from kvorum.member.replica import Replica
    from kvorum.storage.backend import Backend, Environment
    from kvorum.storage.backend.flush import Staged


def flush(replica: Replica, now: float) -> None:
    """Seal the applied entries if a flush is due or wanted and sealing is possible now."""
    backend = replica.state.backend
    is_due = backend.is_due(now)
    if not _may_seal(replica):
        return
    applied = backend.applied_index
    if not (
        is_due
        or replica.is_flush_wanted
        or applied - backend.durable_index > replica.limits.unnoted_entries_max
        # Entries without an effect fill the memory as well; only a flush allows releasing it.
        or replica.storage.memory_bytes > replica.config.log_bytes_max
        or replica.procedures.is_flush_awaited(applied)
    ):
        return
    replica.is_flush_wanted = False
    snapshots.take_due(replica)
    work = backend.seal()
    if work is None:
        snapshots.write_taken(replica)
        return
    replica.snapshots.sealed = snapshots.current_position(replica)
    done = lambda staged: _submit_commit(replica, staged)  # noqa: E731 (one line, one use)
    # Stage a large batch, as one long entry makes, beside the loop: that is slower, but peers take
    # a member that pauses for half a second for dead. Removing a large file takes as long.
    is_small = work.batch.writes <= replica.limits.flush_awaited_writes_max
    is_awaited = is_small and not backend.is_removing
    replica.out.jobs.append(Job(ExecutorKind.FLUSHER, work, done, is_awaited=is_awaited))


def flush_due_at(replica: Replica) -> float | None:
    """Return when `flush` is next due without other input.

    None while sealing is impossible: an entry that a received snapshot interrupts stays half
    applied until jobs have ended, so a turn before that would only request the next turn.
    """
    return replica.state.backend.due_at if _may_seal(replica) else None


def _may_seal(replica: Replica) -> bool:
    """Return whether no batch is being flushed and no entry is half applied.

    Two batches must never divide the effects of one entry.
    """
    return not (
        replica.state.backend.is_flushing
        or replica.state.store.is_writing
        or replica.apply_queue.slices is not None
    )


def _submit_commit(replica: Replica, staged: Staged) -> None:
    work = replica.state.backend.take_staged(staged)
    replica.out.jobs.append(
        Job(ExecutorKind.FLUSHER, work, lambda done: _finish_flush(replica, done))
    )


def _finish_flush(replica: Replica, environment: Environment) -> None:
    backend = replica.state.backend
    removal = backend.take_committed(environment)
    if removal is not None:
        backend.is_removing = True
        replica.out.jobs.append(
            Job(ExecutorKind.FLUSHER, removal, lambda _: _finish_removal(backend))
        )
        replica.procedures.signal(Signal.DEFRAGMENTED)
    replica.state.measure_room()
    replica.procedures.wake_flushed(replica.state.backend.durable_index)
    snapshots.continue_after_flush(replica)
    if replica.is_closing:
        close_when_flushed(replica)


def _finish_removal(backend: Backend) -> None:
    backend.is_removing = False


def close_when_flushed(replica: Replica) -> None:
    """Close the log and the backend once everything applied is durable."""
    if replica.state.backend.is_flushing or replica.is_installing:
        return
    replica.is_flush_wanted = True
    flush(replica, replica.now)
    if not replica.state.backend.is_flushing:
        # Nothing is left to flush but perhaps a half-applied entry, which the next start applies.
        replica.writer.close(lambda _: _close_backend(replica))


def _close_backend(replica: Replica) -> None:
    replica.state.backend.close()
    replica.lifecycle.take(MemberEvent.FILES_CLOSED)
