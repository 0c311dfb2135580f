"""Lines to the journal, received by a socket as its daemon has one."""

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.process.settings.config import ConfigError
from kvorum.server.telemetry.journal import PRIORITIES, SOCKET, Journal, entry
from kvorum.server.telemetry.logs import LEVELS, Logger, open_logger
from tests import etcd
from tests.waiting import WAIT_SECONDS_MAX


def fields_of(data: bytes) -> dict[str, str]:
    """Parse an entry as the journal does."""
    found = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if equals:
            data = rest
        else:
            (length,) = struct.unpack("<Q", rest[:8])
            value, data = rest[8 : 8 + length], rest[8 + length + 1 :]
            assert rest[8 + length : 8 + length + 1] == b"\n"
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "journal"))
        bound.settimeout(WAIT_SECONDS_MAX)
        yield bound


@pytest.fixture
def journal(daemon: socket.socket) -> Iterator[Journal]:
    with closing(Journal(daemon.getsockname())) as found:
        yield found


def logger_for(journal: Journal, form: str = "json") -> Logger:
    return open_logger("zap", ["systemd/journal"], "debug", form, open_journal=lambda: journal)


NAMES = st.from_regex("[A-Z][A-Z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_text_is_one_field(fields: dict[str, str]) -> None:
    assert fields_of(entry(fields)) == fields


@pytest.mark.parametrize("form", ["", "json", "console"])
def test_a_line_is_an_entry(form: str, daemon: socket.socket, journal: Journal) -> None:
    logger_for(journal, form).warning("a message", took="1ms")
    fields = fields_of(daemon.recv(1 << 20))
    text = fields.pop("MESSAGE")
    package = str(Path(__file__).parent)
    assert fields == {
        "PRIORITY": "4",
        "PACKAGE": package,
        "SYSLOG_IDENTIFIER": fields["SYSLOG_IDENTIFIER"],
    }
    assert fields["SYSLOG_IDENTIFIER"]
    if form == "console":
        assert text.split("\t")[1::2] == ["warn", "a message"]
    else:
        assert json.loads(text)["msg"] == "a message" and json.loads(text)["took"] == "1ms"


def test_priorities(daemon: socket.socket, journal: Journal) -> None:
    logger = logger_for(journal)
    assert set(PRIORITIES) == set(LEVELS)
    for level in LEVELS:
        logger.write(level, "a message", {})
        assert fields_of(daemon.recv(1 << 20))["PRIORITY"] == str(PRIORITIES[level])


def test_a_long_line_goes_in_a_file(daemon: socket.socket, journal: Journal) -> None:
    length = 4 * 1024 * 1024
    logger_for(journal).info("a message", text="x" * length)
    data, (descriptor, *_), _, _ = socket.recv_fds(daemon, 1 << 20, 4)
    try:
        assert data == b""
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            assert len(json.loads(fields_of(file.read())["MESSAGE"])["text"]) == length
        # The journal trusts only what cannot change any more.
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)


def test_a_journal_that_does_not_read_stops_nobody(
    daemon: socket.socket, journal: Journal, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logger_for(journal)
    for number in range(2000):
        logger.info(f"message {number}")
    lines = capfd.readouterr().err.splitlines()
    assert json.loads(lines[-1])["msg"] == "message 1999"
    # Nor does one that is gone; a new one gets lines again.
    path = Path(daemon.getsockname())
    path.unlink()
    logger.info("nobody reads this")
    assert json.loads(capfd.readouterr().err)["msg"] == "nobody reads this"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        logger.info("again")
        assert "again" in fields_of(bound.recv(1 << 20))["MESSAGE"]


def test_refusals_are_a_real_etcds(tmp_path: Path) -> None:
    if Path(SOCKET).exists():
        pytest.skip("this machine has a journal")
    for outputs in (["systemd/journal"], ["stderr", "systemd/journal"]):
        command = [str(etcd.binary("etcd")), f"--log-outputs={','.join(outputs)}"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS_MAX,
            cwd=tmp_path,
        )
        (line,) = [line for line in done.stderr.splitlines() if "failed to verify flags" in line]
        with pytest.raises(ConfigError) as refused:
            open_logger("zap", outputs, "info", "json")
        assert str(refused.value) == json.loads(line)["error"]
