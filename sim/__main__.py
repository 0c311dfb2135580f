"""The command line: `python -m sim --seeds 100`, or `python -m sim --replay 42 --members 3`.

Prints a bar while it runs on a terminal, what every failing seed violated with the end of its
trace, and a summary as its last line. The exit code is 1 if any guarantee was violated.
"""

import argparse
import sys
import time
from collections import Counter

from sim.campaign import replay, run_seeds, size_of
from sim.run import Outcome

TRACE_TAIL_LINES = 60
BAR_WIDTH = 30
SHOWN_MAX = 5
"""Failing seeds that are shown with their traces; more are only counted."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m sim", description="Simulate clusters under faults, one per seed."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin")
    parser.add_argument(
        "--members",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=(3, 1, 3, 5),
        help="sizes of the clusters, which the seeds take in turn; default 3,1,3,5",
    )
    parser.add_argument("--replay", type=int, help="run one seed and print its whole trace")
    return parser.parse_args(arguments)


def show_progress(done: int, total: int, failed: int, started: float) -> None:
    """Draw the bar, on a terminal only."""
    if sys.stderr.isatty():
        filled = BAR_WIDTH * done // total
        rate = done / max(time.monotonic() - started, 0.001)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        failures = f", {failed} failed" if failed else ""
        print(
            f"\r[{bar}] {done}/{total} seeds, {rate:.1f}/s{failures}",
            end="\n" if done == total else "",
            file=sys.stderr,
            flush=True,
        )


def show_failure(outcome: Outcome, tail: int) -> None:
    """Print what was violated, how to replay it, and the end of its trace."""
    again, trace = replay(outcome.seed, outcome.members)
    print(f"\nseed {outcome.seed} with {outcome.members} members violates: {outcome.guarantee}")
    print(outcome.violation)
    if again.violation != outcome.violation:
        print(f"but run again: {again.guarantee or 'nothing'}: {again.violation}")
        print("one seed must give one history: something depends on more than the seed")
    print(f"the last {tail} of {len(trace.lines)} lines of its trace:")
    print("\n".join(trace.lines[-tail:]))
    print(f"replay: python -m sim --replay {outcome.seed} --members {outcome.members}", flush=True)


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    options = parse()
    if options.replay is not None:
        outcome, trace = replay(options.replay, size_of(options.replay, options.members))
        print(trace.text(), end="")
        print(f"{outcome.guarantee or 'nothing violated'} {outcome.violation}".rstrip())
        return 1 if outcome.guarantee else 0
    started = time.monotonic()
    failed: list[Outcome] = []
    counts: Counter[str] = Counter()
    virtual = 0.0
    done = 0
    for outcome in run_seeds(options.first_seed, options.seeds, options.members):
        done += 1
        counts.update(outcome.counts)
        virtual += outcome.seconds
        if outcome.guarantee:
            failed.append(outcome)
            if len(failed) <= SHOWN_MAX:
                show_failure(outcome, TRACE_TAIL_LINES)
        show_progress(done, options.seeds, len(failed), started)
    for outcome in failed:
        print(f"failed: seed {outcome.seed}, {outcome.members} members: {outcome.guarantee}")
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    seconds = time.monotonic() - started
    print(f"{told}")
    print(
        f"{done} seeds from {options.first_seed} in {seconds:.1f} s, {virtual / 3600:.2f} virtual "
        f"hours, {len(failed)} violations"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
