"""Stages that are cleaned up, and clusters of real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.members import Cluster, running_cluster
from tests.incidents.stage import Stage

MakeStage = Callable[..., Stage]
FREQUENT = (
    "--snapshot-count=100",
    "--snapshot-catchup-entries=20",
    "--backend-batch-interval=5ms",
)
"""Flags with which snapshots and commits are frequent enough to matter."""


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """Return a function that sets up a cluster; it may be called several times."""
    stages: list[Stage] = []

    def make(members: int = 3, **options: object) -> Stage:
        directory = tmp_path / str(len(stages))
        directory.mkdir()
        stages.append(Stage(directory, members, **options))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Cluster]:
    """Three members as processes, whose snapshots and commits are frequent enough to matter."""
    with running_cluster(tmp_path / "processes", "kvorum", 3, *FREQUENT) as cluster:
        yield cluster
