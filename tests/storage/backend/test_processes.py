"""The database in real processes and threads: killed while writing, flushed beside a busy loop."""

import hashlib
import random
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import lmdb
import pytest

from kvorum.storage.backend import (
    BufferLimits,
    CopyChanges,
    CopyDatabase,
    Environment,
    open_backend,
    open_view,
)
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.storage.backend.writer import models
from tests.waiting import WAIT_SECONDS_MAX

KILLS = 8
ENTRIES_MAX = 1_600
ENTRIES_PER_KILL = ENTRIES_MAX // KILLS
FLUSHES = 30
TURN_SECONDS = 1 / 128
"""How far the clock of the busy loop goes on with each turn, however long the turn takes."""


def test_a_killed_writer_loses_nothing_it_reported(tmp_path: Path) -> None:
    chance = random.Random(0)
    expected = models(0, ENTRIES_MAX)
    command = [
        sys.executable,
        "-m",
        "tests.storage.backend.writer",
        str(tmp_path),
        "--defragment",
        "3",
    ]
    command += ["--batch", "5", "--entries"]
    durable = 0
    for kill in range(1, KILLS + 1):
        # The writer may be far ahead of what is read here. It ends before there is nothing left
        # to write for those that are killed later.
        entries = str(kill * ENTRIES_PER_KILL)
        with subprocess.Popen([*command, entries], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(1, 25)):
                durable = int(process.stdout.readline())
            process.kill()
            durable = max([durable, *map(int, process.stdout.read().split())])
        backend = open_backend(RealFiles(), LmdbEnvironments(), str(tmp_path))
        assert backend.applied_index >= durable
        expected[backend.applied_index].check(backend)
        backend.close()


def test_a_batch_that_was_staged_when_the_member_stopped_is_given_up(tmp_path: Path) -> None:
    """The thread that staged it has ended, and LMDB would wait for its transaction for ever."""
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(tmp_path))
    backend.put_row(2 << 32, b"value")
    job = backend.seal()
    assert job is not None
    with ThreadPoolExecutor(1) as flusher:
        flusher.submit(job.run, files, environments).result()
    backend.close()
    backend = open_backend(files, environments, str(tmp_path))
    assert backend.scan_rows(0, 1 << 96, 10) == []
    backend.close()


def test_a_helper_process_defragments_and_looks(tmp_path: Path) -> None:
    """Jobs of the helper travel as data, and work beside the process that has the file open."""
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(tmp_path))

    def flush() -> None:
        job = backend.seal()
        assert job is not None
        commit = backend.take_staged(job.run(files, environments))
        removal = backend.take_committed(commit.run(files, environments))
        if removal is not None:
            removal.run(files, environments)

    for revision in range(2, 3_000):
        backend.put_row(revision << 32, b"v" * 500)
    flush()
    for revision in range(2, 2_900):
        backend.delete_row(revision << 32)
    flush()
    large, in_use = backend.size_bytes, backend.size_in_use_bytes
    assert in_use < large / 10
    with ProcessPoolExecutor(1, get_context("spawn")) as helper:
        helper.submit(run_job, backend.defragment()).result()
        for revision in range(3_000, 15_000):
            backend.put_row(revision << 32, b"w")
        backend.delete_row(2_950 << 32)
        backend.set_applied(7, 1)
        flush()
        catch_up = backend.take_copied()
        assert catch_up is not None
        helper.submit(run_job, catch_up).result()
        backend.delete_row(2_951 << 32)
        flush()
        assert backend.take_copied() is None and backend.is_due(0.0)
        flush()
        assert not backend.is_defragmenting and backend.path.endswith("/backend.2")
        assert backend.size_bytes < large
        assert helper.submit(count_rows, str(tmp_path)).result() == (12_098, (7, 1))
    assert len(backend.scan_rows(0, 1 << 96, 1 << 20)) == 12_098
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "CURRENT",
        "LOCK",
        "backend.2",
        "backend.2-lock",
    ]
    assert backend.check_readers() == 0
    backend.close()


def run_job(job: CopyDatabase | CopyChanges) -> None:
    job.run(RealFiles(), LmdbEnvironments())


def count_rows(directory: str) -> tuple[int, tuple[int, int]]:
    with open_view(RealFiles(), LmdbEnvironments(), directory) as view:
        return len(view.scan_rows(0, 1 << 96, 1 << 20)), view.applied()


def test_a_saturated_loop_leaves_no_row_unflushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushes begin when they are due, and end although the loop never pauses.

    The clock is the loop's own, which goes on by turns: how quick the machine is does not count.
    """
    # How long the disk takes for a sync is not asked here.
    monkeypatch.setattr(lmdb, "Environment", partial(lmdb.Environment, sync=False))
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(tmp_path))
    value = b"v" * 64
    revision, flushes = 1, 0
    # Since when a row waits, 0 if none does; and since when no flush before it is on its way.
    first_active = 0.0
    now = free_since = 0.0
    committing: Future[Environment] | None = None
    end = time.monotonic() + WAIT_SECONDS_MAX
    with ThreadPoolExecutor(1) as flusher:
        while (is_writing := flushes < FLUSHES) or first_active or committing is not None:
            assert time.monotonic() < end, f"flush {flushes} does not end beside a busy loop"
            now += TURN_SECONDS
            if is_writing and not backend.is_full:
                first_active = first_active or now
                for _ in range(20):
                    revision += 1
                    backend.put_row(revision << 32, value)
                backend.set_applied(revision, 1)
            for _ in range(200):
                hashlib.sha256(value).digest()
            if committing is not None and committing.done():
                backend.take_committed(committing.result())
                committing, free_since = None, now
            if backend.is_due(now):
                waited = now - max(first_active, free_since)
                assert waited < BufferLimits().flush_seconds + TURN_SECONDS
                first_active = 0.0
                flushes += 1
                stage = backend.seal()
                assert stage is not None
                staged = flusher.submit(stage.run, files, environments).result()
                committing = flusher.submit(backend.take_staged(staged).run, files, environments)
            backend.end_turn()
    backend.close()
    rows = range(2, revision + 1)
    assert count_rows(str(tmp_path)) == (len(rows), (rows[-1], 1))
