"""The page and its tests: every section with command lines has one, and every test a section."""

import re

from kvorum.doctor.findings import SEVERITIES
from tests.recovery import test_data, test_members
from tests.recovery.page import PAGE, Step, sections


def test_every_section_has_a_test_and_every_test_a_section() -> None:
    tests = {name for each in (test_data, test_members) for name in vars(each)}
    assert {name for name in tests if name.startswith("test_")} == sections().keys()


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
