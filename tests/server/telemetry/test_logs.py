"""The shape of the log: etcd's JSON, etcd's console lines, lines for a terminal, sampling."""

import json
import os
import pty
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.process.settings.config import ConfigError
from kvorum.process.settings.flags import FlagError
from kvorum.server.telemetry import logs
from kvorum.server.telemetry.logs import (
    LEVELS,
    SAMPLED_FIRST,
    Format,
    Line,
    Logger,
    Sink,
    as_console,
    as_json,
    for_terminal,
    open_logger,
)
from tests.etcd import running_etcd

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def written(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_line_of_json_has_the_keys_of_etcds(tmp_path: Path) -> None:
    # The lines of a real etcd, which logs into a file.
    theirs = tmp_path / "etcd.log"
    with running_etcd(tmp_path / "data", f"--log-outputs={theirs},stderr"):
        pass
    samples = [json.loads(line) for line in written(theirs) if line.startswith("{")]
    ours = tmp_path / "ours.log"
    logger = open_logger("zap", [str(ours)], "info", "json")
    logger.info("a message", data_dir="d", urls=["a", "b"], count=3)
    logger.named("raft").info("another")
    plain, named = map(json.loads, written(ours))
    assert list(plain)[:4] == ["level", "ts", "caller", "msg"] == list(samples[0])[:4]
    (raft, *_) = [sample for sample in samples if sample.get("logger") == "raft"]
    assert list(named) == list(raft) == ["level", "ts", "logger", "caller", "msg"]
    assert TIMESTAMP.fullmatch(plain["ts"])
    assert re.search(r"test_logs\.py:\d+$", plain["caller"])
    assert (plain["data-dir"], plain["urls"], plain["count"]) == ("d", ["a", "b"], 3)


@given(st.text(), st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), st.text()))
def test_any_text_is_one_line_of_json(message: str, fields: dict[str, Any]) -> None:
    reading, writing = os.pipe()
    try:
        Logger([Sink(writing, as_json)]).write("warn", message, fields, depth=1)
        line = os.read(reading, 1 << 20)
    finally:
        os.close(reading)
        os.close(writing)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    entry = json.loads(line)
    assert entry["level"] == "warn"


def test_levels(tmp_path: Path) -> None:
    for level in LEVELS:
        path = tmp_path / level
        logger = open_logger("zap", [str(path)], level, "json")
        logger.debug("d")
        logger.info("i")
        logger.warning("w")
        logger.error("e")
        logger.critical("f")
        got = [json.loads(line)["level"] for line in written(path)]
        names = ["debug", "info", "warn", "error", "fatal"]
        assert got == [name for name in names if LEVELS[name] >= LEVELS[level]]


def test_console_lines_are_separated_by_tabs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    open_logger("zap", [str(path)], "info", "console").info("a message", took="1ms")
    moment, level, caller, message, fields = written(path)[0].split("\t")
    assert TIMESTAMP.fullmatch(moment)
    assert (level, message, json.loads(fields)) == ("info", "a message", {"took": "1ms"})
    assert re.search(r"test_logs\.py:\d+$", caller)


HOSTILE = "a\r\nb\x1b[2J\x07\x7f\x9b\u2028\u202e\ud800"


@pytest.mark.parametrize("form", [as_json, as_console, for_terminal])
def test_what_a_reader_would_obey_is_escaped(form: Format, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        logger = Logger([Sink(file.fileno(), form)])
        logger.warning(HOSTILE, sent=HOSTILE, several=[HOSTILE], **{HOSTILE: 1})
        logger.warning("a message", sent='x"  level=fatal  y')
    data = path.read_bytes().decode()
    assert data.count("\n") == 2
    assert not set(data) & set(HOSTILE.removeprefix("a\r\nb").replace("[2J", "") + "\r")
    if form is as_json:
        entry = json.loads(data.splitlines()[0])
        assert entry["msg"] == entry["sent"] == HOSTILE
    if form is for_terminal:
        # Nor can a value look like another field.
        assert data.endswith('sent="x\\"  level=fatal  y"\n')


@given(st.text(), st.text())
@pytest.mark.parametrize("form", [as_console, for_terminal])
def test_any_text_is_one_line(form: Format, message: str, sent: str) -> None:
    line = Line("warn", datetime.now(UTC), "", "test", message, {"sent": sent, "all": [sent]})
    assert len(form(line).splitlines()) == 1


def test_a_terminal_gets_readable_lines() -> None:
    leader, follower = pty.openpty()
    try:
        name = os.ttyname(follower)
        open_logger("zap", [name], "info", "").info("hello there", place="a b", number=3)
        line = os.read(leader, 1000).decode()
        assert re.fullmatch(
            r'\d\d:\d\d:\d\d\.\d{3} info  hello there  place="a b"  number=3\r\n', line
        )
        open_logger("zap", [name], "info", "json").info("hello")
        assert json.loads(os.read(leader, 1000))["msg"] == "hello"
    finally:
        os.close(leader)
        os.close(follower)


def test_a_flood_of_one_message_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    # Lines are counted by the second, and all of these are to be in one.
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: 1.0))
    logger = open_logger("zap", [str(path)], "info", "json")
    for _ in range(50 * SAMPLED_FIRST):
        logger.info("again")
    logger.info("something else")
    lines = written(path)
    assert SAMPLED_FIRST < len(lines) < 10 * SAMPLED_FIRST
    assert "something else" in lines[-1]


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Logger([Sink(writing, as_json)]).info("nobody reads this")
    os.close(writing)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["default", "stderr"], 'multi logoutput for "default" is not supported yet'),
        (["/nonexistent/x"], 'couldn\'t open sink "/nonexistent/x": open /nonexistent/x: no such'),
        ([""], 'couldn\'t open sink "": open : no such file or directory'),
    ],
)
def test_outputs_that_are_refused(outputs: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_logger("zap", outputs, "info", "json")
    assert message in str(refused.value)


def test_names_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="capnslog is removed"):
        open_logger("capnslog", ["default"], "info", "json")
    with pytest.raises(FlagError, match='unrecognized level: "loud"'):
        open_logger("zap", ["default"], "loud", "json")
    with pytest.raises(ConfigError, match="unknown log format: xml"):
        open_logger("zap", ["default"], "info", "xml")
