"""Parse a member's /metrics page, and compute totals, rates and quantiles from it."""

from collections.abc import Mapping

Sample = tuple[str, str]
"""A metric's name, and its labels as the page writes them."""
Samples = dict[Sample, float]


def parse_samples(text: str) -> Samples:
    """Parse Prometheus's text format, leaving out invalid lines."""
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
    """Return the sum over all labels, or None if the member lacks the metric."""
    values = [value for (each, _), value in samples.items() if each == name]
    return sum(values) if values else None


def rate(
    before: Mapping[Sample, float], now: Mapping[Sample, float], name: str, seconds: float
) -> float | None:
    """Return a counter's growth per second; None if it cannot be computed."""
    old, new = total(before, name), total(now, name)
    if old is None or new is None or seconds <= 0:
        return None
    # A restarted member counts from zero again.
    return (new - old if new >= old else new) / seconds


def quantile(
    before: Mapping[Sample, float], now: Mapping[Sample, float], name: str, share: float
) -> float | None:
    """Return a quantile of the observations between two samples, in the histogram's unit.

    The value is interpolated linearly within its bucket. It is None without observations.
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
    """Return a count as an integer; None stays None."""
    return None if value is None else int(value)
