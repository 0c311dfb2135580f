"""The examples of docs/testing.md are tests that pass."""

import re
import sys
from pathlib import Path

import pytest

from tests.testing.conftest import COROUTINES, Run

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
PROGRAM = """
import sys
from kvorum import Client
with Client(sys.argv[2]) as client:
    client.put("done", "")
"""


@pytest.mark.long
def test_the_examples_of_the_page(
    pytester: pytest.Pytester, run_pytest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 5
    for number, block in enumerate(blocks):
        (pytester.path / f"test_block_{number}.py").write_text(block)
    (pytester.path / "conftest.py").write_text(COROUTINES)
    program = pytester.path / "my-program"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(pytester.path), prepend=":")
    tests = sum(block.count("def test_") for block in blocks)
    run_pytest().assert_outcomes(passed=tests)
