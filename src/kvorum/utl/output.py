"""The output formats of the tools: simple, fields, json and table, as etcd 3.7 prints them.

A result is a row of named columns. Its names differ between JSON and fields, and so do some values:
a hash is hexadecimal where people read it.
"""

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

from kvorum.cli.errors import BAD_FEATURE, CommandError
from kvorum.cli.output import table_text

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
        row = [column.text for column in columns]
        write_line(table_text([column.heading for column in columns], [row]))
    else:
        raise CommandError(f"{form} not supported as output format", BAD_FEATURE)


def write_line(text: str) -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{text}\n")
