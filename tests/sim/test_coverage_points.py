"""Coverage points: the simulator lists every one in the code, and counts them only in its runs."""

import re
from collections import Counter
from pathlib import Path

from kvorum.api import coverage
from kvorum.sim.coverage_points import EXPECTED, RARE, count_coverage

SOURCE = Path(__file__).parents[2] / "src" / "kvorum"


def test_every_coverage_point_of_the_code_is_listed_once() -> None:
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        found.update(re.findall(r'\breach\("([^"]+)"\)', path.read_text()))
    assert sorted(found) == sorted((*EXPECTED, *RARE))
    assert set(found.values()) == {1}, "each name stands for one line of the code"


def test_coverage_points_are_counted_inside_the_block_only() -> None:
    coverage.reach("before")
    with count_coverage() as reached:
        coverage.reach("within")
        coverage.reach("within")
    coverage.reach("after")
    assert reached == {"within": 2}
