"""The coverage points that runs reached: rare paths of production code."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from kvorum.api import coverage

EXPECTED = (
    "append rejected",
    "apply lags behind commit",
    "auto compaction",
    "caller of an old revision",
    "compaction resumed",
    "entries of another leader replaced",
    "entry applied over several turns",
    "late read index answer",
    "leader forgotten",
    "leader's host silent",
    "leader paused past lease",
    "leader stepped down without a quorum",
    "log replaced by a snapshot",
    "login restarted",
    "read index retried",
    "read round abandoned",
    "read served over several turns",
    "read waits for the first commit of a term",
    "snapshot installed",
    "snapshot not delivered",
    "snapshot sent",
    "token awaited",
    "tokens ended by a snapshot",
    "torn tail repaired",
    "victim watcher",
    "watcher ended by a compaction",
    "watchers resynced",
)
"""Every campaign should reach these; the seeds of `make test` must."""

RARE = (
    "catch-up abandoned",
    "first batch lost",
    "joint configuration left",
    "lease checkpoint cleared",
    "lease renewed too late",
    "snapshot installed by a start",
    "snapshot not needed",
)
"""Coverage points that take a large campaign, or that no run reaches."""


@contextmanager
def count_coverage() -> Iterator[Counter[str]]:
    """Count the coverage points that the block reaches, by name."""
    reached: Counter[str] = Counter()

    def listener(name: str) -> None:
        reached[name] += 1

    coverage.listen(listener)
    try:
        yield reached
    finally:
        coverage.listen(None)
