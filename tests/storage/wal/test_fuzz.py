"""Real logs, mutated: a clear error, the right answer, or a tear that is reported; never less."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum.network.edge import native_skim
from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import (
    SnapshotRecord,
    WalError,
    create_log,
    decoding,
    read_log,
    valid_snapshots,
)
from kvorum.storage.wal.reading import survey_log

WAL = "/wal"
MUTANTS = 800

Segments = dict[str, bytes]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records lie across the pieces in which a segment is read."""
    monkeypatch.setattr(decoding, "PIECE_BYTES", 200)


def flip(generator: random.Random, data: bytearray) -> None:
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)


def scribble(generator: random.Random, data: bytearray) -> None:
    place, length = generator.randrange(len(data)), generator.choice([1, 2, 8, 64, 512])
    data[place : place + length] = generator.randbytes(len(data[place : place + length]))


def clear(generator: random.Random, data: bytearray) -> None:
    place, length = generator.randrange(len(data)), generator.choice([1, 8, 100])
    data[place : place + length] = bytes(len(data[place : place + length]))


def clear_sectors(generator: random.Random, data: bytearray) -> None:
    place = generator.randrange(len(data)) // 512 * 512
    length = generator.choice([512, 1024, 4096, len(data)])
    data[place : place + length] = bytes(len(data[place : place + length]))


def cut(generator: random.Random, data: bytearray) -> None:
    del data[generator.randrange(len(data)) :]


def remove(generator: random.Random, data: bytearray) -> None:
    place = generator.randrange(len(data)) // 8 * 8
    del data[place : place + 8 * generator.randint(1, 100)]


def repeat(generator: random.Random, data: bytearray) -> None:
    place, target = (generator.randrange(len(data)) // 8 * 8 for _ in range(2))
    data[target:target] = data[place : place + 8 * generator.randint(1, 100)]


def change_word(generator: random.Random, data: bytearray) -> None:
    """Give a length word another value, one that is near or one that is nowhere."""
    place = generator.randrange(len(data) - 8) // 8 * 8
    data[place : place + generator.choice([1, 8])] = generator.choice(
        [b"\xff" * 8, bytes(8), (1 << 55).to_bytes(8, "little"), b"\x08", b"\x80" + bytes(7)]
    )


MUTATIONS = [flip, scribble, clear, clear_sectors, cut, remove, repeat, change_word]


def load(segments: Segments) -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(WAL)
    for name, data in segments.items():
        write_file(files, f"{WAL}/{name}", data)
    return files


def check_survey(files: MemoryFiles, truth: list[Entry]) -> None:
    """Read all at once, with compiled code and without: it says what the two passes say."""
    start = SnapshotRecord(len(truth) // 2, truth[-1].term)
    for snapshot in (SnapshotRecord(), start):
        for skim in (None, native_skim()):
            try:
                valid, content = survey_log(files, WAL, snapshot, skim)
            except WalError as error:
                with pytest.raises(type(error), match=re.escape(str(error))):
                    valid_snapshots(files, WAL)
                continue
            assert valid == valid_snapshots(files, WAL)
            if content is not None:
                found = read_log(files, WAL, snapshot)
                assert content == found._replace(durable_end=content.durable_end)


def check(segments: Segments, truth: list[Entry]) -> str:
    """Read mutated segments; return how it went."""
    files = load(segments)
    try:
        content = read_log(files, WAL, SnapshotRecord())
    except WalError as error:
        text = str(error)
        return "refused" if WAL in text and "remove the member" in text else text
    assert content.entries == truth[: len(content.entries)], "entries that nobody wrote"
    assert [each for each in valid_snapshots(files, WAL) if each.index > len(truth)] == []
    if len(content.entries) == len(truth):
        return "read"
    if content.tear is not None:
        assert content.tear.offset == content.end
        return "torn"
    # Nothing tells that there ever was more: as if it had not been written.
    last = list(segments.values())[-1]
    assert last[content.end :].strip(b"\0") == b"", "silent loss"
    return "shorter"


def fuzz(segments: Segments, choose: Callable[[random.Random], str], seed: int) -> set[str]:
    generator = random.Random(seed)
    truth = read_log(load(segments), WAL, SnapshotRecord()).entries
    assert len(truth) > 30
    outcomes = set()
    for _ in range(MUTANTS):
        name = choose(generator)
        data = bytearray(segments[name])
        for _ in range(generator.choice([1, 1, 1, 2, 5])):
            if len(data) > 16:
                generator.choice(MUTATIONS)(generator, data)
        outcomes.add(check(segments | {name: bytes(data)}, truth))
        if generator.random() < 0.1:
            check_survey(load(segments | {name: bytes(data)}), truth)
    return outcomes


def test_mutants_of_etcds_log(etcd_directory: Path) -> None:
    (path,) = (etcd_directory / "member" / "wal").glob("*.wal")
    # The mutations should meet records, not the 64 MB of zeros behind them.
    data = read_file(RealFiles(), str(path)).rstrip(b"\0")
    data += bytes(-len(data) % 512 + 1024)
    outcomes = fuzz({path.name: data}, lambda _: path.name, seed=1)
    assert {"refused", "read", "torn"} <= outcomes <= {"refused", "read", "torn", "shorter"}


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.long)])
def test_mutants_of_a_log_of_several_segments(seed: int) -> None:
    files = MemoryFiles()
    log = create_log(files, WAL, b"whose", 4096)
    generator = random.Random(seed)
    for index in range(1, 41):
        prepare = log.prepare()
        if prepare is not None:
            log.take_spare(prepare.run(files))
        entry = Entry(0, 1, index, generator.randbytes(generator.choice([0, 10, 600, 1500])))
        for job in (log.save(HardState(1, 1, index), [entry]), log.cut()):
            if job is not None:
                job.run(files)
    log.close().run(files)
    segments = {name: read_file(files, f"{WAL}/{name}") for name in files.list(WAL)}
    assert len(segments) > 3
    outcomes = fuzz(segments, lambda generator: generator.choice(list(segments)), seed)
    assert outcomes <= {"refused", "read", "torn", "shorter"}


def test_a_directory_of_noise() -> None:
    generator = random.Random(4)
    name = "0000000000000000-0000000000000000.wal"
    for _ in range(300):
        files = load({name: generator.randbytes(generator.randrange(2000))})
        with pytest.raises(WalError):
            read_log(files, WAL, SnapshotRecord())
