"""The page on kvorumutl: every command line on it can be read."""

import re
import shlex
from pathlib import Path

import pytest

from kvorum.tools.cli.parsing import parse
from kvorum.tools.utl.commands import ROOT

PAGE = Path(__file__).parents[3] / "docs" / "utl.md"


def command_lines() -> list[str]:
    """Return what stands behind `kvorumutl` in examples."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.S)
    text = "\n".join(blocks).replace("\\\n", " ")
    return sorted(set(re.findall(r"^\$ kvorumutl ([^\n|>]+)", text, re.M)))


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_can_be_read(line: str) -> None:
    given = parse(ROOT, shlex.split(line, comments=True))
    assert given.command.run, line


def test_every_command_is_on_the_page() -> None:
    text = PAGE.read_text()
    left = list(ROOT.children)
    while left:
        command = left.pop()
        left.extend(command.children)
        # What is below `dump` has a page of its own.
        if "dump" not in command.path.split(" ")[:-1]:
            assert re.search(rf"kvorumutl [^\n]*\b{command.name}\b|`{command.name}\b", text), (
                command.path
            )
