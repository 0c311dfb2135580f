"""Flipped bits in a real file: never served, always reported with the file, the row, the remedy."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvorum.storage.backend import Backend, BackendError, CorruptionError, open_backend
from kvorum.storage.backend.buckets import LEASE
from kvorum.storage.backend.defragment import CopyChanges, FlushedChanges
from kvorum.storage.backend.encoding import row_key, seal_value
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles

ROWS = {
    revision << 32: random.Random(revision).randbytes(
        random.Random(-revision).choice([9, 300, 7000])
    )
    for revision in range(2, 300)
}
FLIPS = 60
FLIPS_ANYWHERE = 120
FLIPPER = Path(__file__).parent / "flipper.py"


def open_at(directory: Path) -> Backend:
    """Open a database as a member has it that was damaged after the start had checked it."""
    return open_backend(RealFiles(), LmdbEnvironments(), str(directory), checks=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(directory))
    for revision, value in ROWS.items():
        backend.put_row(revision, value)
    backend.put(LEASE, b"some lease", b"some value")
    backend.set_applied(3, 1)
    stage = backend.seal()
    assert stage is not None
    backend.take_committed(
        backend.take_staged(stage.run(files, environments)).run(files, environments)
    )
    backend.close()
    return directory


def damaged(database: Path, directory: Path, offset: int, bit: int) -> Backend:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(database, directory)
    path = directory / "backend.1"
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
    return open_at(directory)


def read_all(backend: Backend) -> None:
    first = 0
    while rows := backend.scan_rows(first, 1 << 96, 100):
        for revision, value in rows:
            assert ROWS[revision] == value
        first = rows[-1][0] + 1


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_flipped_bit_of_a_row_is_never_served(database: Path, tmp_path: Path, part: str) -> None:
    content = (database / "backend.1").read_bytes()
    chance = random.Random(part)
    for _ in range(FLIPS):
        if part == "key":
            # Pages above have some keys too; in a leaf the value follows, unless it is large.
            revision = chance.choice([each for each, value in ROWS.items() if len(value) < 1000])
            offset = content.rindex(row_key(revision) + ROWS[revision]) + chance.randrange(17)
        else:
            revision = chance.choice(sorted(ROWS))
            sealed = seal_value(row_key(revision), ROWS[revision])
            offset = content.rindex(sealed) + chance.randrange(len(sealed))
        backend = damaged(database, tmp_path / "image", offset, chance.randrange(8))
        number = f"revision {revision >> 32}, sub 0" if part == "value" else ""
        expected = rf"image/backend\.1: .*{number}.*check the disk.*remove the member"
        with pytest.raises(CorruptionError, match=expected):
            read_all(backend)
        with pytest.raises(CorruptionError, match=rf"revision {revision >> 32}, sub 0"):
            backend.row(revision)
        # A key that is out of order hides its neighbours too.
        with pytest.raises(CorruptionError, match=expected):
            backend.rows(sorted(ROWS))
        backend.close()


def test_nothing_is_written_behind_a_key_that_lies_too_high(database: Path, tmp_path: Path) -> None:
    """A flush is the first to notice, if nobody reads the row whose key has changed."""
    content = (database / "backend.1").read_bytes()
    last = max(ROWS)
    backend = damaged(database, tmp_path / "image", content.rindex(row_key(last)), 6)
    backend.put_row(last + (1 << 32), b"new")
    stage = backend.seal()
    assert stage is not None
    expected = r"image/backend\.1: entry b'@.*' of bucket key: it lies behind .*check the disk"
    with pytest.raises(CorruptionError, match=expected):
        stage.run(RealFiles(), LmdbEnvironments())
    backend.close()


def test_a_flipped_bit_of_another_bucket_is_never_served(database: Path, tmp_path: Path) -> None:
    content = (database / "backend.1").read_bytes()
    offset = content.rindex(b"some value")
    backend = damaged(database, tmp_path / "image", offset, 3)
    with pytest.raises(CorruptionError, match=r"backend\.1: entry b'some lease' of bucket lease"):
        backend.items(LEASE)
    with pytest.raises(CorruptionError, match="some lease"):
        backend.get(LEASE, b"some lease")
    backend.close()


def test_a_damaged_consistent_index_refuses_to_open(database: Path, tmp_path: Path) -> None:
    content = (database / "backend.1").read_bytes()
    offset = content.rindex(b"consistent_index") + len("consistent_index") + 7
    with pytest.raises(CorruptionError, match="consistent_index"):
        damaged(database, tmp_path / "image", offset, 0)


@pytest.mark.parametrize("name", [b"consistent_index", b"term"])
def test_a_database_without_its_index_refuses_to_open(
    database: Path, tmp_path: Path, name: bytes
) -> None:
    """An entry whose name has changed is not found under it: nothing would seem to be applied."""
    content = (database / "backend.1").read_bytes()
    start = content.rindex(name)
    for bit in range(8 * len(name)):
        with pytest.raises(CorruptionError, match="of bucket meta"):
            damaged(database, tmp_path / "image", start + bit // 8, bit % 8)


def test_a_damaged_name_of_the_index_is_not_defragmented_away(
    database: Path, tmp_path: Path
) -> None:
    """The index would be missed, deleted from the new file, and the damage gone with the old."""
    shutil.copytree(database, tmp_path / "image")
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(tmp_path / "image"))
    backend.defragment().run(files, environments)
    source, target = tmp_path / "image" / "backend.1", tmp_path / "image" / "backend.2"
    backend.close()
    content = source.read_bytes()
    offset = content.rindex(b"consistent_index")
    source.write_bytes(content[:offset] + b"C" + content[offset + 1 :])
    with pytest.raises(CorruptionError, match="Consistent_index"):
        CopyChanges(str(source), str(target), 1 << 30, FlushedChanges(), 1000, 1000).run(
            files, environments
        )


@pytest.mark.parametrize("bit", [2, 3], ids=["MDB_DUPSORT", "MDB_INTEGERKEY"])
def test_flags_that_lmdb_cannot_serve_are_damage(database: Path, tmp_path: Path, bit: int) -> None:
    """LMDB calls them incompatible with the call, but only damage sets them."""
    shutil.copytree(database, tmp_path / "copy")
    path = tmp_path / "copy" / "backend.1"
    content = bytearray(path.read_bytes())
    for page in (0, 4096):
        # A page's header and the fixed fields of a meta page, the free list's record, a padding.
        content[page + 16 + 24 + 48 + 4] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"docs/recovery\.md"):
        read_all(open_at(tmp_path / "copy"))


def test_a_file_of_something_else_is_refused(database: Path, tmp_path: Path) -> None:
    shutil.copytree(database, tmp_path / "image")
    (tmp_path / "image" / "backend.1").write_bytes(random.Random(0).randbytes(8192))
    with pytest.raises(BackendError, match=r"backend\.1: opening.*"):
        open_at(tmp_path / "image")
    with pytest.raises(CorruptionError, match=r"backend\.1: checking its pages: page 0 is not"):
        open_backend(RealFiles(), LmdbEnvironments(), str(tmp_path / "image"))


def test_a_flipped_bit_anywhere_gives_no_wrong_row(database: Path, tmp_path: Path) -> None:
    """Of a page, a pointer or free space: the reader has all rows, or says why not."""
    rows = json.dumps({revision: value.hex() for revision, value in ROWS.items()})
    told = subprocess.run(
        [sys.executable, FLIPPER, database, tmp_path, "0", str(FLIPS_ANYWHERE)],
        input=rows,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in told.stdout.splitlines()]
    counts = Counter(became for _, became in lines)
    assert counts.total() == FLIPS_ANYWHERE
    assert counts["whole"] and counts["damaged"]
    assert set(counts) <= {"whole", "damaged"}, [
        line for line in lines if line[1] not in ("whole", "damaged")
    ]


def test_an_undamaged_file_is_served(database: Path) -> None:
    backend = open_at(database)
    read_all(backend)
    assert backend.rows(list(ROWS)) == list(ROWS.values())
    backend.close()
