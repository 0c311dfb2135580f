"""Prometheus' text format for metrics, and the negotiation of its type and encoding.

This module does not use `prometheus_client`, because that renames counters that do not end in
`_total`; etcd has several of those, and dashboards know them by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from kvorum.api.histograms import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping="
ESCAPINGS: Final = ("allow-utf-8", "dots", "underscores", "values")
"""Escapings of names with unusual characters that a client may request; no name here has any."""
ESCAPING: Final = "underscores"
VERSIONS: Final = ("", "0.0.4")

LABELS_KEPT = 4096
"""Sets of labels that are cached: four times as many as a server has."""


class Sample(NamedTuple):
    """One line of a metric: its value, its labels, and the suffix of the metric's name."""

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
    """Format a number as Go does, because labels such as `le="8.388608e+06"` contain numbers."""
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
    """Format labels; cached, because nearly all are the same at every scrape."""
    pairs = ",".join(f'{name}="{_escape(label)}"' for name, label in labels)
    return f"{{{pairs}}}"


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# Content negotiation.


def content_type(accept: str) -> str:
    """Return the content type for an Accept header, as Go's library chooses it.

    There is only one format, but a client may choose the escaping of names.
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
    """Return whether to answer an Accept-Encoding header with gzip, as Go's library decides."""
    best, chosen = -1.0, ""
    for offer in ("identity", "gzip"):
        for name, parameters in _preferred(accept_encoding):
            quality = _quality(parameters)
            if quality > best and name in ("*", offer):
                best, chosen = quality, offer
    return chosen == "gzip" and best > 0


def _preferred(header: str) -> list[tuple[str, dict[str, str]]]:
    """Return the items of an Accept header with their parameters, by falling quality."""
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
