"""The table of flags in `docs/configuration.md`: complete, true, and each test in it exists."""

import ast
from pathlib import Path

import pytest

from kvorum.process.settings.file_keys import place_of
from kvorum.process.settings.flags import FLAGS

REPOSITORY = Path(__file__).parents[3]


def table() -> dict[str, list[str]]:
    """Return the cells after the name of each flag."""
    text = (REPOSITORY / "docs" / "configuration.md").read_text().split("## All flags")[1]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name.strip("`"): cells for name, *cells in rows}


def test_every_flag_is_in_the_table_with_its_key_and_its_default() -> None:
    found = table()
    assert found.keys() == {flag.name for flag in FLAGS}
    for flag in FLAGS:
        place = place_of(flag)
        key = "none" if place is None else "same" if place == flag.name else f"`{place}`"
        default = f"`{flag.default}`" if flag.default else ""
        assert found[flag.name][:2] == [key, default], flag.name


def test_every_flag_has_a_test() -> None:
    without = {name for name, cells in table().items() if not cells[2]}
    assert not without


@pytest.mark.parametrize("name", sorted(table()))
def test_the_named_test_exists(name: str) -> None:
    where = table()[name][2].strip("`")
    if where:
        path, _, function = where.partition("::")
        tree = ast.parse((REPOSITORY / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
