"""What LMDB really writes, cut off anywhere: a finished commit is there, another never in part.

A preloaded library records every write and sync of a process that writes a database. The record
is played back onto the disk in memory, which loses power: of what was not synced, each sector,
length and name survives or not by chance. Each image is then opened with LMDB.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.storage.backend import BackendError, open_backend
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Opening
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from tests.storage.backend.model import Model
from tests.storage.backend.writer import models

SOURCE = Path(__file__).with_name("recorder.c")
IMAGES = 150
ENTRIES = 140
Event = tuple[str, list[str], bytes]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed; it builds the recorder")
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


def write(recorder: Path, directory: Path, *options: str, room: int | None = None) -> list[Event]:
    """Run the writer in a directory and return what it did."""
    database = directory / "db"
    database.mkdir()
    record = directory / "record"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(recorder),
        "KVORUM_RECORD_FILE": str(record),
        "KVORUM_RECORD_DIRECTORY": str(database),
    }
    if room is not None:
        environment["KVORUM_RECORD_BYTES"] = str(room)
    command = [sys.executable, "-m", "tests.storage.backend.writer", str(database), *options]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if room is None:
        assert run.returncode == 0, run.stderr
    else:
        assert run.returncode != 0
        (directory / "errors").write_text(run.stderr)
    return list(parse(record.read_bytes(), str(database)))


def parse(record: bytes, database: str) -> Iterator[Event]:
    offset = 0
    while offset < len(record):
        end = record.index(b"\n", offset)
        kind, *words = record[offset:end].decode().split()
        offset = end + 1
        length = int(words[1]) if kind == "W" else 0
        yield (
            kind,
            [word.replace(database, "db") for word in words],
            record[offset : offset + length],
        )
        offset += length


class Player:
    """Does on a disk in memory what was recorded."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory("db")
        self.files.sync_directory("")
        self.durable = 0

    def play(self, event: Event) -> None:
        kind, words, data = event
        if kind == "M":
            self.durable = int(words[0])
        elif kind == "R":
            self.files.rename(*words)
        elif kind == "U":
            if self.files.exists(words[0]):
                self.files.unlink(words[0])
        elif kind == "S" and words[0] == "db":
            self.files.sync_directory("db")
        elif not words[-1].endswith("LOCK"):
            created = not self.files.exists(words[-1])
            opening = Opening.CREATE if created else Opening.WRITE
            descriptor = self.files.open(words[-1], opening)
            if kind == "W":
                self.files.pwrite(descriptor, int(words[0]), data)
            elif kind == "T":
                self.files.truncate(descriptor, int(words[0]))
            else:
                self.files.fdatasync(descriptor)
            self.files.close(descriptor)

    def image(self, chance: random.Random, directory: Path) -> None:
        """Write what is found after a power cut now to a directory."""
        likely = chance.choice([0.1, 0.5, 0.9])
        files = self.files.after_power_cut(lambda: chance.random() < likely)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for name in files.list("db"):
            (directory / name).write_bytes(read_file(files, f"db/{name}"))


def look(directory: Path, expected: list[Model]) -> int:
    """Hold a database to what its index says, and return that."""
    backend = open_backend(RealFiles(), LmdbEnvironments(), str(directory))
    try:
        index = backend.applied_index
        expected[index].check(backend)
        return index
    finally:
        backend.close()


def cut_everywhere(events: list[Event], directory: Path) -> list[int]:
    """Open many images of a history, and return the indexes they remembered."""
    chance = random.Random(1)
    expected = models(0, ENTRIES)
    cuts = chance.choices(range(len(events)), k=IMAGES)
    player = Player()
    remembered = []
    for number, event in enumerate(events):
        for _ in range(cuts.count(number)):
            player.image(chance, directory)
            remembered.append(look(directory, expected))
            assert remembered[-1] >= player.durable
        player.play(event)
    return remembered


OPTIONS = ["--entries", str(ENTRIES)]


@pytest.mark.parametrize("defragment", [0, 5], ids=["flush", "defragment"])
def test_no_power_cut_loses_a_finished_commit(
    recorder: Path, tmp_path: Path, defragment: int
) -> None:
    events = write(recorder, tmp_path, *OPTIONS, "--defragment", str(defragment))
    renames = [words for kind, words, _ in events if kind == "R"]
    assert len(renames) > 3 if defragment else len(renames) == 1
    remembered = cut_everywhere(events, tmp_path / "image")
    assert len(set(remembered)) > ENTRIES // 10


def test_the_cuts_can_hurt(recorder: Path, tmp_path: Path) -> None:
    events = write(recorder, tmp_path, *OPTIONS)
    unsynced = [event for event in events if event[0] != "S"]
    with pytest.raises((AssertionError, BackendError)):
        cut_everywhere(unsynced, tmp_path / "image")


@pytest.mark.parametrize("room", [200_000, 311_111])
def test_a_full_disk_stops_the_flush_and_loses_nothing(
    recorder: Path, tmp_path: Path, room: int
) -> None:
    events = write(recorder, tmp_path, *OPTIONS, room=room)
    error = (tmp_path / "errors").read_text().strip().splitlines()[-1]
    assert "BackendError" in error and "backend.1" in error and "No space left on device" in error
    assert "free space" in error
    durable = max(int(words[0]) for kind, words, _ in events if kind == "M")
    assert look(tmp_path / "db", models(0, ENTRIES)) == durable
