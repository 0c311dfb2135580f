"""The page on dumps: every command line on it can be read, and every command is on it."""

import re
import shlex
from pathlib import Path

import pytest

from kvorum.tools.cli.parsing import parse
from kvorum.tools.utl.commands import ROOT
from kvorum.tools.utl.dumps.tree import DUMP, ENTRY_TYPES, ITERATE_FLAGS, METRICS_FLAGS, WAL_FLAGS

PAGE = (Path(__file__).parents[4] / "docs" / "dumps.md").read_text()
LINES = sorted(set(re.findall(r"(?:^|`)kvorumutl (dump [a-z][^`\n|]+)", PAGE, re.M)))


@pytest.mark.parametrize("line", LINES)
def test_command_lines_can_be_read(line: str) -> None:
    given = parse(ROOT, shlex.split(line))
    assert given.command.run and given.command is not DUMP


def test_every_command_flag_and_type_is_on_the_page() -> None:
    commands = [*DUMP.children, *DUMP.children[0].children]
    assert len(LINES) > 20
    for command in commands:
        assert re.search(rf"kvorumutl dump (db )?{command.name}\b", PAGE), command.name
    for flag in (*ITERATE_FLAGS, *WAL_FLAGS, *METRICS_FLAGS):
        assert f"--{flag.name}" in PAGE, flag.name
    for word in ENTRY_TYPES:
        assert f"`{word}`" in PAGE, word
