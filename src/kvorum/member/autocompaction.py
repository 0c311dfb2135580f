"""Auto compaction: propose compactions by age or by number of revisions.

Both modes are procedures that run as long as their member; only the leader proposes. By age, the
procedure samples the revision ten times an interval, which is the retention but at most an hour;
the first compaction comes after the whole retention, each next one after an interval. The procedure
retries a failed compaction at the next sample.

Samples stay valid when a snapshot replaces the state: their revisions are at least as old.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvorum.api.codec import compaction_request
from kvorum.api.coverage import reach
from kvorum.api.durations import seconds_text
from kvorum.api.errors import COMPACTED, Status
from kvorum.member.waits import Propose, Until
from kvorum.raft.logger import log_fields
from kvorum.state.apply.callers import MEMBER
from kvorum.state.apply.requests import COMPACTION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvorum.member.member import Member
    from kvorum.member.parts import Part
    from kvorum.member.waits import Steps

INTERVAL_SECONDS_MAX = 3600.0
SAMPLES_PER_INTERVAL = 10
ROUNDING_SECONDS = 0.001


def start_auto_compaction(member: Member) -> None:
    """Start the configured auto compactions."""
    config = member.config
    if config.retention_seconds:
        member.start(None, MEMBER, by_age(member, config.retention_seconds))
    if config.retention_revisions:
        steps = by_revision(member, config.retention_revisions, config.retention_check_seconds)
        member.start(None, MEMBER, steps)


def by_age(member: Member, retention_seconds: float) -> Steps:
    """Keep the history of the last `retention_seconds`."""
    interval = min(retention_seconds, INTERVAL_SECONDS_MAX)
    sample = interval / SAMPLES_PER_INTERVAL
    # One sample more than fits into the retention, so that the oldest is as old as the retention.
    revisions: deque[int] = deque(maxlen=int(retention_seconds / sample + 1e-9) + 1)
    compacted, succeeded, pause = 0, member.now, retention_seconds
    while True:
        revisions.append(member.state.store.revision)
        yield Until(member.now + sample)
        revision = revisions[0]
        # Moments are sums of fractions; a rounding error is no reason to wait.
        is_early = member.now - succeeded < pause - ROUNDING_SECONDS
        if is_early or revision == compacted or not member.is_leader:
            continue
        pause = interval
        kept = {"compact_period": seconds_text(retention_seconds)}
        if (yield from _compact(member, revision, "periodic", kept)):
            compacted, succeeded = revision, member.now


def by_revision(member: Member, retention: int, check_seconds: float) -> Steps:
    """Keep the last `retention` revisions."""
    compacted, kept = 0, {"revision_compaction_retention": retention}
    while True:
        yield Until(member.now + check_seconds)
        revision = member.state.store.revision - retention
        if (
            revision > 0
            and revision != compacted
            and member.is_leader
            and (yield from _compact(member, revision, "revision", kept))
        ):
            compacted = revision


def _compact(member: Member, revision: int, mode: str, kept: Mapping[str, object]) -> Part[bool]:
    """Propose a compaction; return whether the history before that revision is gone."""
    began_at, logger = member.now, member.logger
    log_fields(logger, "info", f"starting auto {mode} compaction", revision=revision, **kept)
    answer = yield Propose(COMPACTION, compaction_request(revision))
    if isinstance(answer, Status) and answer != COMPACTED:
        message = f"failed auto {mode} compaction"
        log_fields(logger, "warn", message, revision=revision, **kept, error=answer.text)
        return False
    reach("auto compaction")
    took = seconds_text(member.now - began_at)
    log_fields(
        logger, "info", f"completed auto {mode} compaction", revision=revision, **kept, took=took
    )
    return True
