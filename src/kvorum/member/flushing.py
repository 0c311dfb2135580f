"""How the backend's batches reach the disk, and how a member ends cleanly.

A batch is sealed between two entries, when it is due or was asked for. At most one is on its way.
What follows a finished flush (resumed procedures, snapshots, images, the end) is begun here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.member import snapshots
from kvorum.member.jobs import Job, Place
from kvorum.member.waits import Signal

if TYPE_CHECKING:
    from kvorum.backend import Backend, Environment
    from kvorum.backend.flush import Staged
    from kvorum.member.member import Member

UNNOTED_ENTRIES_MAX = 1000
"""With more entries without an effect than this, a flush notes the index in the backend."""

AWAITED_WRITES_MAX = 20_000
"""The loop waits for staging only up to so many writes, about 10 ms."""


def flush(member: Member, now: float) -> None:
    """Seal what was applied, if it is due and may be sealed now."""
    backend = member.backend
    is_due = backend.is_due(now)
    if not _may_seal(member):
        return
    applied = backend.applied_index
    if not (
        is_due
        or member.is_flush_wanted
        or applied - backend.durable_index > UNNOTED_ENTRIES_MAX
        # Entries without an effect fill the memory as well; only a flush lets it be given back.
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
    # A large batch, the work of one long entry, is staged beside the loop: slower, but a member
    # that waits for half a second is taken for dead. To remove a large file takes as long.
    is_awaited = work.batch.writes <= AWAITED_WRITES_MAX and not backend.is_removing
    member.out.jobs.append(Job(Place.FLUSHER, work, done, is_awaited=is_awaited))


def due_at(member: Member) -> float | None:
    """Return when `flush` has something to do although nothing happens until then.

    None while nothing may be sealed: an entry that a received snapshot keeps from going on stays
    half applied until jobs have ended, so a turn before that could only ask for the next one.
    """
    return member.backend.due_at if _may_seal(member) else None


def _may_seal(member: Member) -> bool:
    """Return whether no batch is on its way, and no entry is half applied.

    The effects of one entry are never divided between two batches.
    """
    return not (
        member.backend.is_flushing
        or member.store.is_writing
        or member.apply_queue.slices is not None
    )


def _staged(member: Member, staged: Staged) -> None:
    work = member.backend.staged(staged)
    member.out.jobs.append(Job(Place.FLUSHER, work, lambda done: _committed(member, done)))


def _committed(member: Member, environment: Environment) -> None:
    backend = member.backend
    removal = backend.committed(environment)
    if removal is not None:
        backend.is_removing = True
        member.out.jobs.append(Job(Place.FLUSHER, removal, lambda _: _removed(backend)))
        member.procedures.signal(Signal.DEFRAGMENTED)
    member.measure_room()
    member.procedures.flushed(member.backend.durable_index)
    snapshots.after_flush(member)
    if member.is_closing:
        close_when_flushed(member)


def _removed(backend: Backend) -> None:
    backend.is_removing = False


def close_when_flushed(member: Member) -> None:
    """End the log and the backend once everything applied is durable."""
    if member.backend.is_flushing or member.is_installing:
        return
    member.is_flush_wanted = True
    flush(member, member.now)
    if not member.backend.is_flushing:
        # Nothing is left, or an entry is being applied: the next start applies it again.
        member.writer.close(lambda _: _closed(member))


def _closed(member: Member) -> None:
    member.backend.close()
    member.is_closed = True
