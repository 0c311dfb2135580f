"""The page on kvorumctl: every command line on it can be read."""

import re
import shlex
from pathlib import Path

import pytest

from kvorum.tools.cli.parsing import parse
from kvorum.tools.ctl.commands import ROOT

PAGE = Path(__file__).parents[3] / "docs" / "ctl.md"


def command_lines() -> list[str]:
    """Return what stands behind `kvorumctl` in examples, up to a comment or a pipe."""
    blocks = re.findall(
        r"```(?:console)?\n(.*?)```|((?:^    .*\n)+)", PAGE.read_text(), re.M | re.S
    )
    text = "\n".join(fenced or indented for fenced, indented in blocks)
    return sorted(set(re.findall(r"(?:^|[$|;<(]) *kvorumctl ([^\n;|>)]+)", text, re.M)))


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_can_be_read(line: str) -> None:
    words = shlex.split(line.replace("<<'END'", ""), comments=True)
    given = parse(ROOT, words)
    assert given.command is not ROOT, line


def test_every_command_is_on_the_page() -> None:
    text = PAGE.read_text()
    for command in ROOT.children:
        assert re.search(rf"kvorumctl .*\b{command.name}\b|`{command.name}\b", text), command.name
