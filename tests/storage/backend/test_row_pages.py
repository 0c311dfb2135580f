"""Rows that compiled code reads from LMDB's pages are those that LMDB's cursor gives."""

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.network.edge import native_rows
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.history import Entry
from kvorum.state.mvcc.restore import restore_store
from kvorum.storage.backend import Backend, CorruptionError, open_backend
from kvorum.storage.backend.buckets import KEY, LEASE
from kvorum.storage.backend.encoding import parse_row_key, seal_value
from kvorum.storage.backend.environment import writing
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.state.mvcc.machine import Recorder
from tests.storage.backend.histories import history, native

pytestmark = pytest.mark.skipif(native_rows() is None, reason="the native edge is not built")

PAGE_BYTES = 4096
Found = tuple[dict[bytes, Entry], list[type], int]


@contextmanager
def opened(directory: str, *, is_native: bool) -> Iterator[Backend]:
    """Open a database without the check that finds damage before the rows are read."""
    environments = LmdbEnvironments(native() if is_native else None)
    backend = open_backend(RealFiles(), environments, directory, checks=False)
    try:
        yield backend
    finally:
        backend.close()
        environments.close_all()


def restored(directory: str, *, is_native: bool) -> Found | str:
    """Return the index of a start, or why it is refused."""
    with opened(directory, is_native=is_native) as backend:
        try:
            store = restore_store(backend, Lessor(backend, PRODUCTION), Recorder(), PRODUCTION)
        except CorruptionError as error:
            return str(error)
        entries = store._index.entries
        return entries, list(map(type, entries.values())), store.revision


def fill(directory: str, seed: int, count: int) -> None:
    """Write rows in several commits, and delete some of those that are there."""
    chance = random.Random(seed)
    with opened(directory, is_native=False) as backend:
        path = backend.path
    environments = LmdbEnvironments()
    environment = environments.open(path, 1 << 30)
    rows = [(key, seal_value(key, value)) for key, value in history(seed, count, large=True)]
    while rows:
        piece = chance.randrange(1, 200)
        with writing(environment) as transaction:
            transaction.append(KEY, rows[:piece])
            transaction.put(LEASE, [(b"%d" % piece, bytes(chance.randrange(3_000)))])
        gone = [key for key, _ in rows[:piece] if chance.random() < 0.3]
        if chance.random() < 0.3:
            with writing(environment) as transaction:
                transaction.delete(KEY, gone)
        del rows[:piece]
    environment.close()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 1_500))
def test_the_index_is_the_same(seed: int, count: int) -> None:
    with TemporaryDirectory() as directory:
        fill(directory, seed, count)
        ours, theirs = (restored(directory, is_native=each) for each in (False, True))
        assert ours == theirs and not isinstance(ours, str)
        with opened(directory, is_native=True) as backend:
            pages = backend.row_pages()
            assert pages is not None
            entries: dict[bytes, Entry] = {}
            noted = pages.note(entries, {}, 1 << 40)
            # Nothing was left to the cursor.
            assert noted[0] == backend.count_stored_rows()
            assert pages.note(entries, {}, 1 << 40) == (0, noted[1])
            assert entries == ours[0]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_damaged_row_gets_the_same_verdict(seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        fill(directory, seed, 300)
        with opened(directory, is_native=False) as backend:
            rows = backend.scan_sealed_rows(b"", 1_000)
            path = backend.path
        environment = LmdbEnvironments().open(path, 1 << 30)
        key, sealed = chance.choice(rows)
        damaged = bytearray(sealed)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        with writing(environment) as transaction:
            transaction.put(KEY, [(key, bytes(damaged))])
        environment.close()
        ours, theirs = (restored(directory, is_native=each) for each in (False, True))
        assert ours == theirs and isinstance(ours, str)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_pages_say_only_sound_rows_are_noted(seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as directory:
        fill(directory, seed, 400)
        with opened(directory, is_native=True) as backend:
            rows = [parse_row_key(key) for key, _ in backend.scan_sealed_rows(b"", 1_000)]
            content = bytearray(Path(backend.path).read_bytes())
            for _ in range(chance.choice((1, 1, 4, 40))):
                page = chance.randrange(len(content) // PAGE_BYTES) * PAGE_BYTES
                place = page + chance.choice((16, 64, 200, PAGE_BYTES)) * chance.random()
                content[int(place)] ^= 1 << chance.randrange(8)
            if chance.random() < 0.2:
                del content[chance.randrange(1, len(content)) :]
            copy = Path(directory) / "copy"
            copy.write_bytes(content)
            commits = [struct.unpack_from("<Q", content, each + 144)[0] for each in (0, PAGE_BYTES)]
            for commit in commits if len(content) > 2 * PAGE_BYTES else (1, 2):
                pages = native().RowPages(str(copy), commit)
                while noted := pages.note({}, {}, 50)[0]:
                    assert noted <= len(rows)


def test_a_leaf_that_is_not_reached_prevents_the_start(tmp_path: Path) -> None:
    """LMDB itself does not notice that a branch leads to another leaf than it should."""
    fill(str(tmp_path), 3, 400)
    path = tmp_path / "backend.1"
    content = bytearray(path.read_bytes())
    with opened(str(tmp_path), is_native=False) as backend:
        first = backend.scan_sealed_rows(b"", 1)[0][0]
    changed = 0
    for page in range(2 * PAGE_BYTES, len(content), PAGE_BYTES):
        flags, lower = struct.unpack_from("<HH", content, page + 10)
        if flags != 1 or lower < 16 + 2 * 3:
            continue
        nodes = [page + each for each in struct.unpack_from("<3H", content, page + 16)]
        content[nodes[1] : nodes[1] + 6] = content[nodes[2] : nodes[2] + 6]
        changed += 1
    path.write_bytes(content)
    assert changed and first
    for is_native in (False, True):
        verdict = restored(str(tmp_path), is_native=is_native)
        assert isinstance(verdict, str) and "rows" in verdict


def test_other_files_are_left_to_lmdb(tmp_path: Path) -> None:
    for content in (b"", b"\0" * 10, bytes(3 * PAGE_BYTES)):
        (tmp_path / "file").write_bytes(content)
        assert native().RowPages(str(tmp_path / "file"), 0).note({}, {}, 10) == (0, 0)
    assert native().RowPages(str(tmp_path / "none"), 0).note({}, {}, 10) == (0, 0)
