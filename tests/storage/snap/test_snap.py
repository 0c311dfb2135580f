"""Snapshot files: against protobuf and etcd's own, the newest valid one, and leftovers."""

import random
from pathlib import Path

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb import raftpb, snappb
from kvorum.raft.messages import ConfState, Snapshot
from kvorum.storage.files import Files, Purge
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap import (
    ReceivedDatabase,
    ReleaseDatabases,
    RemoveLeftovers,
    SnapError,
    WriteSnap,
    database_path,
    decode,
    encode,
    file_name,
    load_newest,
)

SNAP = "/snap"
uint64 = st.integers(1, (1 << 64) - 1)
snapshots = st.builds(
    Snapshot,
    uint64,
    uint64,
    st.lists(uint64, min_size=1, max_size=4).map(lambda nodes: ConfState(tuple(nodes))),
    st.binary(max_size=300),
)


def snapshot(index: int, term: int = 2) -> Snapshot:
    return Snapshot(index, term, ConfState((1, 2)), b'{"Root": %d}' % index)


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(SNAP)
    return files


def store(files: Files, *indexes: int) -> None:
    for index in indexes:
        WriteSnap(SNAP, snapshot(index)).run(files)


def path_of(index: int) -> str:
    return f"{SNAP}/{file_name(2, index)}"


@given(snapshots)
def test_content_is_what_protobuf_reads(given_one: Snapshot) -> None:
    content = encode(given_one)
    outer = snappb.snapshot.FromString(content)
    assert outer.crc == crc32c(outer.data)
    inner = raftpb.Snapshot.FromString(outer.data)
    assert (inner.metadata.index, inner.metadata.term) == (given_one.index, given_one.term)
    assert inner.data == given_one.data
    assert decode("file", content) == given_one


def test_etcds_snapshots_are_ours_byte_for_byte(etcd_directory: Path) -> None:
    paths = sorted((etcd_directory / "member" / "snap").glob("*.snap"))
    assert len(paths) > 2
    for path in paths:
        content = read_file(RealFiles(), str(path))
        found = decode(str(path), content)
        assert path.name == file_name(found.term, found.index)
        assert b"members" in found.data
        assert encode(found) == content


def test_mutated_snapshots_are_refused_or_the_same(etcd_directory: Path) -> None:
    path = min((etcd_directory / "member" / "snap").glob("*.snap"))
    content = path.read_bytes()
    truth = decode(str(path), content)
    generator = random.Random(1)
    refused = 0
    for _ in range(3000):
        mutated = bytearray(content)
        place = generator.randrange(len(content))
        kind = generator.randrange(4)
        if kind == 0:
            mutated[place] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del mutated[place:]
        elif kind == 2:
            mutated[place : place + 512] = bytes(len(mutated[place : place + 512]))
        else:
            mutated[place:place] = generator.randbytes(generator.randint(1, 9))
        if generator.random() < 0.3:  # most of the work is in the first bytes
            mutated[generator.randrange(12)] = generator.randrange(256)
        try:
            assert decode("file", bytes(mutated)) == truth
        except SnapError:
            refused += 1
    assert refused > 2900


def test_the_newest_valid_one_wins(files: MemoryFiles) -> None:
    store(files, 10, 20, 30)
    valid = {(10, 2), (20, 2), (30, 2)}
    assert load_newest(files, SNAP, valid) == (snapshot(30), [])
    # One that the log has no record of does not count, and stays.
    assert load_newest(files, SNAP, {(10, 2), (20, 2), (30, 1)}) == (snapshot(20), [])
    assert load_newest(files, SNAP, set()) == (None, [])
    assert len(files.list(SNAP)) == 3


def test_a_newer_term_is_newer(files: MemoryFiles) -> None:
    store(files, 20)
    WriteSnap(SNAP, snapshot(10, term=3)).run(files)
    assert load_newest(files, SNAP, {(20, 2), (10, 3)})[0] == snapshot(10, term=3)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\x08\x01", "no snapshot in it"),
        (b"\x08\x01\x12\x00", "no snapshot in it"),
        (encode(snapshot(30))[:-1], "has no place here"),
        (encode(snapshot(30))[:-2] + b"\x18\x07", "stored"),
        (encode(snapshot(29)), "holds index 29 of term 2"),
    ],
)
def test_a_bad_one_is_put_aside(files: MemoryFiles, content: bytes, problem: str) -> None:
    store(files, 10, 20)
    write_file(files, path_of(30), content)
    found, broken = load_newest(files, SNAP, {(10, 2), (20, 2), (30, 2)})
    assert found == snapshot(20)
    assert [each.path for each in broken] == [f"{path_of(30)}.broken"]
    assert problem in broken[0].problem and path_of(30) in broken[0].problem
    assert read_file(files, broken[0].path) == content
    assert load_newest(files, SNAP, {(20, 2)}) == (snapshot(20), [])


def test_purge_counts_each_kind_by_itself(files: MemoryFiles) -> None:
    store(files, 10, 20, 30)
    for index in (10, 20, 30):
        ReceivedDatabase(files, SNAP, index).finish()
    assert Purge(SNAP, ".snap", 2).run(files) == [file_name(2, 10)]
    assert Purge(SNAP, ".snap.db", 1).run(files) == [f"{10:016x}.snap.db", f"{20:016x}.snap.db"]


def test_a_received_database(files: MemoryFiles) -> None:
    database = ReceivedDatabase(files, SNAP, 0x1F)
    database.write(b"one")
    assert not files.exists(database_path(SNAP, 0x1F))
    database.write(b"two")
    assert database.finish() == 6
    assert files.list(SNAP) == ["000000000000001f.snap.db"]
    assert read_file(files, database_path(SNAP, 0x1F)) == b"onetwo"
    abandoned = ReceivedDatabase(files, SNAP, 0x20)
    abandoned.write(b"one")
    abandoned.abandon()
    assert files.list(SNAP) == ["000000000000001f.snap.db"]
    assert ReleaseDatabases(SNAP, 0x1F).run(files) == []
    assert ReleaseDatabases(SNAP, 0x20).run(files) == ["000000000000001f.snap.db"]
    assert files.open_descriptors() == 0


def test_a_received_database_is_not_replaced(files: MemoryFiles) -> None:
    for content in (b"first", b"another"):
        database = ReceivedDatabase(files, SNAP, 0x1F)
        database.write(content)
        database.finish()
        assert files.list(SNAP) == ["000000000000001f.snap.db"]
        assert read_file(files, database_path(SNAP, 0x1F)) == b"first"
        assert files.is_durable(database_path(SNAP, 0x1F))
    assert files.open_descriptors() == 0
    assert ReleaseDatabases(SNAP, None).run(files) == ["000000000000001f.snap.db"]


def test_leftovers_are_removed_at_the_start(files: MemoryFiles) -> None:
    store(files, 10)
    ReceivedDatabase(files, SNAP, 20).write(b"part")
    files.kill()
    for name in ("db", "db.tmp.1", "tmp123"):
        write_file(files, f"{SNAP}/{name}", b"")
    assert RemoveLeftovers(SNAP).run(files) == [
        "db.tmp.1",
        f"tmp.{20:016x}.snap.db",
        "tmp123",
    ]
    assert files.list(SNAP) == [file_name(2, 10), "db"]
    # One that is taken up again before the start begins from nothing.
    ReceivedDatabase(files, SNAP, 20).write(b"part")
    files.kill()
    assert ReceivedDatabase(files, SNAP, 20).finish() == 0
