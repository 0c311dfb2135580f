"""`kvorum --ephemeral`, as a test in any language starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvorum.client import Client
from kvorum.process import ephemeral_resources
from kvorum.process.ephemeral_resources import EphemeralResources
from tests.waiting import until

COMMAND = str(Path(sys.executable).parent / "kvorum")


@contextmanager
def started(*flags: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a member; give its process and what its first line says."""
    process = subprocess.Popen(
        [COMMAND, "--ephemeral", "--log-level=error", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def directory_of(pid: int) -> Path:
    """Return the data directory of a member, found by a file that it has open."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        path = each.readlink()
        if path.name == "LOCK" and path.parent.name == "member":
            return path.parents[1]
    raise AssertionError("it has no directory locked")


def test_its_first_line_says_where_it_is_and_it_ends_with_its_input() -> None:
    with started() as (process, told):
        assert set(told) == {"client_url", "peer_url", "pid"} and told["pid"] == process.pid
        with Client(told["client_url"]) as client:
            client.put("key", "value")
            (member,) = client.members.list()
            assert member.client_urls == [told["client_url"]]
            assert member.peer_urls == [told["peer_url"]]
        directory = directory_of(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
        assert not directory.exists()


def test_a_signal_ends_it_as_any_member() -> None:
    with started() as (process, _):
        directory = directory_of(process.pid)
        process.terminate()
        assert process.wait() == -signal.SIGTERM
        assert not directory.exists()


def test_what_a_killed_one_leaves_the_next_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    with started() as (process, _):
        directory = directory_of(process.pid)
        process.kill()
        process.wait()
        assert directory.exists()
        os.utime(directory, (0, 0))
        with started() as (other, _):
            # Another test's member may be about to remove it, and has it locked.
            until(f"{directory} is removed", lambda: not directory.exists())
            used = directory_of(other.pid)
            os.utime(used, (0, 0))
            # But none that is in use. This process may have looked just before.
            monkeypatch.setattr(ephemeral_resources, "_checked_at", {})
            held = EphemeralResources()
            held.furnish({"ephemeral": True})
            held.leave()
            assert used.exists()


@pytest.mark.parametrize("flag", ["--data-dir", "--wal-dir"])
def test_a_place_to_keep_things_is_refused(flag: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [COMMAND, "--ephemeral", f"{flag}={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1 and ended.stdout == ""
    assert f"{flag} names a place to keep it" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_without_room_in_memory_the_disk_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ephemeral_resources, "SHARED_MEMORY", Path("/nowhere"))
    held = EphemeralResources()
    try:
        assert Path(str(held.furnish({"ephemeral": True})["data-dir"])).is_dir()
    finally:
        held.leave()
