"""One seed, one history: byte for byte, whatever the interpreter's hash seed and the core."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.compiled.extension import PACKAGE, library
from kvorum.sim.plan import draw_plan
from kvorum.sim.workloads import ETCD, KUBERNETES, READER

REPOSITORY = Path(__file__).parents[2]


def trace_of(seed: int, members: int, *, is_second: bool = False) -> str:
    """Return the trace of a run; a second one has another hash seed, and the other core."""
    hash_seed, core = ("2", str(int(library(PACKAGE).exists()))) if is_second else ("1", "0")
    run = subprocess.run(
        [sys.executable, "-m", "kvorum.sim", "--replay", str(seed), "--members", str(members)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "KVORUM_COMPILED": core},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr
    return run.stdout


def seed_with_everything(members: int, *, frames: bool) -> int:
    """Return a seed whose run has clients of all shapes, caches, watchers and sessions."""
    for seed in range(1000):
        plan = draw_plan(seed, members)
        workload = plan.workload
        if (
            plan.faults.frames == frames
            and set(workload.shapes) == {ETCD, KUBERNETES, READER}
            and min(workload.watchers, workload.reflectors, workload.sessions) > 0
        ):
            return seed
    raise AssertionError("no seed has everything")


@pytest.mark.long
def test_a_seed_with_json_gives_one_trace() -> None:
    """Frames of WebSockets are masked by chance, which nobody may notice."""
    seed = next(
        seed
        for seed in range(1000)
        if (dialects := draw_plan(seed, 3).dialects) is not None
        and min(dialects.share, dialects.socket_share, dialects.deadline_chance) > 0.1
    )
    assert trace_of(seed, 3) == trace_of(seed, 3, is_second=True)


@pytest.mark.long
def test_a_seed_with_clients_of_the_library_gives_one_trace() -> None:
    seed = next(
        seed
        for seed in range(1000)
        if (users := draw_plan(seed, 3).library) is not None
        and not users.is_calm
        and users.sync_share
    )
    first = trace_of(seed, 3)
    assert " lh1 " in first and " lw1 " in first and " lc1 " in first
    assert trace_of(seed, 3, is_second=True) == first


@pytest.mark.parametrize(
    ("members", "frames"), [pytest.param(1, False, marks=pytest.mark.long), (3, True)]
)
def test_a_seed_gives_one_trace(members: int, frames: bool) -> None:
    seed = seed_with_everything(members, frames=frames)
    first = trace_of(seed, members)
    assert len(first.splitlines()) > 300
    assert trace_of(seed, members, is_second=True) == first
