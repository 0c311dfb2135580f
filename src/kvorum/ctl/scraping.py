"""What a member's /metrics page says, as numbers: totals, and quantiles of what was timed."""

from collections.abc import Mapping

Sample = tuple[str, str]
"""A name, and its labels as they are written."""
Samples = dict[Sample, float]


def parse_samples(text: str) -> Samples:
    """Read the text format of Prometheus; lines that are none of it are left out."""
    found: Samples = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        head, _, value = line.rpartition(" ")
        name, _, labels = head.partition("{")
        try:
            found[name, labels.removesuffix("}")] = float(value)
        except ValueError:
            continue
    return found


def total(samples: Mapping[Sample, float], name: str) -> float | None:
    """Return the sum over all labels, or None if the member does not count that."""
    values = [value for (each, _), value in samples.items() if each == name]
    return sum(values) if values else None


def rate(
    before: Mapping[Sample, float], now: Mapping[Sample, float], name: str, seconds: float
) -> float | None:
    """Return by how much something grew in a second; None if that cannot be told."""
    old, new = total(before, name), total(now, name)
    if old is None or new is None or seconds <= 0:
        return None
    # A member that was started again counts from the beginning.
    return (new - old if new >= old else new) / seconds


def quantile(
    before: Mapping[Sample, float], now: Mapping[Sample, float], name: str, share: float
) -> float | None:
    """Return what a share of what was timed in between took at most, in the histogram's unit.

    It lies on a straight line through its bucket; None if nothing was timed.
    """
    bounds: dict[float, float] = {}
    for (each, labels), value in now.items():
        if each == f"{name}_bucket":
            bound = _bound(labels)
            grown = value - before.get((each, labels), 0.0)
            bounds[bound] = bounds.get(bound, 0.0) + grown
    rows = sorted(bounds.items())
    if not rows or rows[-1][1] <= 0:
        return None
    wanted = rows[-1][1] * share
    lower, below = 0.0, 0.0
    for bound, count in rows:
        if count >= wanted:
            if bound == float("inf"):
                return lower
            part = (wanted - below) / (count - below) if count > below else 1.0
            return lower + (bound - lower) * part
        lower, below = bound, count
    return lower


def _bound(labels: str) -> float:
    for label in labels.split(","):
        name, _, value = label.partition("=")
        if name == "le":
            return float(value.strip('"'))
    return float("inf")


def whole(value: float | None) -> int | None:
    """Return a sample that counts something; None if there is none."""
    return None if value is None else int(value)
