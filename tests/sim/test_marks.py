"""Marks: every one in the code is known to the simulator, and while nobody listens nothing is."""

import re
from collections import Counter
from pathlib import Path

from kvorum.api import coverage
from kvorum.sim.marks import LISTED, RARE, counted

SOURCE = Path(__file__).parents[2] / "src" / "kvorum"


def test_every_mark_of_the_code_is_listed_once() -> None:
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        found.update(re.findall(r'\breach\("([^"]+)"\)', path.read_text()))
    assert sorted(found) == sorted((*LISTED, *RARE))
    assert set(found.values()) == {1}, "a name stands for one place"


def test_marks_are_counted_while_someone_listens() -> None:
    coverage.reach("before")
    with counted() as reached:
        coverage.reach("within")
        coverage.reach("within")
    coverage.reach("after")
    assert reached == {"within": 2}
