"""Six bugs to be found: each replaces one production function for as long as a run lasts.

They are the field's classics, and each breaks exactly one promise. `python -m tests.sim.planted`
runs every one from seed 0 and tells how many seeds it took.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.backend.backend import Backend
from kvorum.backend.flush import StageFlush
from kvorum.backend.view import View
from kvorum.member.logwriter import LogWriter
from kvorum.mvcc.watch.catchup import CatchUp
from kvorum.raft import reads
from kvorum.raft.core import Raft
from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState, Message
from kvorum.wal.jobs import AppendLog
from kvorum.wal.log import Log
from sim.campaign import size_of
from sim.run import Outcome, simulate

SEEDS_MAX = 200
SIZES = (3, 1, 3, 5)

Planted = Callable[[], AbstractContextManager[object]]


@contextmanager
def acknowledge_before_fsync() -> Iterator[None]:
    """Let go what waits for a batch as soon as the batch is on its way."""
    original = LogWriter._write_batch

    def write_batch(writer: LogWriter) -> None:
        before = len(writer._writing)
        original(writer)
        if len(writer._writing) > before:
            messages = writer._writing[-1]
            writer._writing[-1] = []
            writer._deliver(messages)

    with patch.object(LogWriter, "_write_batch", write_batch):
        yield


@contextmanager
def forget_the_vote() -> Iterator[None]:
    """Write the term without whom the vote went to."""
    original = Log.save

    def save(log: Log, state: HardState | None, entries: list[Entry]) -> AppendLog | None:
        return original(log, None if state is None else state._replace(vote=0), entries)

    with patch.object(Log, "save", save):
        yield


@contextmanager
def skip_the_read_index_quorum() -> Iterator[None]:
    """Let a leader answer reads without asking whether it still leads."""

    def read(raft: Raft, message: Message) -> None:
        reads._answer(raft, message, raft.log.committed)

    with patch.object(reads, "_read", read):
        yield


@contextmanager
def apply_twice_after_restart() -> Iterator[None]:
    """Take the last applied entry for one that is not applied yet."""
    original = View.applied

    def applied(view: View) -> tuple[int, int]:
        index, term = original(view)
        return max(0, index - 1), term

    with patch.object(View, "applied", applied):
        yield


@contextmanager
def index_ahead_of_effects() -> Iterator[None]:
    """Flush the index of the last entry, and its rows only with the next batch."""
    original = Backend.seal

    def seal(backend: Backend, *arguments: Any) -> StageFlush | None:
        job = original(backend, *arguments)
        sealed = backend._sealed
        if job is not None and sealed is not None and len(sealed.rows) > 1:
            last = next(reversed(sealed.rows))
            backend._active.rows[last] = sealed.rows.pop(last)
        return job

    with patch.object(Backend, "seal", seal):
        yield


@contextmanager
def lose_an_event_at_catch_up() -> Iterator[None]:
    """Leave out the last row of a piece of history that a watcher catches up with."""
    original = CatchUp._read

    def read(catch_up: CatchUp, history: Any) -> bool:
        is_read = original(catch_up, history)
        if is_read and len(catch_up._rows) > 2:
            catch_up._rows.pop()
        return is_read

    with patch.object(CatchUp, "_read", read):
        yield


PLANTED: dict[str, Planted] = {
    each.__name__: each
    for each in (
        acknowledge_before_fsync,
        forget_the_vote,
        skip_the_read_index_quorum,
        apply_twice_after_restart,
        index_ahead_of_effects,
        lose_an_event_at_catch_up,
    )
}


def find(planted: Planted, first_seed: int = 0, seeds: int = SEEDS_MAX) -> Outcome | None:
    """Return the first run that notices a bug; None if none does."""
    with planted():
        for seed in range(first_seed, first_seed + seeds):
            outcome = simulate(seed, size_of(seed, SIZES))
            if outcome.guarantee:
                return outcome
    return None


def main() -> int:
    """Look for every bug from seed 0; return 1 if one stays unnoticed."""
    missed = 0
    for name, planted in PLANTED.items():
        outcome = find(planted)
        if outcome is None:
            missed += 1
            sys.stdout.write(f"{name}: not found within {SEEDS_MAX} seeds\n")
        else:
            sys.stdout.write(f"{name}: found by seed {outcome.seed}: {outcome.guarantee}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
