"""The diagrams of the docs are those of the tables, and the tables have no loose ends."""

from enum import Enum

import pytest

from tools.diagrams import DIAGRAMS, DOCS, Diagram, draw, redrawn, with_diagram


class Light(Enum):
    RED = "stop"
    GREEN = "go"
    DARK = "the lamp is broken"


class Change(Enum):
    TIMER = "a minute passes"
    FAULT = "the lamp breaks"


TABLE = {
    Light.RED: {Change.TIMER: Light.GREEN, Change.FAULT: Light.DARK},
    Light.GREEN: {Change.TIMER: Light.RED},
    Light.DARK: {},
}
LIGHT = Diagram("none.md", "light", "A light", TABLE)


@pytest.mark.parametrize("page", sorted({diagram.page for diagram in DIAGRAMS}))
def test_the_diagrams_of_a_page_are_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == redrawn(page), "run 'make diagrams'"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_every_state_is_in_its_table_and_reachable(diagram: Diagram) -> None:
    table = diagram.transitions
    first = next(iter(table))
    states: type[Enum] = type(first)
    assert list(table) == list(states), "a state has no row"
    reached, rest = {first}, [first]
    while rest:
        fresh = set(table[rest.pop()].values()) - reached
        reached |= fresh
        rest += fresh
    assert reached == set(table)


def test_a_diagram_is_drawn_in_the_order_of_its_table() -> None:
    assert draw(LIGHT).splitlines() == [
        "```mermaid",
        "---",
        "title: A light",
        "---",
        "stateDiagram-v2",
        "    [*] --> red",
        "    red --> green: a minute passes",
        "    red --> dark: the lamp breaks",
        "    green --> red: a minute passes",
        "    dark --> [*]",
        "```",
    ]


def test_a_page_keeps_what_is_around_its_diagram() -> None:
    begin, end = "<!-- diagram: light -->", "<!-- end of diagram: light -->"
    page = with_diagram(f"before\n\n{begin}\nold\n{end}\n\nafter\n", LIGHT)
    assert page == f"before\n\n{begin}\n{draw(LIGHT)}\n{end}\n\nafter\n"
    assert with_diagram(page, LIGHT) == page


@pytest.mark.parametrize("text", ["", "<!-- diagram: light -->", "<!-- end of diagram: light -->"])
def test_a_page_without_both_comments_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"none\.md has no lines"):
        with_diagram(text, LIGHT)


def test_a_text_that_ends_a_label_is_refused() -> None:
    class Odd(Enum):
        COLON = "first: second"

    with pytest.raises(ValueError, match="ends a label"):
        draw(LIGHT._replace(transitions={Light.RED: {Odd.COLON: Light.RED}}))
