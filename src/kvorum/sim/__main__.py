"""The command line: `python -m kvorum.sim --seeds 100`, or `python -m kvorum.sim --replay 42`.

Prints a progress bar on a terminal, the violation and the trace's end of failing seeds, the
coverage points that runs reached, and a summary as its last line. With `--plot`, also writes a
picture of every printed run to a file. The exit code is 1 if any guarantee was violated.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from kvorum.sim.campaign import SIZES, Summary, replay, run_seeds, size_of
from kvorum.sim.picture import draw
from kvorum.sim.plan import Plan, draw_plan
from kvorum.sim.run import Outcome, simulate_plan
from kvorum.sim.shrink import describe, shrink
from kvorum.sim.trace import Trace

TRACE_TAIL_LINES = 60
BAR_WIDTH = 30
SHOWN_MAX = 5
"""Failing seeds printed with their traces; the summary only lists the others."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m kvorum.sim", description="Simulate clusters under faults, one per seed."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin")
    parser.add_argument(
        "--members",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=SIZES,
        help="sizes of the clusters, which the seeds take in turn; default 3,1,3,5",
    )
    parser.add_argument(
        "--proxies", action="store_true", help="run only seeds that have proxies, so many of them"
    )
    parser.add_argument("--replay", type=int, help="run one seed and print its whole trace")
    parser.add_argument(
        "--shrink", type=int, help="cut what one failing seed does not need, and print the rest"
    )
    parser.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE",
        help="write pictures of what is shown: of one seed to a file, sim-<seed>.html by default",
    )
    options = parser.parse_args(arguments)
    if options.plot and options.replay is None and options.shrink is None:
        parser.error("--plot takes a file only for one seed, with --replay or --shrink")
    return options


def commit() -> str:
    """Return the checked-out commit, with `-dirty` if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    told = subprocess.run(  # noqa: S603 (a fixed command)
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


def show_progress(summary: Summary, total: int, started: float) -> None:
    """Draw the bar, on a terminal only."""
    if sys.stderr.isatty():
        done = summary.seeds
        filled = BAR_WIDTH * done // total
        rate = done / max(time.monotonic() - started, 0.001)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        failures = f", {len(summary.failed)} failed" if summary.failed else ""
        print(
            f"\r[{bar}] {done}/{total} seeds, {rate:.1f}/s{failures}",
            end="\n" if done == total else "",
            file=sys.stderr,
            flush=True,
        )


def write_picture(plan: Plan, trace: Trace, path: str) -> None:
    """Write the picture of a run to a file, by default `sim-<seed>.html`, and print its name."""
    file = Path(path or f"sim-{plan.seed}.html")
    heading = f"seed {plan.seed} with {plan.members} members at commit {commit()}"
    file.write_text(draw(trace.moments, heading, describe(plan)), encoding="utf-8")
    print(f"picture: {file}")


def show_failure(outcome: Outcome, tail: int, *, plots: bool) -> None:
    """Replay a failing seed; print its violation, its trace's end and commands to reproduce it."""
    again, trace = replay(outcome.seed, outcome.members)
    print(
        f"\nseed {outcome.seed} with {outcome.members} members at commit {commit()} violates: "
        f"{outcome.guarantee}"
    )
    print(outcome.violation)
    if again.violation != outcome.violation:
        print(f"but run again: {again.guarantee or 'nothing'}: {again.violation}")
        print("one seed must give one history: something depends on more than the seed")
    print(f"the last {tail} of {len(trace.lines)} lines of its trace:")
    print("\n".join(trace.lines[-tail:]))
    command = f"{outcome.seed} --members {outcome.members}"
    print(f"replay: python -m kvorum.sim --replay {command}")
    print(f"shrink: python -m kvorum.sim --shrink {command}")
    if plots:
        write_picture(draw_plan(outcome.seed, outcome.members), trace, "")
    else:
        print(f"picture: python -m kvorum.sim --replay {command} --plot")
    sys.stdout.flush()


def replay_one(seed: int, members: int, plot: str | None) -> int:
    """Print a seed's whole trace, and draw it unless `plot` is None; return the exit code."""
    outcome, trace = replay(seed, members)
    print(trace.text(), end="")
    if plot is not None:
        write_picture(draw_plan(seed, members), trace, plot)
    print(f"{outcome.guarantee or 'nothing violated'} {outcome.violation}".rstrip())
    return 1 if outcome.guarantee else 0


def shrink_one(seed: int, members: int, plot: str | None) -> int:
    """Print the smallest failing plan found for a seed, and its trace; return the exit code."""
    shrunk = shrink(draw_plan(seed, members))
    if shrunk is None:
        print(f"seed {seed} with {members} members violates nothing: there is nothing to shrink")
        return 0
    trace = Trace()
    outcome = simulate_plan(shrunk.plan, trace)
    print(trace.text(), end="")
    print(f"seed {seed} with {members} members at commit {commit()} violates: {outcome.guarantee}")
    print(outcome.violation)
    print(f"after {shrunk.runs} runs this is left:")
    print("\n".join(describe(shrunk.plan)))
    if plot is not None:
        write_picture(shrunk.plan, trace, plot)
    return 1


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    options = parse()
    if options.replay is not None:
        size = size_of(options.replay, options.members)
        return replay_one(options.replay, size, options.plot)
    if options.shrink is not None:
        size = size_of(options.shrink, options.members)
        return shrink_one(options.shrink, size, options.plot)
    started = time.monotonic()
    summary = Summary()
    for outcome in run_seeds(
        options.first_seed, options.seeds, options.members, proxies=options.proxies
    ):
        summary.add(outcome)
        if outcome.guarantee and len(summary.failed) <= SHOWN_MAX:
            show_failure(outcome, TRACE_TAIL_LINES, plots=options.plot is not None)
        show_progress(summary, options.seeds, started)
    print("\n".join(summary.lines(options.first_seed, time.monotonic() - started)))
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
