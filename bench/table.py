"""One table of ratios: compare servers round by round, then print, store and plot the rows.

A ratio above 1 is in Kvorum's favour: more requests, more events, less time, less memory.
"""

import json
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import kvorum
from bench.plot import plot
from bench.servers import opponent

RESULTS = Path(__file__).parent / "results"


class Named(Protocol):
    """A server or cluster in a comparison."""

    @property
    def name(self) -> str:
        """Return the name shown in the table."""


Compared = TypeVar("Compared", bound=Named)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    state: str
    name: str
    unit: str
    other: str
    theirs: float
    ours: float
    ratio: float
    ratios: list[float]
    goal: float


def compared(
    state: str,
    name: str,
    unit: str,
    servers: tuple[Compared, Compared],
    rounds: int,
    goal: float,
    figure: Callable[[Compared], float],
    *,
    less_is_better: bool = False,
) -> Row:
    """Measure both servers round by round, and print the row."""
    theirs, ours = zip(
        *[(figure(servers[0]), figure(servers[1])) for _ in range(rounds)], strict=True
    )
    return as_row(state, name, unit, servers, theirs, ours, goal, less_is_better=less_is_better)


def as_row(
    state: str,
    name: str,
    unit: str,
    servers: tuple[Named, Named],
    theirs: Sequence[float],
    ours: Sequence[float],
    goal: float,
    *,
    less_is_better: bool,
) -> Row:
    """Make a row from both servers' figures in each round, and print it."""
    pairs = list(zip(theirs, ours, strict=True))
    ratios = [their / our if less_is_better else our / their for their, our in pairs]
    row = Row(
        state,
        name,
        unit,
        servers[0].name,
        statistics.median(theirs),
        statistics.median(ours),
        statistics.median(ratios),
        ratios,
        goal,
    )
    show(row)
    return row


def show(row: Row) -> None:
    """Print one row of the table."""
    verdict = "" if row.ratio >= row.goal else f"  (goal {row.goal:.1f})"
    rounds = ", ".join(f"{ratio:.2f}" for ratio in row.ratios)
    print(
        f"{row.state:<16} {row.name:<32} {row.other:<9} {row.theirs:>11,.1f} {row.ours:>11,.1f}"
        f" {row.unit:<6} {row.ratio:>5.2f}x [{rounds}]{verdict}",
        flush=True,
    )


def header() -> None:
    """Print which etcd is compared, and the table's header."""
    print(f"etcd {opponent()}")
    print(
        f"{'state':<16} {'what':<32} {'against':<9} {'etcd':>11} {'kvorum':>11} {'unit':<6} ratio"
    )


def keep(rows: list[Row], name: str) -> None:
    """Store the table as a file and as a plot, and print how many goals were met."""
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "kvorum": kvorum.__version__,
        "etcd": str(opponent()),
        "python": platform.python_version(),
    }
    kept = RESULTS / f"{name}.json"
    kept.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    plot(
        [(f"{row.name} ({row.state})", row.ratio, row.goal) for row in rows],
        RESULTS / f"{name}.svg",
    )
    missed = [row.name for row in rows if row.ratio < row.goal]
    print(f"{len(rows) - len(missed)} of {len(rows)} goals met; kept in {kept}")
