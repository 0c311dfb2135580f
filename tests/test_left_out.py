"""Nothing is skipped in silence: every reason in the tests has a line of the summary."""

import ast
from pathlib import Path

import pytest

from tests.left_out import LACKS, NOT_MEANT, lack_of, summary

TESTS = Path(__file__).parent


def text_of(node: ast.expr) -> str:
    """Return a literal; what is filled in is left out."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values if isinstance(part, ast.Constant))
    assert isinstance(node, ast.Constant), f"no literal: {ast.unparse(node)}"
    return str(node.value)


def reasons() -> list[str]:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "pytest.skip":
                found.append(text_of(node.args[0]))
            elif called in ("pytest.mark.skipif", "pytest.mark.skip"):
                (reason,) = (each.value for each in node.keywords if each.arg == "reason")
                found.append(text_of(reason))
            elif called == "pytest.importorskip":
                found.append(f"could not import '{text_of(node.args[0])}'")
    return found


REASONS = sorted(set(reasons()))


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_to_skip_says_what_is_missing(reason: str) -> None:
    assert lack_of(reason) is not None, "add what is missing to tests/left_out.py"


def test_everything_that_may_be_missing_is_asked_for() -> None:
    assert {lack_of(reason) for reason in REASONS} == set(LACKS)


def test_what_is_missing_is_counted_and_named_once() -> None:
    lines = summary(["there is no fish", "there is no zsh", "there is no fish", "a new reason"])
    assert lines[0].startswith("2 skipped without fish: install the Debian package fish")
    assert len(lines) == 3 and "1 skipped: a new reason" in lines
    assert summary(["etcd keeps connections as it likes"]) == [f"1 skipped: {NOT_MEANT}"]
    assert summary([]) == []
