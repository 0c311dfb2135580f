"""Flush the backend's batches to disk, and shut a member down cleanly.

The member seals a batch between two entries, when a flush is due or requested. At most one batch is
being flushed. A finished flush starts here what depends on it: resumed procedures, snapshots,
images, the shutdown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.member import snapshots
from kvorum.member.jobs import ExecutorKind, Job
from kvorum.member.waits import Signal

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.storage.backend import Backend, Environment
    from kvorum.storage.backend.flush import Staged

UNNOTED_ENTRIES_MAX = 1000
"""After more entries without an effect than this, a flush stores the applied index."""

AWAITED_WRITES_MAX = 20_000
"""The loop waits for the staging of at most this many writes, about 10 ms."""


def flush(member: Member, now: float) -> None:
    """Seal the applied entries if a flush is due or wanted and sealing is possible now."""
    backend = member.state.backend
    is_due = backend.is_due(now)
    if not _may_seal(member):
        return
    applied = backend.applied_index
    if not (
        is_due
        or member.is_flush_wanted
        or applied - backend.durable_index > UNNOTED_ENTRIES_MAX
        # Entries without an effect fill the memory as well; only a flush allows releasing it.
        or member.storage.memory_bytes > member.config.log_bytes_max
        or member.procedures.awaits_flush(applied)
    ):
        return
    member.is_flush_wanted = False
    snapshots.take_due(member)
    work = backend.seal()
    if work is None:
        snapshots.write_taken(member)
        return
    member.snapshots.sealed = snapshots.sealed_at(member)
    done = lambda staged: _staged(member, staged)  # noqa: E731 (one line, one use)
    # Stage a large batch, as one long entry makes, beside the loop: that is slower, but peers take
    # a member that pauses for half a second for dead. Removing a large file takes as long.
    is_awaited = work.batch.writes <= AWAITED_WRITES_MAX and not backend.is_removing
    member.out.jobs.append(Job(ExecutorKind.FLUSHER, work, done, is_awaited=is_awaited))


def due_at(member: Member) -> float | None:
    """Return when `flush` is next due without other input.

    None while sealing is impossible: an entry that a received snapshot interrupts stays half
    applied until jobs have ended, so a turn before that would only request the next turn.
    """
    return member.state.backend.due_at if _may_seal(member) else None


def _may_seal(member: Member) -> bool:
    """Return whether no batch is being flushed and no entry is half applied.

    Two batches must never divide the effects of one entry.
    """
    return not (
        member.state.backend.is_flushing
        or member.state.store.is_writing
        or member.apply_queue.slices is not None
    )


def _staged(member: Member, staged: Staged) -> None:
    work = member.state.backend.staged(staged)
    member.out.jobs.append(Job(ExecutorKind.FLUSHER, work, lambda done: _committed(member, done)))


def _committed(member: Member, environment: Environment) -> None:
    backend = member.state.backend
    removal = backend.committed(environment)
    if removal is not None:
        backend.is_removing = True
        member.out.jobs.append(Job(ExecutorKind.FLUSHER, removal, lambda _: _removed(backend)))
        member.procedures.signal(Signal.DEFRAGMENTED)
    member.state.measure_room()
    member.procedures.flushed(member.state.backend.durable_index)
    snapshots.after_flush(member)
    if member.is_closing:
        close_when_flushed(member)


def _removed(backend: Backend) -> None:
    backend.is_removing = False


def close_when_flushed(member: Member) -> None:
    """Close the log and the backend once everything applied is durable."""
    if member.state.backend.is_flushing or member.is_installing:
        return
    member.is_flush_wanted = True
    flush(member, member.now)
    if not member.state.backend.is_flushing:
        # Nothing is left to flush but perhaps a half-applied entry, which the next start applies.
        member.writer.close(lambda _: _closed(member))


def _closed(member: Member) -> None:
    member.state.backend.close()
    member.is_closed = True
