"""A result that is a row of named columns, in the formats of etcdutl."""

from collections.abc import Sequence
from typing import NamedTuple

from kvorum.cli.output import Output, table_text


class Column(NamedTuple):
    """A value under its names, which differ between the formats, as some values do."""

    heading: str
    field: str
    key: str
    value: int | str
    text: str
    """As simple lines and tables show it: a hash may be hexadecimal where people read it."""


def print_row(output: Output, columns: Sequence[Column]) -> None:
    """Print a result."""

    def fields(_: Sequence[Column]) -> None:
        for column in columns:
            # Without quotes, text too.
            output.line(f'"{column.field}" : {column.value}')

    output.show(
        columns,
        lambda _: output.line(", ".join(column.text for column in columns)),
        fields=fields,
        table=lambda _: output.line(
            table_text(
                [column.heading for column in columns], [[column.text for column in columns]]
            )
        ),
        json=lambda _: {column.key: column.value for column in columns},
        has_protobuf=False,
    )
    output.flush()
