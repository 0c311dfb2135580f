"""The examples of the page on recipes run, one after the other."""

import re
from pathlib import Path

from kvorum.client.sync.client import Client

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"


def test_the_examples_run(server: str) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(examples) >= 9
    with Client(server) as client:
        for prefix in ("deploy", "hits", "settings/", "mails/", "jobs/", "batch/"):
            client.delete(prefix=prefix)
    names: dict[str, object] = {}
    for example in examples:
        exec(example.replace("localhost:2379", server), names)
