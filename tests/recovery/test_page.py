"""The page and its tests: every section with command lines has one, and every test a section."""

import re
from pathlib import Path

from kvorum.tools.doctor.findings import SEVERITIES
from tests.recovery.page import PAGE, Step, sections

PAGE_TESTS = Path(__file__).parent
TEST = re.compile(r"^def (test_\w+)\(", re.M)


def test_every_section_has_a_test_and_every_test_a_section() -> None:
    modules = [path for path in PAGE_TESTS.glob("test_*.py") if path.name != "test_page.py"]
    tests = [name for path in modules for name in TEST.findall(path.read_text())]
    assert sorted(tests) == sorted(sections())


def test_findings_on_the_page_are_the_doctors() -> None:
    shown = re.findall(r"^(CRITICAL|WARNING|NOTICE) ([a-z-]+) \(", PAGE.read_text(), re.M)
    assert shown
    assert {name: severity.lower() for severity, name in shown}.items() <= {
        (name, severity.value) for name, severity in SEVERITIES.items()
    }


def test_what_is_shown_is_compared() -> None:
    step = Step("x", ["one …", "…, three"])
    assert step.is_as_shown("zero\none 1\ntwo\n2, three\n", 0)
    assert not step.is_as_shown("2, three\none 1\n", 0)
    assert not step.is_as_shown("one 1\n2, three\n", 1)
    failing = Step("x", ["Error: …"])
    assert failing.is_as_shown("Error: no\n", 1) and not failing.is_as_shown("Error: no\n", 0)
