"""The table of duties: a member's periodic work.

A duty is a named step. It does a bounded piece of work, or none, and continues the rest when it is
next due. It is due at an interval, or at a moment that a function returns every turn. Duties run at
the start of a turn, in the order of the table. Duties with an interval run in the turn after a
tick, so that they do not wake an idle member, unless ticks are rarer than the interval.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from kvorum.api.codec import cluster_version_request
from kvorum.api.pb.membershippb import DowngradeInfoSetRequest
from kvorum.member import leases, log_lines, timeouts
from kvorum.member.config import MemberConfig
from kvorum.member.jobs import ExecutorKind, Job, Work
from kvorum.member.waits import Signal
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.state.membership.versions import decide_cluster_version
from kvorum.storage.files import Purge
from kvorum.storage.snap import ReleaseDatabases

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.state.mvcc.compaction import Compactor
    from kvorum.state.mvcc.hashes import HashRows

Step = Callable[["Member", float], None]

READERS_SECONDS = 60.0
VERSION_SECONDS = 4.0
HASHED_BYTES_SHORT = 256 << 10
"""Hashing a database up to this size takes milliseconds."""


class Duty(NamedTuple):
    """A step and its schedule: an interval in seconds, or a function that returns the moment."""

    name: str
    when: float | Callable[[Member], float]
    step: Step


def _time_out(member: Member, now: float) -> None:
    """Fail the proposals and reads that have timed out."""
    timeouts.expire(member.replica, now)


def _next_compaction_at(member: Member) -> float:
    return member.compaction_resumes if member.state.store.compaction.is_runnable else inf


def _compact(member: Member, now: float) -> None:
    """Continue the pending compaction by some steps, then pause."""
    counters = member.counters
    began = counters.stopwatch()
    member.compaction_resumes = now + member.config.compaction_pause_seconds
    if _take_compaction_steps(member):
        counters.count_compaction_pause(began)


def _take_compaction_steps(member: Member) -> bool:
    """Take steps of a compaction; return whether it took any."""
    compaction, counters = member.state.store.compaction, member.counters
    has_worked = False
    rows_per_step = member.config.limits.compaction_batch_rows_per_step
    for _ in range(max(1, member.config.compaction_batch // rows_per_step)):
        if (
            member.state.store.is_writing
            or member.state.backend.is_full
            or not compaction.is_runnable
        ):
            break
        if compaction.waits_for_flush:
            # Without a flush the job would carry the pending rows through the helper's pipe.
            member.replica.flush_soon()
            break
        has_worked = True
        if not compaction.has_begun:
            compaction.began_at, compaction.removed_before = member.now, compaction.removed
        finished, is_index = compaction.finished_revision, compaction.is_at_index
        began = counters.stopwatch()
        work = compaction.step()
        counters.count_compaction_step(began, is_index=is_index)
        if compaction.finished_revision != finished:
            counters.count_compaction_end(member.unix_seconds())
            removed = compaction.removed - compaction.removed_before
            log_lines.log_compaction_end(member.replica, compaction.began_at, removed)
            member.procedures.signal(Signal.COMPACTED)
        if work is not None:
            is_short = member.state.backend.size_in_use_bytes <= HASHED_BYTES_SHORT
            member.out.jobs.append(_make_hash_job(compaction, work, is_short=is_short))
    return has_worked


def _make_hash_job(compaction: Compactor, work: HashRows, *, is_short: bool) -> Job:
    return Job(
        ExecutorKind.HELPER,
        work,
        lambda value: compaction.take_hash(work, value),
        lambda _: compaction.take_hash(work, None),
        is_short=is_short,
    )


def _purge(member: Member, _now: float) -> None:
    """Remove snapshots and log segments that no start needs any more."""
    config = member.config
    works: list[Work] = [
        Purge(member.replica.wal_directory, ".wal", config.segments_kept),
        # By index instead of number: an older file may await installation while newer ones arrive.
        ReleaseDatabases(member.replica.snap_directory, member.state.backend.durable_index),
    ]
    if not member.replica.snapshots.writing and member.replica.writer.received is None:
        # A `.snap` file without its record is worthless: it must not displace the one before.
        works.append(Purge(member.replica.snap_directory, ".snap", config.snapshots_kept))
    for work in works:
        member.out.jobs.append(Job(ExecutorKind.LOG, work, partial(_log_purged, member)))


def _log_purged(member: Member, names: object) -> None:
    if names:
        member.logger.info(f"purged {names}")


def _check_readers(member: Member, _now: float) -> None:
    """Forget views of dead helpers, which keep the backend from reusing pages."""
    gone = member.state.backend.check_readers()
    if gone:
        member.logger.warning(f"forgot {gone} views of processes that are gone")


def _prepare_segment(member: Member, _now: float) -> None:
    """Retry a failed preparation of the log's next segment."""
    member.replica.writer.prepare_segment()


def agree_on_version(member: Member, _now: float) -> None:
    """Set the storage version; as the leader, propose a cluster version all members support."""
    cluster = member.state.cluster
    if not member.state.store.is_writing:
        cluster.adjust_storage_version()
    if not member.is_leader:
        return
    versions = [member.version_of(each.id) for each in cluster.members]
    decided = decide_cluster_version(cluster.version, versions, cluster.downgrade_target)
    if decided is not None and decided != cluster.version:
        body = cluster_version_request(str(decided))
        member.replica.propose(None, MEMBER, requests.CLUSTER_VERSION_SET, body)


def _end_downgrade(member: Member, _now: float) -> None:
    """As the leader, end the downgrade under way once all members run its target version."""
    target = member.state.cluster.downgrade_target
    if target is None or not member.is_leader:
        return
    versions = [member.version_of(each.id) for each in member.state.cluster.members]
    if all(version is not None and version.level == target.level for version in versions):
        member.logger.info(f"the cluster has been downgraded to {target}")
        body = DowngradeInfoSetRequest(enabled=False).SerializeToString()
        # Never forwarded: under a later leader another downgrade may have started.
        member.replica.propose_as_leader(member.term, [(requests.DOWNGRADE_INFO_SET, body)])


def _next_progress_at(member: Member) -> float:
    return member.hub.next_deadline


def _send_progress(member: Member, now: float) -> None:
    """Send watchers the periodic progress that is due."""
    member.hub.tick(now)


def _next_election_at(member: Member) -> float:
    return member.replica.succession.election_at


def _stand_for_election(member: Member, now: float) -> None:
    """Stand for election if the leader's process has ended."""
    member.replica.succession.stand_for_election(member.replica, now)


def _compare_hashes(member: Member, now: float) -> None:
    """As the leader, check whether all members hold the same data."""
    member.corruption.run(member, now)


def _make_duties(config: MemberConfig) -> tuple[Duty, ...]:
    heartbeat, downgrade_check_seconds = config.heartbeat_seconds, config.downgrade_check_seconds
    if downgrade_check_seconds <= 0:
        downgrade_check_seconds = inf
    purge_seconds = config.limits.purge_seconds
    return (
        Duty("fail requests that timed out", heartbeat, _time_out),
        Duty("stand for election", _next_election_at, _stand_for_election),
        Duty("revoke expired leases", leases.EXPIRY_SECONDS, leases.expire),
        Duty("compact", _next_compaction_at, _compact),
        Duty("send watchers their progress", _next_progress_at, _send_progress),
        Duty("compare hashes with peers", heartbeat, _compare_hashes),
        Duty("agree on a cluster version", VERSION_SECONDS, agree_on_version),
        Duty("end a downgrade", downgrade_check_seconds, _end_downgrade),
        Duty("prepare the next segment", purge_seconds, _prepare_segment),
        Duty("purge old files", purge_seconds, _purge),
        Duty("forget dead readers", READERS_SECONDS, _check_readers),
    )


class Schedule:
    """The next moment of each duty."""

    __slots__ = (
        "_at_intervals",
        "_at_moments",
        "_due",
        "_early_seconds",
        "_first",
        "_frequent",
        "has_ticked",
    )

    def __init__(self, now: float, config: MemberConfig) -> None:
        duties = _make_duties(config)
        self._at_moments = [(duty.when, duty.step) for duty in duties if callable(duty.when)]
        self._at_intervals = [(duty.when, duty.step) for duty in duties if not callable(duty.when)]
        self._due = [now + seconds for seconds, _ in self._at_intervals]
        tick = config.heartbeat_seconds
        # Ticks come a little early or late: a duty runs at the tick nearest to its moment.
        self._early_seconds = tick / 2
        self._frequent = [n for n, (seconds, _) in enumerate(self._at_intervals) if seconds < tick]
        self._first = self._next_frequent()
        self.has_ticked = False

    def run(self, member: Member, now: float) -> None:
        """Run the duties that are due."""
        for when, step in self._at_moments:
            if when(member) <= now:
                step(member, now)
        if self.has_ticked:
            moment = now + self._early_seconds
        elif self._first <= now:
            moment = now
        else:
            return
        self.has_ticked = False
        for number, (seconds, step) in enumerate(self._at_intervals):
            if self._due[number] <= moment:
                self._due[number] = now + seconds
                step(member, now)
        self._first = self._next_frequent()

    def next_moment(self, member: Member) -> float:
        """Return when the next duty is due that does not wait for a tick."""
        return min(self._first, *(when(member) for when, _ in self._at_moments))

    def _next_frequent(self) -> float:
        return min((self._due[number] for number in self._frequent), default=inf)
