"""Jobs that are done at fixed times, each time once, by whichever process comes first.

Every process looks at the clock and tries to claim what is due: a key for each job and each of its
times, which only one of them can create. If the one that claimed a time crashes before it is done,
its lease ends, the claim goes, and another process does the job. So a job is done at least once at
each time, and once as long as nobody crashes.

Run as many as you like: `python -m examples.distributed_cron localhost:2379`
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvorum import Client
from kvorum.client import create_revision, delete, put, version

PREFIX = "cron/"
CLAIM_SECONDS = 10
"""So long after a process has crashed others may do its job."""
KEPT_SECONDS = 24 * 3600
"""So long it is known what was done."""


@dataclass(frozen=True)
class Job:
    """Something to do every so many seconds."""

    name: str
    every_seconds: int
    action: Callable[[int], None]
    """Takes the time at which it was due, in seconds since 1970."""

    def due(self, now: float) -> int:
        """Return the latest time at which it was to be done."""
        return int(now) // self.every_seconds * self.every_seconds


def run_due(client: Client, job: Job, now: float) -> bool:
    """Do a job if it is due and nobody else does or did it; return whether it was done here."""
    due = job.due(now)
    claim, done = f"{PREFIX}{job.name}/{due}/claim", f"{PREFIX}{job.name}/{due}/done"
    with client.lease(CLAIM_SECONDS) as lease:
        claimed = (
            client.txn()
            .when(version(claim) == 0, version(done) == 0)
            .then(put(claim, "", lease=lease.id))
            .commit()
        )
        if not claimed.succeeded:
            return False
        job.action(due)
        kept = client.lease(KEPT_SECONDS)
        written = (
            client.txn()
            .when(create_revision(claim) == claimed.revision)
            .then(put(done, "", lease=kept.id), delete(claim))
            .commit()
        )
        if not written.succeeded:
            # Whoever has claimed it since does it once more.
            kept.revoke()
        return written.succeeded


def main(endpoint: str) -> None:
    """Say the time every ten seconds, in one of all processes that do this."""
    jobs = [Job("clock", 10, lambda due: print(time.ctime(due)))]
    with Client(endpoint) as client:
        while True:
            for job in jobs:
                run_due(client, job, time.time())
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
