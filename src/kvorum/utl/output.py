"""The output formats of the tools: simple, fields, json and table, as etcd 3.7 prints them.

A result is a row of named columns. Its names differ between JSON and fields, and so do some values:
a hash is hexadecimal where people read it.
"""

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

from kvorum.utl.errors import BAD_FEATURE, UtlError

FORMATS = ("simple", "fields", "json", "protobuf", "table")


class Column(NamedTuple):
    """A value under its names."""

    heading: str
    field: str
    key: str
    value: int | str
    text: str
    """As simple lines and tables show it."""


def print_row(columns: Sequence[Column], form: str) -> None:
    """Print a result."""
    if form == "simple":
        write_line(", ".join(column.text for column in columns))
    elif form == "json":
        pairs = {column.key: column.value for column in columns}
        write_line(json.dumps(pairs, separators=(",", ":")))
    elif form == "fields":
        for column in columns:
            write_line(f'"{column.field}" : {json.dumps(column.value)}')
    elif form == "table":
        write_line(_table(columns))
    else:
        raise UtlError(f"{form} not supported as output format", BAD_FEATURE)


def write_line(text: str) -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{text}\n")


def _table(columns: Sequence[Column]) -> str:
    widths = [max(len(column.heading), len(column.text)) for column in columns]

    def line(left: str, between: str, right: str) -> str:
        return left + between.join("─" * (width + 2) for width in widths) + right

    heads = (
        f" {column.heading.upper():^{width}} "
        for column, width in zip(columns, widths, strict=True)
    )
    cells = (f" {column.text:>{width}} " for column, width in zip(columns, widths, strict=True))
    return "\n".join(
        (
            line("┌", "┬", "┐"),
            f"│{'│'.join(heads)}│",
            line("├", "┼", "┤"),
            f"│{'│'.join(cells)}│",
            line("└", "┴", "┘"),
        )
    )


def human_bytes(count: int) -> str:
    """Return a size as people read it, in powers of 1000: `20 kB`, `2.1 GB`."""
    if count < 10:
        return f"{count} B"
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):  # noqa: B007
        if value < 1000:
            break
        value /= 1000
    value = int(value * 10 + 0.5) / 10
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
