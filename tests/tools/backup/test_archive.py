"""Archives, whatever happens to them: what they restore is what was, or nothing."""

import json
import random
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.tools.backup.archive import Archive, rotate
from kvorum.tools.backup.errors import ArchiveError, HistoryEndedError, StoreError
from kvorum.tools.backup.moments import parse_stamp, parse_text, stamp_of, text_of
from kvorum.tools.backup.names import (
    MANIFEST_ENDING,
    SegmentName,
    SnapshotName,
    WatchedName,
    history_name,
    parse_name,
)
from kvorum.tools.backup.points import find_point, spans_of
from kvorum.tools.backup.recording import HistoryPosition, Recorder
from kvorum.tools.backup.segments import read_segment
from kvorum.tools.backup.stores import DirectoryStore, read_whole
from kvorum.tools.backup.verifying import find_problems
from tests.tools.backup.archives import CLUSTER, Scribe, Source, rows_at

SEEDS = st.integers(0, 2**32)
PLACE = "/archive"


class Killed(BaseException):
    """The program is gone."""


def written(files: MemoryFiles, seed: int, steps: int, keep: int) -> tuple[Source, Scribe]:
    """Write an archive of random snapshots and segments."""
    source = Source(seed)
    scribe = Scribe(DirectoryStore(files, PLACE), source)
    write(scribe, source, steps, keep)
    return source, scribe


def write(scribe: Scribe, source: Source, steps: int, keep: int) -> None:
    scribe.snapshot(keep)
    for _ in range(steps):
        if source.chance.random() < 0.3:
            scribe.snapshot(keep)
        else:
            scribe.record(source.chance.randint(1, 4))


def store_of(files: MemoryFiles) -> DirectoryStore:
    return DirectoryStore(files, PLACE)


def covered(store: DirectoryStore) -> list[int]:
    return [
        revision
        for span in spans_of(Archive(store))
        for revision in range(span.first, span.last + 1)
    ]


def nothing(_: int) -> None:
    pass


def fail(text: str) -> None:
    raise AssertionError(text)


@settings(max_examples=20)
@given(seed=SEEDS, steps=st.integers(1, 20), keep=st.integers(1, 3))
def test_what_is_kept_restores_and_nothing_else_is_kept(seed: int, steps: int, keep: int) -> None:
    files = MemoryFiles()
    source, _ = written(files, seed, steps, keep)
    store = store_of(files)
    archive = Archive(store)
    assert len(archive.snapshots) <= keep
    assert find_problems(archive, nothing) == []
    revisions = covered(store)
    # All of the newest snapshots' revisions, and all that came after.
    assert revisions == list(range(archive.snapshots[0].revision, source.revision + 1))
    for revision in revisions:
        assert rows_at(store, find_point(archive, revision, None, fail)) == source.rows_to(revision)
    with pytest.raises(ArchiveError, match=f"revision {source.revision + 1}.* it has revisions"):
        find_point(archive, source.revision + 1, None, fail)


@settings(max_examples=20)
@given(seed=SEEDS)
def test_a_moment_restores_what_had_been_heard_of(seed: int) -> None:
    files = MemoryFiles()
    _, scribe = written(files, seed, 10, 100)
    archive = Archive(store_of(files))
    first = parse_stamp(archive.snapshots[0].stamp)
    last = max(scribe.times.values())
    for moment in [first, last, *(random.Random(seed).uniform(first, last) for _ in range(10))]:
        expected = max(
            [archive.snapshots[0].revision]
            + [revision for revision, known in scribe.times.items() if known <= moment]
        )
        found = find_point(archive, None, moment, fail)
        assert found.revision == expected, (moment - first, last - first)
    for outside in (first - 1, scribe.now + 1):
        with pytest.raises(ArchiveError, match="no backup listened then: it has revisions"):
            find_point(archive, None, outside, fail)


@settings(max_examples=40)
@given(seed=SEEDS, calls=st.integers(0, 150), is_power_cut=st.booleans())
def test_a_killed_backup_harms_nothing(seed: int, calls: int, is_power_cut: bool) -> None:
    left = [calls]

    def before(_: DiskCall) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    files = MemoryFiles()
    source = Source(seed)
    scribe = Scribe(store_of(files), source)
    files.before = before
    acknowledged = 0
    try:
        scribe.snapshot(2)
        for _ in range(12):
            if source.chance.random() < 0.3:
                scribe.snapshot(2)
            else:
                scribe.record(source.chance.randint(1, 4))
            acknowledged = source.revision
    except Killed:
        pass
    files.before = None
    files.kill()
    chance = random.Random(seed)
    if is_power_cut:
        files = files.after_power_cut(lambda: chance.random() < 0.5)
    store = store_of(files)
    revisions = covered(store)
    assert not acknowledged or acknowledged in revisions
    for revision in revisions:
        point = find_point(Archive(store), revision, None, fail)
        assert rows_at(store, point) == source.rows_to(revision)
    # The next run removes what nobody needs, and goes on in a history of its own.
    store.clean()
    if files.exists(PLACE):
        assert not any(name.startswith("tmp.") for name in files.list(PLACE))
    again = Scribe(store, source, "20261118T000000.000Z-00000000")
    again.now = scribe.now
    again.snapshot(1)
    archive = Archive(store)
    assert [each.name for each in archive.histories] == [again.history]
    assert rows_at(store, find_point(archive, None, None, fail)) == source.rows


@settings(max_examples=40)
@given(seed=SEEDS, data=st.data())
def test_what_is_damaged_is_found_and_never_restored(seed: int, data: st.DataObject) -> None:
    files = MemoryFiles()
    source, _ = written(files, seed, 12, 3)
    store = store_of(files)
    names = [name for name in store.sizes() if not name.endswith(".json")]
    name = data.draw(st.sampled_from(names))
    is_gone = data.draw(st.booleans())
    if is_gone:
        files.unlink(f"{PLACE}/{name}")
    else:
        offset = data.draw(st.integers(0, store.sizes()[name] - 1))
        files.flip(f"{PLACE}/{name}", offset, 1 << data.draw(st.integers(0, 7)))
    archive = Archive(store)
    if not is_gone or name.endswith(".db"):
        assert any(name in each for each in find_problems(archive, nothing))
    for revision in covered(store):
        told: list[str] = []
        try:
            point = find_point(archive, revision, None, told.append)
        except ArchiveError:
            assert told
        else:
            assert name not in (str(point.snapshot), *map(str, point.segments))
            assert rows_at(store, point) == source.rows_to(revision)
    told = []
    if archive.snapshots:
        try:
            newest = find_point(archive, None, None, told.append)
        except ArchiveError:
            assert told
        else:
            assert rows_at(store, newest) == source.rows_to(newest.revision)


def test_a_part_of_the_log_that_is_gone_is_missed() -> None:
    files = MemoryFiles()
    source = Source(1)
    scribe = Scribe(store_of(files), source)
    scribe.snapshot(9)
    names = [scribe.record(3) for _ in range(3)]
    store_of(files).delete(str(names[1]))
    assert any(str(names[2]) in each for each in find_problems(Archive(store_of(files)), nothing))


@settings(max_examples=20)
@given(seed=SEEDS, data=st.data(), is_old=st.booleans())
def test_every_hole_inside_a_history_is_reported(
    seed: int, data: st.DataObject, is_old: bool
) -> None:
    files = MemoryFiles()
    written(files, seed, 12, 100)
    store = store_of(files)
    segments = Archive(store).histories[0].segments
    gone = data.draw(st.lists(st.sampled_from(segments), unique=True)) if segments else []
    for each in gone:
        store.delete(str(each))
    if is_old:
        forget_logs(store)
    archive = Archive(store)
    (history,) = archive.histories
    newest = max([each.revision for each in history.snapshots] + [s.last for s in history.segments])
    has_hole = set(range(history.snapshots[0].revision, newest + 1)) != set(covered(store))
    # Older versions do not tell a log that is lost as a whole from snapshots without one.
    is_unknown = is_old and not history.segments
    problems = [each for each in find_problems(archive, nothing) if "a clock" not in each]
    assert bool(problems) == (has_hole and not is_unknown)
    for text in problems:
        first, last = map(int, re.findall(r"lacks revisions (\d+) to (\d+),", text)[0])
        assert not set(range(first, last + 1)) & set(covered(store))


def forget_logs(store: DirectoryStore) -> None:
    """Let an archive be as versions wrote it that did not note what has a log."""
    for name in store.sizes():
        if name.endswith(".db.json"):
            document = json.loads(read_whole(store, name))
            document.pop("log", None)
            store.write(name, json.dumps(document).encode())


def test_older_archives_in_a_wrong_order_are_reported() -> None:
    files = MemoryFiles()
    store = store_of(files)
    source = Source(1)
    later = Scribe(store, source, "20270115T090000.000Z-00000000")
    ahead = Scribe(store, source, "20270115T100000.000Z-00000000")
    later.now, ahead.now = 1_700_003_600.0, 1_700_000_000.0
    later.snapshot(9)
    later.record(2)
    ahead.snapshot(9)
    assert find_problems(Archive(store), nothing) == []
    forget_logs(store)
    (problem,) = find_problems(Archive(store), nothing)
    assert f"history {later.history} has a later snapshot" in problem
    # They are restored all the same.
    for revision in (1, source.revision):
        point = find_point(Archive(store), revision, None, fail)
        assert rows_at(store, point) == source.rows_to(revision)
    ahead.now = time.time() + 3600
    ahead.snapshot(9)
    forget_logs(store)
    (problem,) = find_problems(Archive(store), nothing)
    assert "is in the future" in problem


@given(
    names=st.lists(
        st.tuples(st.integers(0, 3), st.integers(2, 5), st.integers(0, 9), st.booleans()),
        min_size=1,
        unique_by=lambda each: each[:3],
    ),
    keep=st.integers(1, 3),
    data=st.data(),
)
def test_neither_the_snapshot_just_taken_nor_the_last_one_is_rotated_away(
    names: list[tuple[int, int, int, bool]], keep: int, data: st.DataObject
) -> None:
    """Whatever the clocks showed that dated them."""
    store = store_of(MemoryFiles())
    all_of_them = []
    for history, revision, moment, counts in names:
        name = SnapshotName(f"20261117T00000{history}.000Z-00000000", revision, stamp_of(moment))
        store.write(str(name), b"")
        if counts:
            store.write(f"{name}{MANIFEST_ENDING}", b"")
            all_of_them.append(name)
    if not all_of_them:
        return
    taken = data.draw(st.sampled_from(all_of_them))
    before = Archive(store)
    last = next(each for each in before.histories if each.name == taken.history).snapshots[-1]
    rotate(store, keep, taken.history, taken)
    left = Archive(store).snapshots
    assert taken in left
    assert last in left or taken.revision == last.revision
    assert len(left) <= keep + 2
    if taken.history == before.histories[-1].name and taken.revision == last.revision:
        assert len(left) == min(keep, len(all_of_them))
    assert rotate(store, keep, taken.history, taken) == []


@given(st.integers(0, 2**33), st.lists(st.integers(0, 2**33)))
def test_a_new_history_follows_all_others_whatever_the_clock_shows(
    now: int, others: list[int]
) -> None:
    names = sorted(history_name(each, "", "ffffffff") for each in others)
    name = history_name(now, names[-1] if names else "", "00000000")
    assert sorted([*names, name])[-1] == name
    assert parse_name(f"{name}.watched.00000000.json") == WatchedName(name, "00000000")


def test_failures_of_the_disk_are_reported_and_leave_no_object() -> None:
    for failing in ("pwrite", "fdatasync", "rename", "sync_directory"):
        files = MemoryFiles()
        store = store_of(files)
        scribe = Scribe(store, Source(1))
        scribe.snapshot(2)

        def before(call: DiskCall, failing: str = failing) -> None:
            if call.name == failing:
                raise OSError(28, "No space left on device", call.path)

        files.before = before
        sizes = store.sizes()
        with pytest.raises(StoreError, match="No space left"):
            scribe.record(2)
        with pytest.raises((StoreError, OSError), match="No space left"):
            scribe.snapshot(2)
        files.before = None
        if failing != "sync_directory":
            assert store.sizes() == sizes


def test_two_programs_do_not_remove_each_others_files() -> None:
    files = MemoryFiles()
    store = store_of(files)
    with store.spool() as spool:
        spool.add(b"data")
        store_of(files).clean()
        assert files.exists(spool.path)
    assert files.list(PLACE) == []


# Recording.


def refused(change: Callable[[Source], object]) -> str:
    source = Source(3)
    recorder = Recorder("history", CLUSTER, HistoryPosition(source.revision, ""))
    recorder.add(source.change(3), 0.0)
    with pytest.raises(HistoryEndedError) as failure:
        recorder.add(change(source), 0.0)  # type: ignore[arg-type]
    return str(failure.value)


def test_a_history_ends_where_something_is_missing() -> None:
    def skipped(source: Source) -> object:
        source.change(1)
        return source.change(1)

    def other_cluster(source: Source) -> object:
        changes = source.change(1)
        changes.header.cluster_id = 8
        return changes

    def older_term(source: Source) -> object:
        changes = source.change(1)
        changes.header.raft_term = 1
        return changes

    def progress_beyond(source: Source) -> object:
        return source.change(2)._replace(events=[])

    assert "revisions 5 to 5 were not received" in refused(skipped)
    assert "the cluster is 8 and no longer 7" in refused(other_cluster)
    assert "its term went back" in refused(older_term)
    assert "revisions 5 to 6 were not received" in refused(progress_beyond)


def test_another_history_with_the_same_numbers_is_distinguished() -> None:
    first, second = Source(1), Source(2)
    recorder = Recorder("history", CLUSTER, HistoryPosition(1, ""))
    recorder.add(first.change(3), 0.0)
    same, other = (Recorder("history", CLUSTER, recorder.position) for _ in range(2))
    again = Source(1).change(3)
    start = same.resume()
    assert start == 2  # everything that the recorder knows is compared
    same.add(again, 0.0)
    assert same.is_settled and same.last == 4
    start = other.resume(revision_min=4)
    elsewhere = second.change(3)
    last = [each for each in elsewhere.events if each.revision == start == 4]
    with pytest.raises(HistoryEndedError, match="does not continue"):
        other.add(elsewhere._replace(events=last), 0.0)


# Formats.


@given(seed=SEEDS, count=st.integers(1, 20))
def test_segments_keep_rows_byte_by_byte(seed: int, count: int) -> None:
    source = Source(seed)
    recorder = Recorder("history", CLUSTER, HistoryPosition(1, ""))
    recorder.add(source.change(count), 5.25)
    first, last, data = recorder.take(5.0, 5.25, {7: 60})
    segment = read_segment("name", data)
    assert (first, last) == (2, count + 1)
    assert [row for each in segment.revisions for row in each.rows] == source.rows
    assert {each.known for each in segment.revisions} == {5.25}
    assert (segment.since, segment.until, segment.leases) == (5.0, 5.25, {7: 60})


@given(st.integers(0, 2**32 * 1000))
def test_moments_are_kept_to_the_millisecond(milliseconds: int) -> None:
    moment = round(milliseconds / 1000, 3)
    assert parse_stamp(stamp_of(moment)) == parse_text(text_of(moment)) == moment


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_names_are_read_as_they_are_written(first: int, last: int) -> None:
    history, stamp = "20261117T000000.000Z-0123abcd", stamp_of(first % 2**32)
    for name in (
        SnapshotName(history, first, stamp),
        SegmentName(history, first, last, stamp),
        WatchedName(history, "0123abcd"),
    ):
        assert parse_name(str(name)) == name
        assert parse_name(f"{name}.part") is None
    assert (str(SnapshotName(history, first, stamp)) < str(SnapshotName(history, last, stamp))) == (
        first < last
    )
