"""Limits, times and sizes of the buffer; whole databases carried out and in; no garbage."""

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.storage.backend import (
    Backend,
    BufferLimits,
    CorruptionError,
    dump,
    install,
    open_backend,
    open_view,
)
from kvorum.storage.backend.buckets import AUTH_USERS, BUCKETS, CONSISTENT_INDEX, KEY, META, TERM
from kvorum.storage.backend.cache import ROW_BYTES, RowCache
from kvorum.storage.backend.encoding import row_key
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.storage.backend.disks import LmdbDisk, MemoryDisk, flush
from tests.storage.backend.machine import STEPS, Machine
from tests.storage.backend.model import NAMES


def open_small(disk: MemoryDisk) -> Backend:
    buffers = BufferLimits(
        flush_seconds=0.1, flush_writes=5, buffer_writes_max=7, buffer_bytes_max=100
    )
    return open_backend(disk.files, disk.environments, disk.directory, buffers=buffers)


def test_a_flush_is_due_by_time() -> None:
    disk = MemoryDisk.new()
    backend = open_small(disk)
    assert not backend.is_due(5.0) and backend.due_at is None
    backend.set_applied(1, 1)
    assert not backend.is_due(6.0), "an index alone waits for the next write"
    backend.put_row(2 << 32, b"")
    assert not backend.is_due(7.0)
    assert backend.due_at == pytest.approx(7.1)
    assert not backend.is_due(7.09)
    assert backend.is_due(7.1)
    flush(disk, backend)
    assert backend.due_at is None and not backend.is_due(9.0)
    assert backend.durable_index == 1


def test_a_flush_is_due_by_writes_and_waits_for_the_one_before() -> None:
    disk = MemoryDisk.new()
    backend = open_small(disk)
    for revision in range(2, 6):
        backend.put_row(revision << 32, b"")
    assert not backend.is_due(0.0)
    backend.delete_row(2 << 32)
    backend.put(AUTH_USERS, b"u", b"")
    assert backend.is_due(0.0)
    stage = backend.seal()
    assert stage is not None and backend.is_flushing
    backend.put_row(6 << 32, b"")
    assert not backend.is_due(100.0) and backend.due_at is None
    with pytest.raises(AssertionError, match="still on its way"):
        backend.seal()
    commit = backend.take_staged(stage.run(disk.files, disk.environments))
    assert backend.take_committed(commit.run(disk.files, disk.environments)) is None
    assert backend.is_due(100.1) and not backend.is_flushing


def test_proposals_wait_at_the_limit_of_writes() -> None:
    backend = open_small(MemoryDisk.new())
    for revision in range(2, 8):
        backend.put_row(revision << 32, b"")
    assert not backend.is_full
    backend.put(AUTH_USERS, b"u", b"")
    assert backend.is_full
    backend.seal()
    assert not backend.is_full


def test_proposals_wait_at_the_limit_of_bytes() -> None:
    backend = open_small(MemoryDisk.new())
    backend.put_row(2 << 32, bytes(99))
    assert not backend.is_full
    backend.put_row(3 << 32, bytes(1))
    assert backend.is_full
    assert backend.pending_bytes > 100


def test_nothing_new_is_nothing_to_flush() -> None:
    disk = MemoryDisk.new()
    backend = open_small(disk)
    assert backend.seal() is None
    backend.set_applied(3, 1)
    flush(disk, backend)
    assert backend.seal() is None
    with pytest.raises(AssertionError, match="applied 2 after 3"):
        backend.set_applied(2, 1)


def test_rows_out_of_order_are_refused() -> None:
    disk = MemoryDisk.new()
    backend = open_small(disk)
    backend.put_row(3 << 32, b"")
    backend.put_row(2 << 32, b"")
    with pytest.raises(AssertionError, match="ascending"):
        backend.seal()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_rows_behind_the_stored_ones_only(kind: str, tmp_path: Path) -> None:
    disk = MemoryDisk.new() if kind == "memory" else LmdbDisk(tmp_path)
    backend = open_backend(disk.files, disk.environments, disk.directory)
    backend.put_row(3 << 32, b"")
    stage = backend.seal()
    assert stage is not None
    staged = stage.run(disk.files, disk.environments)
    backend.take_committed(backend.take_staged(staged).run(disk.files, disk.environments))
    backend.put_row(2 << 32, b"")
    stage = backend.seal()
    assert stage is not None
    with pytest.raises(AssertionError if kind == "memory" else CorruptionError):
        stage.run(disk.files, disk.environments)
    disk.crash(lambda: False)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_buckets_of_many_entries(kind: str, tmp_path: Path) -> None:
    disk = MemoryDisk.new() if kind == "memory" else LmdbDisk(tmp_path)
    backend = open_backend(disk.files, disk.environments, disk.directory)
    names = [b"%04d" % number * (1 + 129 * (number % 2)) for number in range(2_001)]
    for name in names:
        backend.put(AUTH_USERS, name, name)
    stage = backend.seal()
    assert stage is not None
    staged = stage.run(disk.files, disk.environments)
    backend.take_committed(backend.take_staged(staged).run(disk.files, disk.environments))
    assert backend.items(AUTH_USERS) == [(name, name) for name in sorted(names)]
    disk.crash(lambda: False)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=200))
def test_the_cache_stays_within_its_bytes(steps: list[tuple[int, int]]) -> None:
    bytes_max = 10 * (ROW_BYTES + 10)
    cache = RowCache(bytes_max, PRODUCTION.cache_added_rows_max)
    known: dict[int, bytes] = {}
    for revision, step in steps:
        if step == 0:
            value = known[revision] = b"%d" % revision * 5
            cache.add(revision, value)
        elif step == 1:
            rows = {each: b"%d" % each * 5 for each in range(revision, revision + 3)}
            known |= rows
            cache.add_all(rows, sum(map(len, rows.values())))
        elif step == 2:
            cache.discard(revision)
            known.pop(revision, None)
        else:
            assert cache.get(revision) in (None, known.get(revision))
        held = {**cache.old, **cache.young}
        assert sum(len(value) + ROW_BYTES for value in held.values()) <= bytes_max + 3 * ROW_BYTES
        assert held.items() <= known.items()


def test_of_the_rows_of_a_key_only_the_newest_stays_in_memory() -> None:
    disk = MemoryDisk.new()
    backend = open_backend(disk.files, disk.environments, disk.directory)
    revisions = [revision << 32 for revision in range(2, 50)]
    previous = 0
    for count, revision in enumerate(revisions):
        backend.put_row(revision, b"%d" % revision, previous)
        previous = revision
        if count % 10 == 9:
            flush(disk, backend)
    flush(disk, backend)
    assert backend.cached_bytes == len(b"%d" % previous) + ROW_BYTES
    assert backend.rows(revisions) == [b"%d" % revision for revision in revisions]


def test_recent_rows_are_served_without_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk.new()
    backend = open_backend(disk.files, disk.environments, disk.directory)
    revisions = [revision << 32 for revision in range(2, 50)]
    for revision in revisions:
        backend.put_row(revision, b"%d" % revision)
    flush(disk, backend)
    expected = backend.rows(revisions)
    with monkeypatch.context() as patch:
        patch.setattr(Backend, "_open_view", None)
        assert backend.rows(revisions) == expected
        assert backend.row(revisions[3]) == expected[3]
    backend.close()
    again = open_backend(disk.files, disk.environments, disk.directory)
    assert again.rows(revisions) == expected
    monkeypatch.setattr(Backend, "_open_view", None)
    assert again.rows(revisions) == expected, "what was read is recent too"


def test_a_whole_database_goes_out_and_in() -> None:
    disk, other = MemoryDisk.new(), MemoryDisk.new()
    backend = open_backend(disk.files, disk.environments, disk.directory)
    for revision in range(2, 2_500):
        backend.put_row(revision << 32 | revision % 2, b"%d" % revision)
    for name in NAMES:
        backend.put(AUTH_USERS, name, name[:3])
    backend.set_applied(9, 3)
    flush(disk, backend)
    with open_view(disk.files, disk.environments, disk.directory) as view:
        content = [(bucket, list(entries)) for bucket, entries in dump(view)]
    assert [bucket for bucket, _ in content] == list(BUCKETS)
    by_bucket = dict(content)
    assert by_bucket[KEY] == sorted(by_bucket[KEY])
    assert by_bucket[KEY][1] == (row_key(3 << 32 | 1), b"3")
    assert by_bucket[META] == [(CONSISTENT_INDEX, bytes(7) + b"\x09"), (TERM, bytes(7) + b"\x03")]
    open_backend(other.files, other.environments, other.directory).close()
    install(other.files, other.environments, other.directory, content)
    received = open_backend(other.files, other.environments, other.directory)
    assert received.path == "backend/backend.2"
    assert (received.applied_index, received.applied_term) == (9, 3)
    assert received.items(AUTH_USERS) == sorted((name, name[:3]) for name in NAMES)
    assert received.scan_rows(0, 1 << 96, 3_000) == backend.scan_rows(0, 1 << 96, 3_000)


def test_one_process_opens_a_file_once(tmp_path: Path) -> None:
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(tmp_path))
    with open_view(files, environments, str(tmp_path)) as view:
        assert view.applied() == (0, 0)
    with pytest.raises(AssertionError, match="open already"):
        environments.open(backend.path, 1 << 30)
    assert backend.get(META, TERM) is None, "a view that ends closes nothing for others"
    backend.close()


def test_nothing_is_left_to_the_cyclic_collector() -> None:
    machine = Machine(MemoryDisk.new())
    for number in range(3):
        machine.step("apply_entry", number)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        quiet = [name for name in dict.fromkeys(STEPS) if name not in ("crash", "read", "restart")]
        for number in range(300):
            machine.step(quiet[number % len(quiet)], number)
        gc.collect()
        found = [each for each in gc.garbage if type(each).__module__.startswith("kvorum")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert found == []
