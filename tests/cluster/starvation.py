"""Distinguishing an election caused by a member from one caused by a busy machine.

A member whose loop gets no processor for an election timeout looks dead to the others, and they are
right to elect another leader. The kernel counts how long each thread was ready to run and had to
wait, and how long the machine itself was not run by the one below it; only if that was long enough
may an expectation fail, and the test begins anew.

Prefer `Cluster.be_patient`, after which no machine is busy enough to cause an election. This is for
what patience would hide: how members elect a leader in a short time, and what real leases do.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from tests.cluster.members import ELECTION_SECONDS, Cluster

P = ParamSpec("P")
TRIES_MAX = 5


class StarvedError(Exception):
    """What was expected did not happen, and the machine may be the reason."""


def again_if_starved(test: Callable[P, None]) -> Callable[P, None]:
    """Let a test begin anew if the machine starved its members, a few times at most."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        reasons: list[str] = []
        while len(reasons) < TRIES_MAX:
            try:
                return test(*arguments, **named)
            except StarvedError as reason:
                reasons.append(str(reason))
        told = "\n".join(reasons)
        raise AssertionError(f"the machine starved the members {TRIES_MAX} times:\n{told}")

    return run


def _waited(thread: Path) -> float:
    try:
        return int(thread.read_text().split()[1]) / 1e9
    except OSError:
        # It has ended meanwhile.
        return 0.0


def _stolen() -> float:
    """Return the seconds for which a hypervisor did not let a processor run that had work."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


class Machine:
    """Watches how long the members, and the network between them, wait for a processor."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = self._waits()

    def _waits(self) -> dict[int, float]:
        """Return the seconds that each process' threads have waited so far; key 0: all together."""
        running = [member.process for member in self._cluster if member.process is not None]
        waits = {0: _stolen()}
        for number in (os.getpid(), *(process.pid for process in running)):
            waits[number] = sum(map(_waited, Path(f"/proc/{number}/task").glob("*/schedstat")))
        return waits

    def expect(self, holds: bool, what: str) -> None:
        """Check something that holds if no process waits for an election timeout."""
        if holds:
            return
        waits = self._waits()
        longest = max(seconds - self._before.get(number, 0.0) for number, seconds in waits.items())
        text = f"{what}; a process waited {longest:.1f} s for a processor"
        assert longest >= ELECTION_SECONDS, text
        raise StarvedError(text)
