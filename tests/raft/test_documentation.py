"""The example of the manual runs as it stands, and is as short as it says."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "raft.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), scope)
    assert scope["applied"][3] == [b"first", b"second"]
    code = [line for line in example.splitlines() if line.strip()]
    assert len(code) <= 40
