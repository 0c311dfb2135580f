"""Output that a terminal gets and a pipe does not: colours, and tables as wide as the screen.

This module writes control sequences, so data from a store passes `text.printable` first.
`rich` draws tables and JSON if it is installed; otherwise they are plain text.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kvorum.tools.cli.output import ResultOutput
from kvorum.tools.cli.text import printable

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def is_terminal() -> bool:
    """Return whether the standard output is a terminal."""
    return sys.stdout.isatty()


def has_colours() -> bool:
    """Return whether the terminal shows colours and the environment does not forbid them."""
    return is_terminal() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str) -> str:
    """Return text in a style, or unchanged where there are no colours."""
    return f"\033[{_STYLES[style]}m{text}\033[0m" if has_colours() else text


def show_columns(
    output: ResultOutput,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[int] = (),
) -> None:
    """Print rows below their heads; the columns with indexes in `right` are right-aligned.

    On a terminal the rows are a coloured table; in a pipe, blanks align the columns.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    numeric = set(right)
    output.flush()
    if has_colours() and (console := _console()) is not None:
        console.print(_rich_table(heads, cells, numeric))
        return
    for line in aligned(heads, cells, numeric):
        output.line(line)


def aligned(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()
) -> list[str]:
    """Return heads and rows as lines with aligned columns."""
    table = [[head.upper() for head in heads], *rows]
    numeric, last = set(right), len(heads) - 1
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def cell(at: int, text: str) -> str:
        if at in numeric:
            return text.rjust(widths[at])
        # The last column needs no padding.
        return text if at == last else text.ljust(widths[at])

    return ["  ".join(cell(at, text) for at, text in enumerate(row)).rstrip() for row in table]


def show_json(output: ResultOutput, text: str) -> None:
    """Print formatted and printable JSON, in colours where the terminal has them."""
    output.flush()
    if has_colours() and (console := _console()) is not None:
        from rich.highlighter import JSONHighlighter

        console.print(JSONHighlighter()(text), soft_wrap=True)
        return
    output.line(text)


def _console() -> Any:
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _rich_table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: set[int]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at in right else "left", overflow="fold")
    for row in rows:
        # In a plain `str`, rich would read brackets as styles.
        table.add_row(*map(Text, row))
    return table
