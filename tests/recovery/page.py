"""docs/recovery.md as a script: its sections, and the command lines of each with what they show."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
ANYTHING = "…"
"""Stands on the page for what differs from run to run."""
_FAILURES = ("CRITICAL", "WARNING", "Error:", "Job for")


class Step(NamedTuple):
    """A command line, and the lines of its output that the page shows."""

    line: str
    shown: list[str]

    @property
    def fails(self) -> bool:
        """Whether it ends with an exit code that is not 0, by what it shows."""
        return any(each.startswith(_FAILURES) for each in self.shown)

    def is_as_shown(self, output: str, code: int) -> bool:
        """Return whether the lines that are shown are in the output, in their order."""
        left = iter(output.splitlines())
        patterns = [".*".join(map(re.escape, each.split(ANYTHING))) for each in self.shown]
        found = all(any(re.fullmatch(pattern, line) for line in left) for pattern in patterns)
        return found and self.fails == (code != 0)


def sections() -> dict[str, list[Step]]:
    """Return the steps of every section that has some, by the name of its test."""
    _, *parts = re.split(r"^## ", PAGE.read_text(), flags=re.M)
    found = {}
    for part in parts:
        title, _, text = part.partition("\n")
        blocks = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
        if blocks:
            name = "test_" + re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
            assert name not in found, f"two sections are called {title!r}"
            found[name] = [step for block in blocks for step in _steps(block)]
    return found


def _steps(block: str) -> list[Step]:
    steps = []
    for each in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, _, shown = each.replace("\\\n", "").partition("\n")
        steps.append(Step(line, shown.splitlines()))
    return steps


def listing(language: str) -> str:
    """Return the first listing of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert found, f"no listing of {language}"
    return found[1]
