"""A member in a process of its own: the same to its callers, and it ends with their program."""

import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.embed import Config, ConfigError, ProcessServer, StartError, StoppedError, start
from tests.waiting import WAIT_SECONDS_MAX


def wait_for_end(pid: int) -> None:
    """Return when a process, which need not be a child of this one, has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([process], [], [], WAIT_SECONDS_MAX)
        assert ended, f"process {pid} goes on"
    finally:
        os.close(process)


def test_it_serves_and_ends_and_its_log_is_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvorum")
    server = start(Config(ephemeral=True, name="child"), computes=True)
    assert isinstance(server, ProcessServer)
    with server.client(timeout=WAIT_SECONDS_MAX) as client:
        client.put("key", "value")
    pid = server.pid
    assert pid is not None and pid != os.getpid()
    server.close()
    wait_for_end(pid)
    assert server.is_stopped and server.error is None
    assert not Path(server.config.data_directory).exists()
    (ready,) = [each for each in caplog.records if each.getMessage().startswith("ready to serve")]
    assert vars(ready)["member"] == "child" and "address" in vars(ready)["fields"]


def test_refusals_are_those_of_a_thread(tmp_path: Path) -> None:
    with ProcessServer(Config(data_dir=tmp_path, unsafe_no_fsync=True)) as server:
        refused = ProcessServer(Config(data_dir=tmp_path))
        with pytest.raises(ConfigError, match="is locked: another process serves"):
            refused.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(StoppedError, match="has ended with -9"):
            server.wait_stopped(WAIT_SECONDS_MAX)
        server.error = None
    for segment in (tmp_path / "member" / "wal").glob("*.wal"):
        segment.write_bytes(b"\xff" * 64)
    with pytest.raises(StartError, match="the write-ahead log cannot be opened"):
        ProcessServer(Config(data_dir=tmp_path)).start()


PROGRAM = """
import sys
from kvorum.embed import Config, ProcessServer
server = ProcessServer(Config(data_dir=sys.argv[1], unsafe_no_fsync=True)).start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_program_even_if_that_is_killed(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    pid = int(program.stdout.readline())
    program.kill()
    program.wait()
    wait_for_end(pid)
    program.stdin.close()
    program.stdout.close()
    # It has ended cleanly, and left its directory to others.
    with ProcessServer(Config(data_dir=tmp_path, unsafe_no_fsync=True)):
        pass
