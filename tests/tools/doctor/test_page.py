"""The page on the doctor: every finding is on it, with its severity, and no other."""

import re
import shlex
from pathlib import Path

from kvorum.tools.cli.parsing import parse
from kvorum.tools.ctl.commands import ROOT
from kvorum.tools.doctor.findings import SEVERITIES

PAGE = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()


def test_every_finding_is_on_the_page_with_its_severity() -> None:
    told: dict[str, str] = {}
    for line in PAGE.splitlines():
        names, severities, *_ = [*line.strip("|").split("|"), ""]
        for number, name in enumerate(re.findall(r"`([a-z-]+)`", names)):
            if line.startswith("| `"):
                words = severities.strip().split(", ")
                told[name] = words[min(number, len(words) - 1)]
    assert told == {name: severity.value for name, severity in SEVERITIES.items()}


def test_every_finding_is_made_somewhere() -> None:
    room = Path(__file__).parents[3] / "src" / "kvorum" / "tools" / "doctor"
    code = "".join(path.read_text() for path in room.glob("*.py") if path.name != "findings.py")
    assert [name for name in SEVERITIES if f'"{name}"' not in code] == []


def test_every_finding_has_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in SEVERITIES if f'"{name}"' not in tests] == []


def test_command_lines_can_be_read() -> None:
    lines = re.findall(r"^    kvorumctl ([^\n|]+)", PAGE, re.M)
    assert lines
    for line in lines:
        assert parse(ROOT, shlex.split(line, comments=True)).command.name == "doctor"
