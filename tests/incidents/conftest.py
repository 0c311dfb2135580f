"""Stages that are cleaned up."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.incidents.stage import Stage

MakeStage = Callable[..., Stage]


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """Return what sets up a cluster; it may be asked for several."""
    stages: list[Stage] = []

    def make(members: int = 3, **options: object) -> Stage:
        directory = tmp_path / str(len(stages))
        directory.mkdir()
        stages.append(Stage(directory, members, **options))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
