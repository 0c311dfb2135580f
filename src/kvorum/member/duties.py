"""Everything a member does by itself from time to time: one table.

A duty is a named step with an interval. It does a bounded piece of work, or nothing; what is
left is done when it comes up again. Duties run at the beginning of a turn, in the order of the
table, when their time has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kvorum.files import Purge
from kvorum.member import leases, requests, timeouts
from kvorum.member.jobs import Job, Place
from kvorum.membership.versions import decide_cluster_version, decide_storage_version

if TYPE_CHECKING:
    from kvorum.member.member import Member

Step = Callable[["Member", float], float | None]
"""Returns after how many seconds it is due again; None leaves it to the table."""

PURGE_SECONDS = 30.0
READERS_SECONDS = 60.0
VERSION_SECONDS = 4.0
WATCH_SECONDS = 0.1


class Duty(NamedTuple):
    """A step and how often it is due; without an interval, once every heartbeat."""

    name: str
    seconds: float | None
    step: Step


def _compact(member: Member, _now: float) -> float | None:
    """Go on with the compaction that was asked for; without one, look for it rarely."""
    compaction = member.store.compaction
    if not compaction.is_runnable:
        return None
    if member.store.is_writing or member.backend.is_full:
        return member.config.compaction_pause_seconds
    work = compaction.step()
    if work is not None:
        member.out.jobs.append(
            Job(
                Place.HELPER,
                work,
                lambda value: compaction.hashed(work, value),
                lambda _: compaction.hashed(work, None),
            )
        )
    return member.config.compaction_pause_seconds


def _purge(member: Member, _now: float) -> None:
    """Remove snapshots and segments that no start needs any more."""
    config = member.config
    for directory, ending, keep in (
        (member.snap_directory, ".snap", config.snapshots_kept),
        (member.snap_directory, ".snap.db", config.snapshots_kept),
        (member.wal_directory, ".wal", config.segments_kept),
    ):
        work = Purge(directory, ending, keep)
        member.out.jobs.append(Job(Place.LOG, work, member.purged))


def _check_readers(member: Member, _now: float) -> None:
    """Forget views of helpers that died: they keep pages of the backend from being reused."""
    gone = member.backend.check_readers()
    if gone:
        member.logger.warning(f"forgot {gone} views of processes that are gone")


def _prepare_segment(member: Member, _now: float) -> None:
    """Try again to prepare the log's next segment, if that failed."""
    member.writer.prepare_segment()


def agree_on_version(member: Member, _now: float) -> None:
    """As the leader, propose the version that all members can live with."""
    cluster = member.cluster
    storage = decide_storage_version(cluster.storage_version, cluster.version)
    if storage is not None and not member.store.is_writing:
        cluster.set_storage_version(storage)
    if not member.is_leader:
        return
    versions = [member.version_of(each.id) for each in cluster.members]
    decided = decide_cluster_version(cluster.version, versions, cluster.downgrade_target)
    if decided is not None and decided != cluster.version:
        body = b"\x0a" + bytes((len(str(decided)),)) + str(decided).encode()
        member.propose(None, requests.CLUSTER_VERSION_SET, body)


def _watch(member: Member, now: float) -> None:
    """Tell watchers of progress."""
    member.hub.tick(now)


DUTIES = (
    Duty("fail what waited too long", None, timeouts.expire),
    Duty("revoke leases that ran out", leases.EXPIRY_SECONDS, leases.expire),
    Duty("compact", None, _compact),
    Duty("tell watchers of progress", WATCH_SECONDS, _watch),
    Duty("agree on a cluster version", VERSION_SECONDS, agree_on_version),
    Duty("prepare the next segment", PURGE_SECONDS, _prepare_segment),
    Duty("purge old files", PURGE_SECONDS, _purge),
    Duty("forget dead readers", READERS_SECONDS, _check_readers),
)


class Schedule:
    """When each duty is due next."""

    __slots__ = ("_due", "_intervals", "first")

    def __init__(self, now: float, heartbeat_seconds: float) -> None:
        self._intervals = [duty.seconds or heartbeat_seconds for duty in DUTIES]
        self._due = [now + interval for interval in self._intervals]
        self.first = min(self._due)

    def run(self, member: Member, now: float) -> None:
        """Do what is due."""
        for number, duty in enumerate(DUTIES):
            if self._due[number] <= now:
                seconds = duty.step(member, now)
                self._due[number] = now + (self._intervals[number] if seconds is None else seconds)
        self.first = min(self._due)
