"""Rotated log files: lumberjack's names and rules, compared with a real etcd's; nothing is lost."""

import gzip
import json
import os
import re
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvorum.process.settings.config import ConfigError
from kvorum.server.telemetry.logs import open_logger
from kvorum.server.telemetry.rotation import RotatingFile, old_files, tidy
from kvorum.server.telemetry.rotation_rules import MEBIBYTE, RotationRules, rotation_rules
from tests import etcd
from tests.etcd import running_etcd
from tests.waiting import WAIT_SECONDS_MAX, until

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
KEYS = ["filename", "maxsize", "maxage", "maxbackups", "localtime", "compress", "MaxSize", "other"]


# The rules.


def refusal_of_etcd(text: str, directory: Path) -> str | None:
    """Return why a real etcd refuses a text; empty if it does not, None if it panics."""
    command = [
        str(etcd.binary("etcd")),
        f"--data-dir={directory / 'data'}",
        f"--log-outputs={directory / 'etcd.log'}",
        "--enable-log-rotation",
        f"--log-rotation-config-json={text}",
        # Refused after the log has been set up, so that it always ends.
        "--election-timeout=0",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS_MAX
    )
    if done.returncode == 2:
        return None
    assert done.returncode == 1, done
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    found = [line.get("error", "") for line in lines]
    return next((error for error in found if "log rotation config" in error), "")


def refusal_of_ours(text: str) -> str:
    try:
        rotation_rules(text)
    except ConfigError as error:
        return str(error)
    return ""


NUMBERS = ["0", "-3", "7", "1.5", "1e2", "01", "-", "1.", "2e", "9223372036854775808"]
STRINGS = ['"text"', '"\\u00e9"', '"\\u00g"', '"\\x"', '"', "'a'", "\\", "é", "true", "nul", "null"]
OTHERS = ["[]", "{}", "[1,]", "[[1] 2]", '{"a":[{"b":null}]}', '{"a" 1}', ""]
VALUES = st.sampled_from([*NUMBERS, *STRINGS, *OTHERS])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Objects with some of the keys, some of them broken."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=3))
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
    if draw(st.booleans()):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.sampled_from(["", "x", "}", ",", " \n"])) + text[place + 1 :]
    return text


@settings(max_examples=40, deadline=None)
@given(text=texts())
def test_the_rules_are_refused_as_a_real_etcd_refuses_them(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = refusal_of_etcd(text, tmp_path_factory.mktemp("rules"))
    # It panics where no key is known, and writes no line at all if the size is negative.
    assume(theirs is not None)
    ours = refusal_of_ours(text)
    assume("maxsize is -" not in ours)
    if etcd.is_target():
        assert ours == theirs
    else:
        assert ours.partition(": ")[0] == (theirs or "").partition(": ")[0]


def test_rules() -> None:
    assert rotation_rules("null") == rotation_rules("{}") == RotationRules(100 * MEBIBYTE)
    text = '{"MAXSIZE":2, "maxage":3, "maxbackups":4, "localtime":true, "compress":true, "x":[]}'
    assert rotation_rules(text) == RotationRules(2 * MEBIBYTE, 3, 4, True, True)
    assert rotation_rules('{"maxsize":1, "maxsize":null}').bytes_max == MEBIBYTE
    with pytest.raises(ConfigError, match="maxsize is -1"):
        rotation_rules('{"maxsize":-1}')
    with pytest.raises(ConfigError, match="exceeded max depth"):
        rotation_rules("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    ("outputs", "is_refused"),
    [("stderr", True), ("default", True), ("a,b", True), ("a,stderr", False), ("a", False)],
)
def test_one_file_is_rotated(outputs: str, is_refused: bool, tmp_path: Path) -> None:
    given = [
        each if each in ("stderr", "default") else f"{tmp_path}/{each}"
        for each in outputs.split(",")
    ]
    text = '{"maxsize":1}'
    command = [
        str(etcd.binary("etcd")),
        f"--log-outputs={','.join(given)}",
        "--enable-log-rotation",
        f"--log-rotation-config-json={text}",
        "--election-timeout=0",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS_MAX
    )
    words = "--log-outputs requires a single file path when --log-rotate-config-json is defined"
    assert (words in done.stderr) == is_refused
    if is_refused:
        with pytest.raises(ConfigError, match=f"^{words}$"):
            open_logger("zap", given, "info", "json", text)
    else:
        open_logger("zap", given, "info", "json", text).info("a line")
        assert json.loads((tmp_path / "a").read_text().splitlines()[-1])["msg"] == "a line"


# The files.


def prepared(directory: Path) -> Path:
    """Fill a directory with a log that is nearly full, old ones, and files that are neither."""
    directory.mkdir()
    (directory / "etcd.log").write_text("x" * (MEBIBYTE - 101) + "\n")
    (directory / "etcd.log").chmod(0o640)
    for name in ("2020-01-01T00-00-00.000.log", "2020-01-02T00-00-00.000.log.gz", "x.log", "1.log"):
        (directory / f"etcd-{name}").write_bytes(gzip.compress(b"old\n"))
    (directory / "etcd-2020-01-03T00-00-00.000.txt").touch()
    return directory / "etcd.log"


def listing(directory: Path) -> dict[str, int]:
    """Return the names and modes of files; the newest time is written as one word."""
    names = {}
    for path in directory.iterdir():
        name = re.sub(r"-20[2-9][1-9]-[-0-9T.]*(?=\.log)", "-NOW", path.name)
        # What rotates the log may remove a file while this looks.
        with suppress(FileNotFoundError):
            names[name] = path.stat().st_mode & 0o777 if "NOW" in name or name == "etcd.log" else 0
    return names


def await_files(directory: Path, expected: dict[str, int]) -> None:
    """Wait until the files are as expected: old ones are removed and compressed behind a line."""
    until(f"files are {expected}", lambda: listing(directory) == expected)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ('{"maxsize":1,"maxbackups":2}', {"NOW.log", "2020-01-02T00-00-00.000.log.gz"}),
        ('{"maxsize":1,"maxage":30,"compress":true}', {"NOW.log.gz"}),
        (
            '{"maxsize":1,"compress":true}',
            {"NOW.log.gz", "2020-01-01T00-00-00.000.log.gz", "2020-01-02T00-00-00.000.log.gz"},
        ),
    ],
)
def test_files_are_named_kept_and_compressed_as_a_real_etcds(
    rules: str, kept: set[str], tmp_path: Path
) -> None:
    untouched = {"x.log", "1.log", "2020-01-03T00-00-00.000.txt"}
    expected = {f"etcd-{name}": 0o640 if "NOW" in name else 0 for name in kept | untouched}
    expected["etcd.log"] = 0o640
    theirs = prepared(tmp_path / "theirs")
    flags = ("--enable-log-rotation", f"--log-rotation-config-json={rules}")
    with running_etcd(tmp_path / "data", f"--log-outputs={theirs},stderr", *flags):
        await_files(theirs.parent, expected)
    ours = prepared(tmp_path / "ours")
    logger = open_logger("zap", [str(ours)], "info", "json", rules)
    logger.info("a line", text="y" * 100)
    await_files(ours.parent, expected)
    assert len(ours.read_text().splitlines()) == 1
    (newest,) = [path for path in ours.parent.iterdir() if "NOW" in "".join(listing_name(path))]
    data = newest.read_bytes()
    assert len(gzip.decompress(data) if newest.suffix == ".gz" else data) == MEBIBYTE - 100


def listing_name(path: Path) -> list[str]:
    return [re.sub(r"-20[2-9][1-9]-[-0-9T.]*(?=\.log)", "-NOW", path.name)]


def read_all(path: Path) -> bytes:
    """Return everything that was written, old files first."""
    parts = [old.read_bytes() for _, old in reversed(old_files(path, local=False))]
    return b"".join(parts) + path.read_bytes()


@settings(max_examples=50, deadline=None)
@given(
    lines=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    bytes_max=st.integers(1, 40),
    step=st.sampled_from([0, 1, 1000]),
    reopened=st.integers(0, 30),
)
def test_nothing_is_lost_and_no_file_grows_too_large(
    lines: list[int],
    bytes_max: int,
    step: int,
    reopened: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.b.log"
    moments = iter(range(10_000))

    def now() -> datetime:
        # The clock may stand still.
        return NOON + timedelta(milliseconds=step * next(moments))

    rules = RotationRules(bytes_max)
    file = RotatingFile(str(path), rules, now)
    written = b""
    for number, length in enumerate(lines):
        if number == reopened:
            os.close(file.descriptor)
            file = RotatingFile(str(path), rules, now)
        line = bytes((65 + number % 26,)) * length + b"\n"
        assert file.write(line)
        written += line
    os.close(file.descriptor)
    assert read_all(path) == written
    for each in (path, *(old for _, old in old_files(path, local=False))):
        assert each.stat().st_size <= bytes_max or each.read_bytes().count(b"\n") == 1


def test_a_crash_between_rename_and_creation_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "etcd.log"
    first = RotatingFile(str(path), RotationRules(10), lambda: NOON)
    first.write(b"one line\n")
    # As a process leaves it that was killed there.
    path.rename(tmp_path / "etcd-2026-03-04T12-00-00.000.log")
    second = RotatingFile(str(path), RotationRules(10), lambda: NOON)
    second.write(b"another\n")
    second.write(b"a third\n")
    assert read_all(path) == b"one line\nanother\na third\n"
    assert len(old_files(path, local=False)) == 2
    os.close(first.descriptor)
    os.close(second.descriptor)


def test_lines_go_to_the_old_file_while_no_new_one_can_be_made(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    file = RotatingFile(str(directory / "etcd.log"), RotationRules(10), lambda: NOON)
    file.write(b"one line\n")
    (directory / "etcd.log").rename(tmp_path / "kept")
    directory.rmdir()
    assert file.write(b"another\n")
    assert (tmp_path / "kept").read_bytes() == b"one line\nanother\n"
    directory.mkdir()
    assert file.write(b"a third\n")
    assert (directory / "etcd.log").read_bytes() == b"a third\n"
    os.close(file.descriptor)


def test_what_is_no_file_is_not_renamed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file = RotatingFile(str(pipe), RotationRules(10), lambda: NOON)
    assert all(file.write(b"one line\n") for _ in range(10))
    assert list(tmp_path.iterdir()) == [pipe]
    assert os.read(reading, 1000) == b"one line\n" * 10
    os.close(reading)
    # Nobody reads any more.
    assert not file.write(b"one line\n")
    os.close(file.descriptor)


def test_local_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-5")
    import time

    time.tzset()
    try:
        path = tmp_path / "etcd"
        rules = RotationRules(10, days_max=1, local_time=True)
        file = RotatingFile(str(path), rules, lambda: NOON)
        file.write(b"one line\n")
        file.write(b"another\n")
        os.close(file.descriptor)
        ((moment, old),) = old_files(path, local=True)
        assert (moment, old.name) == (NOON, "etcd-2026-03-04T17-00-00.000")
        tidy(path, rules, NOON + timedelta(hours=23, minutes=59))
        assert old.exists()
        tidy(path, rules, NOON + timedelta(hours=24, minutes=1))
        assert not old.exists()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_copy_that_was_begun_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "etcd.log"
    old = tmp_path / "etcd-2026-03-04T12-00-00.000.log"
    old.write_bytes(b"one line\n")
    Path(f"{old}.gz.part").write_bytes(b"half of " * 100)
    tidy(path, RotationRules(compress=True), NOON)
    assert [each.name for each in tmp_path.iterdir()] == [f"{old.name}.gz"]
    assert gzip.decompress(Path(f"{old}.gz").read_bytes()) == b"one line\n"


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path)
    with pytest.raises(ConfigError, match=r"couldn't open sink .*: is a directory"):
        open_logger("zap", [path], "info", "json", "{}")
