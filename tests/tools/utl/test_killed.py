"""Commands killed at every operation on files, and disks that are full from any of them on.

The source stays as it was, to the byte and the second; what should be made is there whole or not at
all; and the command can be repeated.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from kvorum.api.limits import PRODUCTION
from kvorum.state.mvcc.hashes import hash_database
from kvorum.storage.backend import open_view
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline import histories
from kvorum.tools.offline.directories import DataDirectory, require_room
from kvorum.tools.utl.main import run
from tests.tools.utl.images import snapshot, usual
from tests.tools.utl.victim import SMALL_LOG

SOURCE = Path(__file__).with_name("killer.c")
NEVER = 1 << 40
# What is tried in one run of the tests; the campaign tries every operation.
SAMPLE = 12


class Outcome(NamedTuple):
    code: int
    said: str
    operations: int


class Victims:
    """Runs commands in processes that come to harm."""

    def __init__(self, process: "subprocess.Popen[str]", read: IO[str], write: IO[str]) -> None:
        self._process = process
        self._read = read
        self._write = write

    def run(self, *arguments: str | Path, at: int = NEVER, mode: str = "k") -> Outcome:
        self._write.write(json.dumps([at, mode, list(map(str, arguments))]) + "\n")
        self._write.flush()
        return Outcome(*json.loads(self._read.readline()))


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed; it builds what kills")
    library = tmp_path_factory.mktemp("killer") / "killer.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.utl.victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Victims(process, process.stdout, process.stdin)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


Data = list[tuple[int, bytes]]


@pytest.fixture(autouse=True)
def _small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "create_log", SMALL_LOG)


State = dict[str, tuple[int, int, Data]]


def data_of(path: Path) -> Data:
    """Return the length of a file and what is written in it: a log has room for much more."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        pieces = [(end, b"")]
        offset = 0
        while offset < end:
            try:
                start = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            except OSError:  # only a hole follows
                break
            offset = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            pieces.append((start, os.pread(file.fileno(), offset - start, start).rstrip(b"\0")))
        return pieces


def state_of(path: Path) -> State:
    """Return times and content of every file; LMDB's tables of readers are nobody's content."""
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    return {
        str(each.relative_to(path)): (
            each.stat().st_mtime_ns,
            each.stat().st_mode,
            data_of(each),
        )
        for each in paths
        if not each.name.endswith("-lock") and not (each / "CURRENT").exists()
    }


def content_of(path: Path) -> dict[str, Data]:
    return {
        str(each.relative_to(path)): data_of(each)
        for each in path.rglob("*")
        if each.is_file() and not each.name.endswith("-lock")
    }


class Making(NamedTuple):
    """A command that makes a data directory from something."""

    source: Path
    arguments: list[str]


def restoring(path: Path) -> Making:
    snapshot(path / "snapshot", usual())
    return Making(path / "snapshot", ["snapshot", "restore", str(path / "snapshot"), "--data-dir"])


def giving_back(path: Path) -> Making:
    snapshot(path / "snapshot", usual())
    assert not run(["snapshot", "restore", str(path / "snapshot"), "--data-dir", str(path / "us")])
    return Making(
        path / "us", ["migrate", "--to-etcd", "--data-dir", str(path / "us"), "--output-dir"]
    )


def taking_over(path: Path) -> Making:
    us = giving_back(path)
    assert not run([*us.arguments, str(path / "them")])
    return Making(path / "them", ["migrate", "--data-dir", str(path / "them"), "--output-dir"])


def chosen(operations: int, request: pytest.FixtureRequest, seed: int) -> list[int]:
    everything = range(1, operations + 1)
    if request.node.get_closest_marker("campaign") or operations <= SAMPLE:
        return list(everything)
    # The moves into place come last.
    return sorted({*random.Random(seed).sample(everything, SAMPLE), *everything[-12:]})


def check_kills(
    victims: Victims, making: Making, place: Path, request: pytest.FixtureRequest, *, is_apart: bool
) -> None:
    target, log, reference = place / "target", place / "log", place / "reference"
    where = [str(target)]
    if is_apart:
        flag = "--wal-dir" if "restore" in making.arguments else "--output-wal-dir"
        target.mkdir()
        where += [flag, str(log)]
    whole = victims.run(*making.arguments, *where)
    assert whole.code == 0, whole
    expected = content_of(target), content_of(log)
    target.rename(reference)
    if is_apart:
        shutil.rmtree(log)
        target.mkdir()
    before = state_of(making.source)
    for at in chosen(whole.operations, request, 1):
        killed = victims.run(*making.arguments, *where, at=at)
        assert killed.code == -9, (at, killed)
        assert state_of(making.source) == before
        if (target / "member").exists():
            assert (content_of(target), content_of(log)) == expected, at
        else:
            repeated = victims.run(*making.arguments, *where)
            assert repeated.code == 0, (at, repeated)
            assert (content_of(target), content_of(log)) == expected, at
        for each in place.iterdir():
            if each != reference:
                shutil.rmtree(each)
        if is_apart:
            target.mkdir()
    for at in chosen(whole.operations, request, 2):
        failed = victims.run(*making.arguments, *where, at=at, mode="f")
        assert state_of(making.source) == before
        if failed.code:
            assert failed.code == 1 and "o space left" in failed.said, (at, failed)
        if (target / "member").exists():
            # Nothing but a sync of what is in place can have failed.
            assert (content_of(target), content_of(log)) == expected, at
            for each in place.iterdir():
                if each != reference:
                    shutil.rmtree(each)
            if is_apart:
                target.mkdir()
        else:
            assert failed.code
            left = {each.name for each in place.iterdir()}
            assert left == {reference.name, *([target.name] if is_apart else [])}, at
            assert not is_apart or not any(target.iterdir())


MAKINGS = [restoring, taking_over, giving_back]


@pytest.mark.parametrize("make", MAKINGS)
@pytest.mark.parametrize(
    "is_apart", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "apart"]
)
def test_a_directory_is_made_whole_or_not_at_all(
    tmp_path: Path,
    victims: Victims,
    request: pytest.FixtureRequest,
    make: Callable[[Path], Making],
    is_apart: bool,
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    check_kills(victims, make(tmp_path), place, request, is_apart=is_apart)


@pytest.mark.campaign
@pytest.mark.parametrize("make", MAKINGS)
@pytest.mark.parametrize("is_apart", [False, True], ids=["", "apart"])
def test_a_directory_is_made_whole_or_not_at_all_at_every_operation(
    tmp_path: Path,
    victims: Victims,
    request: pytest.FixtureRequest,
    make: Callable[[Path], Making],
    is_apart: bool,
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    check_kills(victims, make(tmp_path), place, request, is_apart=is_apart)


def database_hash(data: Path) -> int:
    with open_view(RealFiles(), LmdbEnvironments(), str(data / "member" / "backend")) as view:
        return hash_database(view, PRODUCTION.hash_rows_per_scan)


@pytest.mark.parametrize("mode", ["k", "f"])
def test_a_defragmentation_leaves_the_old_database_or_the_new_one(
    tmp_path: Path, victims: Victims, mode: str
) -> None:
    snapshot(tmp_path / "snapshot", usual())
    data, copy = tmp_path / "data", tmp_path / "copy"
    assert not run(["snapshot", "restore", str(tmp_path / "snapshot"), "--data-dir", str(data)])
    expected = database_hash(data)
    shutil.copytree(data, copy)
    whole = victims.run("defrag", "--data-dir", copy)
    assert whole.code == 0, whole
    for at in range(1, whole.operations + 1):
        shutil.rmtree(copy)
        shutil.copytree(data, copy)
        hurt = victims.run("defrag", "--data-dir", copy, at=at, mode=mode)
        assert hurt.code == (-9 if mode == "k" else hurt.code), (at, hurt)
        assert hurt.code in (-9, 0, 1), (at, hurt)
        assert database_hash(copy) == expected
        again = victims.run("defrag", "--data-dir", copy)
        assert again.code == 0, (at, again)
        assert database_hash(copy) == expected
        names = {each.name for each in (copy / "member" / "backend").iterdir()}
        (database,) = {each.removesuffix("-lock") for each in names} - {"CURRENT", "LOCK"}
        assert database.startswith("backend."), names


def test_room_is_checked_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = taking_over(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=64_000_000))
    commands = [
        restoring(tmp_path).arguments,
        made.arguments,
        ["migrate", "--to-etcd", "--data-dir", str(tmp_path / "us"), "--output-dir"],
    ]
    before = {each.name for each in tmp_path.iterdir()}
    for arguments in commands:
        assert run([*arguments, str(tmp_path / "new")]) == 1
        error = capsys.readouterr().err
        assert "of room" in error and "its disk has 64 MB" in error
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    assert run(["defrag", "--data-dir", str(tmp_path / "us")]) == 1
    assert "its disk has 1.0 kB" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == before


def test_pages_that_are_free_need_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000_000))
    target = DataDirectory(tmp_path / "new")
    require_room(target, 1_000_000, 0, lambda: pytest.fail("there is room anyway"))
    require_room(target, 1_000_000_000, 0, lambda: 36_000_000)
    with pytest.raises(CommandError, match="needs 100 MB of room"):
        require_room(target, 1_000_000_000, 0, lambda: 36_000_001)
