"""What a person at a terminal gets and a pipe does not: colours, tables as wide as the screen.

What is written here may steer the terminal; whatever came from a store goes through
`kvorum.cli.text.printable` first. `rich` draws, where it is installed, and plain text does without.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kvorum.cli.output import Output
from kvorum.cli.text import printable

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def is_terminal() -> bool:
    """Whether a person reads the results."""
    return sys.stdout.isatty()


def has_colours() -> bool:
    """Whether that person sees colours, and did not ask to be spared them."""
    return is_terminal() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str) -> str:
    """Return text in a colour, where there are colours."""
    return f"\033[{_STYLES[style]}m{text}\033[0m" if has_colours() else text


def show_columns(
    output: Output, heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()
) -> None:
    """Show rows below their heads; columns of numbers (`right`) end where they end.

    On a terminal it is a table in colours; in a pipe the columns are aligned with blanks.
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
    """Return heads and rows as lines whose columns stand below each other."""
    table = [[head.upper() for head in heads], *rows]
    numeric, last = set(right), len(heads) - 1
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def cell(at: int, text: str) -> str:
        if at in numeric:
            return text.rjust(widths[at])
        # Nothing stands behind the last column, which is as long as it is.
        return text if at == last else text.ljust(widths[at])

    return ["  ".join(cell(at, text) for at, text in enumerate(row)).rstrip() for row in table]


def show_json(output: Output, text: str) -> None:
    """Show JSON that is laid out for people, and printable, in colours where there are some."""
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
        # As text, or brackets in it would be taken for styles.
        table.add_row(*map(Text, row))
    return table
