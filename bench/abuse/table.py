"""Format one table with a line for each attack and its effect on each server."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.abuse.bystander import FAILED

MEBIBYTE = 1 << 20
SURVIVED = "yes"
COLUMNS = (
    ("peak memory, MiB", 9),
    ("processor, s", 8),
    ("worst put, ms", 9),
    ("survived", 14),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of an attack on one server."""

    memory_bytes: int | None
    """Peak resident memory above the level before the attack; None if the server ended."""
    processor_seconds: float | None
    put_seconds: float
    """The longest put of the bystander, or the longer wait of the attack's own victim."""
    survived: str

    def cells(self) -> tuple[str, ...]:
        """Return the formatted figures."""
        memory, seconds, put = self.memory_bytes, self.processor_seconds, self.put_seconds
        return (
            "-" if memory is None else f"{memory / MEBIBYTE:,.0f}",
            "-" if seconds is None else f"{seconds:,.1f}",
            "failed" if put == FAILED else f"{put * 1000:,.0f}",
            self.survived,
        )


def best(rounds: Sequence[Outcome]) -> Outcome:
    """Return the lowest of each figure, since other load only adds; every round must survive."""
    fallen = [each for each in rounds if each.survived != SURVIVED]
    if fallen:
        return fallen[0]
    return Outcome(
        min(each.memory_bytes or 0 for each in rounds),
        min(each.processor_seconds or 0.0 for each in rounds),
        min(each.put_seconds for each in rounds),
        SURVIVED,
    )


def header(names: Sequence[str], width: int) -> str:
    """Return the first two lines of the table."""
    first, second = [" " * width], ["attack".ljust(width)]
    for title, cell in COLUMNS:
        first.append(title.center((cell + 1) * len(names) - 1))
        second += [name.rjust(cell) for name in names]
    return " ".join(first).rstrip() + "\n" + " ".join(second)


def line(name: str, outcomes: Sequence[Outcome], width: int) -> str:
    """Return an attack's line, in which the servers' figures of a column are side by side."""
    parts = [name.ljust(width)]
    rows = [outcome.cells() for outcome in outcomes]
    for number, (_, cell) in enumerate(COLUMNS):
        parts += [row[number].rjust(cell) for row in rows]
    return " ".join(parts)
