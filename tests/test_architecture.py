"""The tables of docs/architecture.md: every module of every room is listed once, and exists."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "kvorum"
RUST = REPOSITORY / "rust" / "src"
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
MODULE = re.compile(r"`([\w/]+\.(?:py|rs))`")
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def listed(heading: str) -> list[str]:
    """Return the modules in the first column of the table below a heading."""
    _, found, rest = PAGE.partition(f"\n### {heading}\n")
    assert found, f"there is no heading {heading}"
    section = re.split(r"\n##+ ", rest)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return [name for row in rows for name in MODULE.findall(row)]


def modules(room: Path) -> set[str]:
    """Return the modules of a room; files that only open it need not be listed."""
    found = (path.relative_to(room) for path in room.glob("**/*.py"))
    return {str(path) for path in found if path.name != "__init__.py" and path.parts[0] != "pb"}


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_of_a_room_is_listed_once(room: str) -> None:
    names = listed(f"`{room}/`")
    assert sorted(names) == sorted(set(names)), "some are listed twice"
    assert all((SOURCE / room / name).exists() for name in names), names
    assert modules(SOURCE / room) <= set(names)


def test_every_module_of_the_native_edge_is_listed_once() -> None:
    assert sorted(listed("Native: `rust/`")) == sorted(path.name for path in RUST.glob("*.rs"))


def test_rooms_come_in_the_order_of_the_layers() -> None:
    table = PAGE.partition("## The rooms")[2].partition("## The modules")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    layers = [room for row in rows for room in re.findall(r"`(\w+)/`", row)]
    assert sorted(layers) == ROOMS
    assert re.findall(r"^### `(\w+)/`$", PAGE, re.M) == layers
