"""Backups in runs: what judges archives sees what is wrong, and programs end where a run wants."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.backups.archive_disk import ArchiveDisk
from kvorum.sim.backups.checks import KEPT, NEWEST, STATES, WHOLE, ArchiveChecker, Lines, State
from kvorum.sim.backups.program import Clock
from kvorum.sim.backups.shell import threads_installed
from kvorum.sim.backups.threads import SimThread, Threads
from kvorum.sim.campaign import size_of
from kvorum.sim.disk import ProcessEnd
from kvorum.sim.history import History
from kvorum.sim.library.process import Process
from kvorum.sim.machine import UNIX_SECONDS
from kvorum.sim.plan import draw_plan
from kvorum.sim.run import simulate
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.tools import backup
from kvorum.tools.backup.names import SegmentName, SnapshotName, parse_name
from kvorum.tools.backup.stores import write_verified
from tests.tools.backup.archives import Scribe, Source


def module(name: str) -> Any:
    """Return a module that makes backups, whose names are replaced while a run lasts."""
    return import_module(f"{backup.__name__}.{name}")


HISTORY = "20261117T000000.000Z-00000000"


def history_of(source: Source) -> History:
    """Return the history of a cluster that is like a source of backups."""
    history = History()
    rows = [(parse_row_key(key), value) for key, value in source.rows]
    history.observe(0.0, "m1", 2, source.revision, -1, rows)
    return history


class ProgramReports:
    """Reports objects as a backup program does."""

    def __init__(self, checker: ArchiveChecker) -> None:
        self._checker = checker

    def note_snapshot(self, name: SnapshotName) -> None:
        self._checker.note_object(None, str(name), name.revision, is_snapshot=True)  # type: ignore[arg-type]

    def note_segment(self, name: SegmentName) -> None:
        self._checker.note_object(None, str(name), name.last, is_snapshot=False)  # type: ignore[arg-type]


def archive_of(
    seed: int,
) -> tuple[ArchiveDisk, Source, ArchiveChecker, list[SegmentName], SnapshotName]:
    """Return an archive with two snapshots and the log, and its checker."""
    world = World(seed)
    disk = ArchiveDisk(world.stream("place"))
    source = Source(seed)
    scribe = Scribe(disk.store, source, HISTORY)
    segments = [scribe.record(3)]
    scribe.snapshot(keep=5)
    segments += [scribe.record(4) for _ in range(3)]
    revision = scribe.snapshot(keep=5)
    names = [name for name in disk.store.sizes() if name.endswith(".db")]
    newest = next(name for name in map(parsed, names) if name.revision == revision)
    checker = ArchiveChecker(
        world, "a1", disk, Lines(history_of(source)), has_log=True, shared=False
    )
    told = ProgramReports(checker)
    for each in segments:
        told.note_segment(each)
    told.note_snapshot(newest)
    return disk, source, checker, segments, newest


def parsed(name: str) -> SnapshotName:
    found = parse_name(name)
    assert isinstance(found, SnapshotName)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_an_archive_that_is_whole_is_right(seed: int) -> None:
    _, source, checker, _, _ = archive_of(seed)
    checker.check(is_quiet=True, least=source.revision)
    assert checker.points > 0 and checker.is_complete(source.revision)


def remove_the_newest_snapshot(
    disk: ArchiveDisk, segments: list[SegmentName], newest: SnapshotName
) -> None:
    del segments
    disk.store.delete(f"{newest}.json")
    disk.store.delete(str(newest))


def remove_a_segment(disk: ArchiveDisk, segments: list[SegmentName], newest: SnapshotName) -> None:
    del newest
    disk.store.delete(str(segments[2]))


def rename_a_segment(disk: ArchiveDisk, segments: list[SegmentName], newest: SnapshotName) -> None:
    """Put the changes of another store in the place of those that were recorded."""
    del newest
    other = ArchiveDisk(World(9).stream("place"))
    scribe = Scribe(other.store, Source(1000), HISTORY)
    scribe.record(segments[0].last - 1)
    data: list[bytes] = []
    name = scribe.record(4)
    other.store.read(str(name), data.append)
    write_verified(disk.store, str(name), b"".join(data))
    disk.store.delete(str(segments[1]))


def hide_everything(disk: ArchiveDisk, segments: list[SegmentName], newest: SnapshotName) -> None:
    del segments, newest
    for name in disk.store.sizes():
        if name.endswith(".json"):
            disk.store.delete(name)


@pytest.mark.parametrize(
    ("damage", "guarantees"),
    [
        (remove_the_newest_snapshot, {KEPT}),
        (remove_a_segment, {WHOLE, NEWEST}),
        (rename_a_segment, {STATES}),
        (hide_everything, {KEPT, NEWEST}),
    ],
)
def test_an_archive_that_lost_something_is_noticed(
    damage: Callable[[ArchiveDisk, list[SegmentName], SnapshotName], None], guarantees: set[str]
) -> None:
    disk, _, checker, segments, newest = archive_of(3)
    damage(disk, segments, newest)
    with pytest.raises(Violation) as found:
        checker.check()
    assert found.value.guarantee in guarantees


def test_an_archive_that_lags_behind_is_not_complete() -> None:
    _, source, checker, _, _ = archive_of(4)
    assert not checker.is_complete(source.revision + 1)
    with pytest.raises(Violation) as found:
        checker.check(is_quiet=True, least=source.revision + 1)
    assert found.value.guarantee == NEWEST


# Lines.


def row(main: int, key: bytes) -> tuple[int, bytes]:
    kv = KeyValue(key=key, create_revision=main, mod_revision=main, version=1)
    return main << 32, kv.SerializeToString()


def test_a_cluster_that_goes_back_has_two_lines() -> None:
    history = History()
    history.observe(0.0, "m1", 2, 4, -1, [row(2, b"a"), row(3, b"b"), row(4, b"c")])
    lines = Lines(history)
    lines.fork(3)
    assert history.revision == 3
    history.observe(1.0, "m1", 4, 4, -1, [row(4, b"d")])
    old = [row(2, b"a"), row(3, b"b"), row(4, b"c")]
    new = [row(2, b"a"), row(3, b"b"), row(4, b"d")]
    assert lines.find_with_state(State(4, -1, old)) == {0}
    assert lines.find_with_state(State(4, -1, new)) == {1}
    assert lines.find_with_state(State(3, -1, old[:2])) == {0, 1}
    # Neither a part of a state nor more than it.
    assert not lines.find_with_state(State(4, -1, new[1:]))
    assert not lines.find_with_state(State(3, -1, new))
    assert lines.find_with_rows([(4, (row(4, b"d"),))]) == {1}


def test_a_compacted_state_needs_the_newest_row_of_each_key() -> None:
    history = History()
    rows = [row(2, b"a"), row(3, b"b"), row(4, b"a")]
    history.observe(0.0, "m1", 2, 4, -1, rows)
    lines = Lines(history)
    assert lines.find_with_state(State(4, 3, rows))
    assert not lines.find_with_state(State(4, 3, [row(2, b"a"), row(4, b"a")]))


# Threads.


class _Program:
    """What a thread asks of its program."""

    def __init__(self, world: World) -> None:
        self.process = Process(world, "p")
        self.clock = Clock()
        self.is_dead = False
        self.ended: list[SimThread] = []
        self.threads: list[SimThread] = []
        self.scheduler = Threads(world)

    def start_thread(self, call: Callable[[], object]) -> None:
        self.threads.append(SimThread(self.scheduler, self, call))  # type: ignore[arg-type]

    def thread_ended(self, thread: SimThread) -> None:
        self.ended.append(thread)


def test_threads_wait_for_time_events_and_each_other() -> None:
    session = module("session")
    world = World(1)
    program = _Program(world)
    program.clock.offset = 3600.0
    steps: list[tuple[float, str]] = []
    with threads_installed(program.scheduler, {}):

        def work() -> None:
            assert not bell.wait(1.0)
            steps.append((world.now, "late"))
            assert bell.wait(10.0)
            steps.append((world.now, "rung"))
            other = session.Thread(
                target=lambda: program.scheduler.sleep(2.0), name="other", daemon=True
            )
            other.start()
            other.join()
            steps.append((session.time.time() - UNIX_SECONDS - session.time.monotonic(), "joined"))

        bell = session.Event()
        program.start_thread(work)
        world.at(3.0, bell.set)
        program.process.paused_until = 0.5
        world.run_until(10.0)
    assert steps[:2] == [(1.5, "late"), (3.0, "rung")]
    assert steps[2][1] == "joined" and steps[2][0] == pytest.approx(3600.0, abs=1e-6)
    assert len(program.ended) == 2


def test_a_thread_that_is_ended_cleans_up_and_does_nothing_more() -> None:
    world = World(1)
    program = _Program(world)
    steps: list[str] = []

    def work() -> None:
        try:
            program.scheduler.sleep(5.0)
            steps.append("went on")
        except ProcessEnd:
            steps.append("ended")
            raise

    program.start_thread(work)
    world.run_until(1.0)
    program.is_dead = True
    program.threads[0].end()
    world.run_until(10.0)
    assert steps == ["ended"] and program.threads[0].has_ended


def test_clocks_and_threads_are_those_of_a_run_only_while_it_lasts() -> None:
    names = [
        ("session", "time"),
        ("session", "Event"),
        ("session", "Thread"),
        ("running", "token_hex"),
        ("stores", "token_hex"),
    ]

    def found() -> list[object]:
        return [getattr(module(each), name) for each, name in names]

    before = found()
    with threads_installed(Threads(World(1)), {"RETRY_SECONDS": 0.25}):
        assert all(one is not other for one, other in zip(before, found(), strict=True))
        assert module("session").RETRY_SECONDS == module("running").RETRY_SECONDS == 0.25
        assert module("taking").time.monotonic() == 0.0
    assert found() == before
    assert module("session").RETRY_SECONDS == module("running").RETRY_SECONDS == 5.0


# Runs.


def test_a_tenth_of_the_seeds_makes_backups() -> None:
    plans = [draw_plan(seed, size_of(seed)) for seed in range(400)]
    made = [plan for plan in plans if plan.backups is not None]
    assert 25 < len(made) < 70
    assert all(plan.realm is None for plan in made)


@pytest.mark.long
def test_they_are_made_killed_judged_and_forked_in_a_run() -> None:
    """In one of the first runs with backups, whatever a change makes of each of them."""
    names = ("snapshots", "segments", "archives judged", "points restored", "clusters forked")
    seeds = (seed for seed in range(400) if draw_plan(seed, size_of(seed)).backups is not None)
    for seed in seeds:
        outcome = simulate(seed, size_of(seed))
        assert (outcome.guarantee, outcome.violation) == ("", ""), seed
        has_all = all(outcome.counts[f"backups: {name}"] for name in names)
        if has_all and outcome.faults["backups killed"]:
            return
    raise AssertionError("no run has all of it")
