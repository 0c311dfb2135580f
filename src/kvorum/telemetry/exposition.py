"""Metrics as Prometheus reads them: the text format, and what a client asks for in it.

The text is written here rather than by `prometheus_client`, which renames counters that do not
end in `_total`; etcd has several of those, and dashboards know them by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from kvorum.api.histograms import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping="
ESCAPINGS: Final = ("allow-utf-8", "dots", "underscores", "values")
"""How a client may want names written that have unusual characters; none here has any."""
ESCAPING: Final = "underscores"
VERSIONS: Final = ("", "0.0.4")

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


def histogram_samples(
    histogram: Histogram, labels: Mapping[str, str] | None = None
) -> list[Sample]:
    """Return the cumulative buckets, the sum and the count."""
    labels = labels or {}
    count = 0
    found: list[Sample] = []
    for bound, number in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        count += number
        found.append(Sample(count, {**labels, "le": number_text(bound)}, "_bucket"))
    return [*found, Sample(histogram.total, labels, "_sum"), Sample(count, labels, "_count")]


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


# What a client asks for.


def content_type(accept: str) -> str:
    """Return the type of the answer to an Accept header, as Go's library chooses it.

    There is one format; but a client may say how names are to be escaped.
    """
    escaping = ESCAPING
    for kind, parameters in _preferred(accept):
        wanted = parameters.get("escaping", "")
        if wanted in ESCAPINGS:
            escaping = wanted
        if kind == "text/plain" and parameters.get("version", "") in VERSIONS:
            break
    return CONTENT_TYPE + escaping


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether gzip is wanted by an Accept-Encoding header, as Go's library decides."""
    best, chosen = -1.0, ""
    for offer in ("identity", "gzip"):
        for name, parameters in _preferred(accept_encoding):
            quality = _quality(parameters)
            if quality > best and name in ("*", offer):
                best, chosen = quality, offer
    return chosen == "gzip" and best > 0


def _preferred(header: str) -> list[tuple[str, dict[str, str]]]:
    """Return the items of an Accept header with their parameters, the most wanted first."""
    items: list[tuple[str, dict[str, str]]] = []
    for item in filter(None, map(str.strip, header.split(","))):
        name, *rest = item.split(";")
        pairs = (part.partition("=") for part in rest)
        items.append((name.strip(), {key.strip(): value.strip() for key, _, value in pairs}))
    return sorted(items, key=lambda item: -_quality(item[1]))


def _quality(parameters: Mapping[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
