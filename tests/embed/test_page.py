"""Every example of docs/embed.md runs, in the order of the page, and prints what that shows."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "embed.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_is_true() -> None:
    text = PAGE.read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python") >= 4
    names: dict[str, Any] = {"__name__": "page"}
    for code, shown in examples:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        assert printed.getvalue() == shown, code
