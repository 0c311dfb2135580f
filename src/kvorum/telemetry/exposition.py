"""Metrics as Prometheus reads them: histograms kept as plain numbers, and the text format.

The text is written here rather than by `prometheus_client`, which renames counters that do not
end in `_total`; etcd has several of those, and dashboards know them by name.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LABELS_KEPT = 4096
"""How many sets of labels are cached: four times as many as a server has."""


class Sample(NamedTuple):
    """One line of a metric: the suffix of the metric's name, the labels, the value."""

    value: float
    labels: Mapping[str, str] = {}
    ending: str = ""


class Family(NamedTuple):
    """A metric with all its samples."""

    name: str
    type: str
    help: str
    samples: Sequence[Sample]


class Histogram:
    """Counts observations by upper bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self, labels: Mapping[str, str] | None = None) -> list[Sample]:
        """Return the cumulative buckets, the sum and the count."""
        labels = labels or {}
        count = 0
        found: list[Sample] = []
        for bound, number in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += number
            found.append(Sample(count, {**labels, "le": number_text(bound)}, "_bucket"))
        return [*found, Sample(self.total, labels, "_sum"), Sample(count, labels, "_count")]


def exponential(start: float, count: int) -> tuple[float, ...]:
    """Return bounds that double, beginning with `start`."""
    return tuple(start * 2**power for power in range(count))


def number_text(value: float) -> str:
    """Write a number as Go does: in `le="8.388608e+06"` it is part of a label."""
    if value == float("inf"):
        return "+Inf"
    if abs(value) < 1e6:
        return str(int(value)) if value == int(value) else repr(float(value))
    _, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    assert isinstance(exponent, int), f"{value} is no number"
    mantissa = "".join(map(str, digits))
    power = len(mantissa) - 1 + exponent
    point = "." if len(mantissa) > 1 else ""
    return f"{'-' if value < 0 else ''}{mantissa[0]}{point}{mantissa[1:]}e+{power:02}"


def text(families: Iterable[Family]) -> bytes:
    """Write metrics in Prometheus' text format, ordered by name; skip those without samples."""
    lines: list[str] = []
    for family in sorted(families):
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.type}")
        for value, labels, ending in family.samples:
            braces = _braces(tuple(labels.items())) if labels else ""
            lines.append(f"{family.name}{ending}{braces} {number_text(value)}")
    lines.append("")
    return "\n".join(lines).encode()


@lru_cache(LABELS_KEPT)
def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    """Write labels; cached, because nearly all are the same every time."""
    pairs = ",".join(f'{name}="{_escape(label)}"' for name, label in labels)
    return f"{{{pairs}}}"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
