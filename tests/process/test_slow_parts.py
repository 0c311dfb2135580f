"""A server that runs slower than it could says so when it starts."""

import pytest

from kvorum.process.slow_parts import warn_of_slow_parts
from kvorum.server.telemetry.logs import Line, Logger


class _Lines:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def write(self, line: Line) -> None:
        assert line.level == "warn"
        assert "install" in str(line.fields["remedy"])
        self.warnings.append(line.message)


@pytest.mark.parametrize("edge", ["native", "python"])
@pytest.mark.parametrize("core", ["compiled", "python"])
def test_each_slow_part_has_a_line_with_its_cost_and_a_remedy(edge: str, core: str) -> None:
    lines = _Lines()
    warn_of_slow_parts(Logger([lines]), edge, core)
    costs = {"40 times fewer requests": edge, "twice the time": core}
    assert len(lines.warnings) == (edge, core).count("python")
    for cost, part in costs.items():
        assert any(cost in each for each in lines.warnings) is (part == "python")
