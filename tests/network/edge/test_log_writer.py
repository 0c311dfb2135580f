"""Writes off the loop: in order, at their offsets, on disk when they count as done."""

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.network.edge import Edge, open_edge
from tests.network.edge.loop import wait
from tests.network.edge.service import METHODS


@pytest.fixture
def edge(edge_kind: str) -> Iterator[Edge]:
    assert edge_kind
    opened = open_edge(METHODS)
    yield opened
    opened.stop()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def finished(edge: Edge, count: int) -> list[tuple[int, int]]:
    """Wait for so many writes, woken through the edge's descriptor; return what became of them."""
    done = edge.written()
    while len(done) < count:
        wait(edge)
        assert edge.poll(10, 1000) == ([], [])
        done += edge.written()
    assert all(written >= 0 and synced >= 0 for _, _, written, synced in done)
    return [(number, error) for number, error, _, _ in done]


@pytest.mark.parametrize("sync", [True, False])
def test_a_write_is_on_disk_when_it_is_done(edge: Edge, log: int, *, sync: bool) -> None:
    number = edge.write_log(log, 0, b"record", sync)
    assert finished(edge, 1) == [(number, 0)]
    assert os.pread(log, 100, 0) == b"record"
    assert edge.written() == []


def test_writes_finish_in_order(edge: Edge, log: int) -> None:
    source = random.Random(9)
    expected = bytearray()
    numbers = []
    for place in range(300):
        record = source.randbytes(source.randrange(2000))
        offset = len(expected)
        if place % 7 == 3 and expected:
            # Over what was written before: the later write wins.
            offset = source.randrange(len(expected))
        expected[offset : offset + len(record)] = record
        numbers.append(edge.write_log(log, offset, record, place % 10 == 0))
    assert numbers == sorted(set(numbers))
    assert finished(edge, 300) == [(number, 0) for number in numbers]
    assert os.pread(log, len(expected) + 1, 0) == bytes(expected)


def test_a_large_write_and_one_past_the_end(edge: Edge, log: int) -> None:
    large = random.Random(1).randbytes(1 << 20) * 8
    first = edge.write_log(log, 0, large, True)
    second = edge.write_log(log, len(large) + 1000, b"far", True)
    assert finished(edge, 2) == [(first, 0), (second, 0)]
    assert os.pread(log, len(large), 0) == large
    assert os.pread(log, 2000, len(large)) == bytes(1000) + b"far"


def test_an_empty_write_is_done_too(edge: Edge, log: int) -> None:
    number = edge.write_log(log, 0, b"", True)
    assert finished(edge, 1) == [(number, 0)]
    assert os.fstat(log).st_size == 0


def test_several_files(edge: Edge, tmp_path: Path) -> None:
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abc"]
    numbers = [edge.write_log(files[place % 3], place, b"x", False) for place in range(30)]
    assert finished(edge, 30) == [(number, 0) for number in numbers]
    assert [os.fstat(file).st_size for file in files] == [28, 29, 30]
    for file in files:
        os.close(file)


def test_nothing_is_written_after_a_failure(edge: Edge, log: int, tmp_path: Path) -> None:
    before = edge.write_log(log, 0, b"before", False)
    assert finished(edge, 1) == [(before, 0)]
    closed = os.open(tmp_path / "closed", os.O_RDWR | os.O_CREAT)
    os.close(closed)
    bad = edge.write_log(closed, 0, b"bad", True)
    later = [edge.write_log(log, 6, b"later", True) for _ in range(3)]
    assert finished(edge, 4) == [
        (bad, errno.EBADF),
        *((number, errno.ECANCELED) for number in later),
    ]
    after = edge.write_log(log, 6, b"after", True)
    assert finished(edge, 1) == [(after, errno.ECANCELED)]
    assert os.pread(log, 100, 0) == b"before"


def test_a_file_that_may_not_be_written(edge: Edge, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old")
    readonly = os.open(tmp_path / "log", os.O_RDONLY)
    number = edge.write_log(readonly, 0, b"new", False)
    assert finished(edge, 1) == [(number, errno.EBADF)]
    os.close(readonly)
    assert (tmp_path / "log").read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk(edge: Edge) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    number = edge.write_log(full, 0, b"x", False)
    assert finished(edge, 1) == [(number, errno.ENOSPC)]
    os.close(full)


def test_stop_with_writes_on_their_way(edge: Edge, log: int) -> None:
    for place in range(100):
        edge.write_log(log, place, b"x", True)
    edge.stop()
    size = os.fstat(log).st_size
    assert os.pread(log, 100, 0) == b"x" * size, "what was written is whole"
