"""Print a result, a row of named columns, in the formats of etcdutl."""

from collections.abc import Sequence
from typing import NamedTuple

from kvorum.tools.cli.output import ResultOutput, table_text


class Column(NamedTuple):
    """A value with its names; the names, and some values, differ between the formats."""

    heading: str
    field: str
    key: str
    value: int | str
    text: str
    """The value in simple lines and tables: a hash may be hexadecimal where people read it."""


def print_row(output: ResultOutput, columns: Sequence[Column]) -> None:
    """Print a result in the format that the command line chose."""

    def fields(_: Sequence[Column]) -> None:
        for column in columns:
            # No quotes, around text values either.
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
