"""Jobs that run at fixed times, each time once, in whichever process claims the time first.

Every process polls the clock and tries to claim due jobs: each job and time has a key that only one
process can create. If that process crashes before the job is done, its lease expires, the claim
disappears, and another process does the job. So a job runs at least once at each time, and exactly
once as long as no process crashes.

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
"""After a crash, other processes may do the crashed process's job this much later."""
KEPT_SECONDS = 24 * 3600
"""How long the record of a finished job is kept."""


@dataclass(frozen=True)
class Job:
    """An action to run once every `every_seconds` seconds."""

    name: str
    every_seconds: int
    action: Callable[[int], None]
    """Takes the time at which the job was due, in seconds since 1970."""

    def due(self, now: float) -> int:
        """Return the latest time at which the job was due."""
        return int(now) // self.every_seconds * self.every_seconds


def run_due(client: Client, job: Job, now: float) -> bool:
    """Run a job if it is due and no other process claimed it; return whether it was done here."""
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
            # Our claim expired meanwhile, so another process may do the job once more.
            kept.revoke()
        return written.succeeded


def main(endpoint: str) -> None:
    """Print the time every ten seconds, in only one of all processes that run this."""
    jobs = [Job("clock", 10, lambda due: print(time.ctime(due)))]
    with Client(endpoint) as client:
        while True:
            for job in jobs:
                run_due(client, job, time.time())
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
