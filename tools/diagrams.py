"""Draw transition tables as state diagrams in the docs: `make diagrams`.

A table maps each state to what may happen in it, and that to the next state. Its first state is the
initial one; states without transitions are final. A page has the diagram between two comments with
the diagram's name. To add a diagram, add its row and the two comments.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from kvorum.member import lifecycle
from kvorum.server import shutdown

DOCS = Path(__file__).parents[1] / "docs"


class Diagram(NamedTuple):
    """A transition table and its place in the docs."""

    page: str
    name: str
    """The name in the comments around the diagram."""
    title: str
    transitions: Mapping[Any, Mapping[Any, Enum]]
    """By state and event, both members of an enum; the values of events are their texts."""


DIAGRAMS = (
    Diagram("architecture.md", "server-phases", "The phases of a server", shutdown.TRANSITIONS),
    Diagram("member.md", "member-phases", "The phases of a member", lifecycle.TRANSITIONS),
)


def draw(diagram: Diagram) -> str:
    """Return a diagram as a Mermaid block; raise ValueError if Mermaid cannot show a text."""
    lines = ["```mermaid", "---", f"title: {diagram.title}", "---", "stateDiagram-v2"]
    for number, (state, following) in enumerate(diagram.transitions.items()):
        name = _name(state)
        if number == 0:
            lines.append(f"    [*] --> {name}")
        for event, target in following.items():
            lines.append(f"    {name} --> {_name(target)}: {_label(event)}")
        if not following:
            lines.append(f"    {name} --> [*]")
    return "\n".join([*lines, "```"])


def _name(state: Enum) -> str:
    return state.name.lower()


def _label(event: Enum) -> str:
    text = str(event.value)
    if any(character in text for character in ":;#\n"):
        raise ValueError(f"{event} has a character that ends a label: {text!r}")
    return text


def with_diagram(text: str, diagram: Diagram) -> str:
    """Return a page's text with a diagram redrawn; raise ValueError if its comments are missing."""
    begin, end = f"<!-- diagram: {diagram.name} -->", f"<!-- end of diagram: {diagram.name} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"docs/{diagram.page} has no lines {begin!r} and {end!r}")
    return f"{before}{begin}\n{draw(diagram)}\n{end}{after}"


def redrawn(page: str) -> str:
    """Return the text of a page with all its diagrams redrawn."""
    text = (DOCS / page).read_text()
    for diagram in DIAGRAMS:
        if diagram.page == page:
            text = with_diagram(text, diagram)
    return text


def main() -> None:
    """Redraw the diagrams of all pages."""
    for page in sorted({diagram.page for diagram in DIAGRAMS}):
        (DOCS / page).write_text(redrawn(page))


if __name__ == "__main__":
    main()
