"""The buffer and its flush protocol: no crash between any two steps loses or tears anything.

The machine is also run on backends with mistakes planted in them, each of which it must notice.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.storage.backend import (
    Backend,
    BackendError,
    Environment,
    Environments,
    StageFlush,
)
from kvorum.storage.backend.directory import Current, write_current
from kvorum.storage.backend.flush import Staged
from kvorum.storage.files import Files
from tests.storage.backend.disks import LmdbDisk, MemoryDisk
from tests.storage.backend.machine import STEPS, Machine

HISTORY = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**16)), max_size=80)
STEP_COUNT = 150


def run(machine: Machine, history: list[tuple[str, int]]) -> None:
    try:
        for name, number in history:
            machine.step(name, number)
        machine.step("crash", 0)
    finally:
        machine.disk.crash(lambda: False)


def histories(count: int) -> Iterator[list[tuple[str, int]]]:
    """Give long histories, quickly: what hypothesis finds is smaller, but it takes its time."""
    for seed in range(count):
        chance = random.Random(seed)
        names = chance.choices(STEPS, k=STEP_COUNT)
        yield [(name, chance.randrange(2**32)) for name in names]


@given(HISTORY)
def test_the_protocol_against_a_model(history: list[tuple[str, int]]) -> None:
    run(Machine(MemoryDisk.new()), history)


def test_long_histories_against_a_model() -> None:
    for history in histories(200):
        run(Machine(MemoryDisk.new()), history)


def test_the_protocol_on_lmdb(tmp_path: Path) -> None:
    for number, history in enumerate(histories(20)):
        directory = tmp_path / str(number)
        directory.mkdir()
        run(Machine(LmdbDisk(directory)), history)


class NoLookIntoSealed(Backend):
    def rows(self, revisions: Any) -> list[bytes]:
        sealed, self._sealed = self._sealed, None
        try:
            return super().rows(revisions)
        finally:
            self._sealed = sealed


class DropInsteadOfMarker(Backend):
    def delete_row(self, revision: int) -> None:
        self._cache.discard(revision)
        for batch in (self._active, self._sealed):
            if batch is not None and batch.rows.pop(revision, None) is not None:
                return
        self._active.deleted[revision] = None


class _LateIndex:
    def __init__(self, job: StageFlush, backend: Backend) -> None:
        self.job, self.backend = job, backend

    def run(self, files: Files, environments: Environments) -> Staged:
        self.job.batch.index = self.backend.applied_index
        self.job.batch.term = self.backend.applied_term
        return self.job.run(files, environments)


class IndexAheadOfEffects(Backend):
    def seal(self) -> Any:
        job = super().seal()
        return job and _LateIndex(job, self)


class ConfStateInAnotherTransaction(Backend):
    __slots__ = ("late",)

    def set_conf_state(self, json: bytes) -> None:
        self.late = json

    def seal(self) -> Any:
        job = super().seal()
        if hasattr(self, "late"):
            super().set_conf_state(self.late)
            del self.late
        return job


class CacheKeepsDeletedRows(Backend):
    def take_committed(self, environment: Environment) -> Any:
        deleted, self._active.deleted = self._active.deleted, {}
        try:
            return super().take_committed(environment)
        finally:
            self._active.deleted = deleted


class ViewOutlivesACommit(Backend):
    def take_committed(self, environment: Environment) -> Any:
        view, self._view = self._view, None
        try:
            return super().take_committed(environment)
        finally:
            self._view = view


class DefragmentForgetsTheBatchOnItsWay(Backend):
    def defragment(self) -> Any:
        sealed, self._sealed = self._sealed, None
        try:
            return super().defragment()
        finally:
            self._sealed = sealed


class DefragmentForgetsDeletions(Backend):
    def seal(self) -> Any:
        job = super().seal()
        if self._defragmentation is not None:
            self._defragmentation.changes.deleted.clear()
        return job


class CurrentBeforeTheCommit(Backend):
    def take_staged(self, staged: Staged) -> Any:
        if staged.switch is not None:
            write_current(self._files, self.directory, Current(staged.switch.number))
        return super().take_staged(staged)


MISTAKES = [
    NoLookIntoSealed,
    DropInsteadOfMarker,
    IndexAheadOfEffects,
    ConfStateInAnotherTransaction,
    CacheKeepsDeletedRows,
    ViewOutlivesACommit,
    DefragmentForgetsTheBatchOnItsWay,
    DefragmentForgetsDeletions,
    CurrentBeforeTheCommit,
]


@pytest.mark.sources
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_is_noticed(mistake: type[Backend]) -> None:
    with pytest.raises((AssertionError, BackendError, pytest.fail.Exception)):
        hunt(mistake)


def hunt(mistake: type[Backend]) -> None:
    for history in histories(1_000):
        run(Machine(MemoryDisk.new(), mistake), history)
