"""The commands as an operator runs them: backup, list, verify, restore; also if they are killed."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.client import Client
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from kvorum.tools.cli.parsing import parse
from kvorum.tools.ctl.commands import ROOT as CTL
from kvorum.tools.utl.commands import ROOT as UTL
from tests.etcd import binary
from tests.kvorum import running_kvorum
from tests.tools.backup.harness import point_of, restored, state_in, state_of
from tests.waiting import WAIT_SECONDS_MAX

PROGRAMS = Path(sys.executable).parent
PAGE = Path(__file__).parents[3] / "docs" / "backup.md"
PATIENT = {f"KVORUMCTL_{name}_TIMEOUT": f"{WAIT_SECONDS_MAX:.0f}s" for name in ("DIAL", "COMMAND")}
NEW_CLUSTER = (
    "--initial-cluster=default=http://127.0.0.1:2",
    "--initial-advertise-peer-urls=http://127.0.0.1:2",
)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | PATIENT,
    )


def started(address: str, archive: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [f"{PROGRAMS}/kvorumctl", f"--endpoints={address}", "backup", f"--to={archive}"]
    return subprocess.Popen(
        [*command, "--log-interval=50ms", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | PATIENT,
    )


def test_from_a_backup_to_a_member_that_serves(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        process = started(server.address, archive)
        assert process.stdout is not None
        assert "snapshot of revision" in process.stdout.readline()
        lease = client.lease(3000).id
        client.put("leased", "1", lease=lease)
        good = client.put("a", "good").revision
        assert f"revision {good} recorded" in _line_with(process, f"revision {good} ")
        bad = client.put("a", "bad").revision
        assert f"revision {bad} recorded" in _line_with(process, f"revision {bad} ")
        process.send_signal(signal.SIGTERM)
        process.communicate()
        assert process.returncode == 0
    listed = run("kvorumctl", "backup", "list", f"--from={archive}", "-w", "json")
    (span,) = json.loads(listed.stdout)
    assert span["firstRevision"] < good < span["lastRevision"] == bad
    verified = run("kvorumctl", "backup", "verify", f"--from={archive}", "-w", "table")
    assert verified.returncode == 0 and "FIRST REVISION" in verified.stdout
    arguments = ("restore", f"--from={archive}", f"--to-revision={good}", *NEW_CLUSTER)
    done = run("kvorumutl", *arguments, f"--data-dir={tmp_path}/restored")
    assert done.returncode == 0, done.stderr
    assert f"restored revision {good} to {tmp_path}/restored" in done.stderr
    with (
        running_kvorum(tmp_path / "restored") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        found = client.read("a")
        assert [each.value for each in found.kvs] == [b"good"]
        assert found.revision == good + 1_000_000_000
        assert client.leases() == [lease]
    again = run("kvorumutl", *arguments, f"--data-dir={tmp_path}/restored")
    assert again.returncode != 0 and "not empty" in again.stderr


def _line_with(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


@pytest.mark.long
def test_a_backup_that_is_killed_again_and_again_misses_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    archive = tmp_path / "archive"
    store = DirectoryStore(RealFiles(), str(archive))
    states = {}
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        for _ in range(4):
            process = started(server.address, archive, "--every=200ms", "--keep=3")
            assert process.stdout is not None
            for _ in range(chance.randint(1, 8)):
                revision = client.put(f"key{chance.randrange(5)}", chance.randbytes(50)).revision
                states[revision] = state_of(client, revision)
                process.stdout.readline()
            process.kill()
            process.communicate()
        newest = max(states)
        assert run(
            "kvorumctl", f"--endpoints={server.address}", "backup", f"--to={archive}", "--once"
        ).returncode == 0  # fmt: skip
    found = Archive(store)
    assert find_problems(found, lambda _: None) == []
    assert not any(name.startswith("tmp.") for name in RealFiles().list(str(archive)))
    first = found.histories[-1].snapshots[0].revision
    for revision in [each for each in states if first <= each][-6:]:
        restored(tmp_path / str(revision), store, point_of(store, revision))
        expected = states[revision]
        assert state_in(tmp_path / str(revision), revision, expected.compact_revision) == expected
    assert point_of(store).revision == newest


def test_any_etcdutl_restores_the_snapshots_of_an_archive(tmp_path: Path) -> None:
    tool = binary("etcdutl")
    archive = tmp_path / "archive"
    with (
        running_kvorum(tmp_path / "data") as server,
        Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        client.put("a", "1")
        flags = (f"--endpoints={server.address}", "backup", f"--to={archive}", "--once")
        assert run("kvorumctl", *flags).returncode == 0
    (path,) = archive.glob("*.db")
    done = subprocess.run(
        [str(tool), "snapshot", "restore", str(path), f"--data-dir={tmp_path}/etcd"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etcd" / "member" / "snap" / "db").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("restore",), "--from is missing"),
        (("restore", "--from=x", "file"), "takes no arguments"),
        (("restore", "--from=x", "--to-revision=3", "--to-time=2026-01-01"), "one of them"),
        (("restore", "--from=x", "--to-time=yesterday"), "'yesterday': expected a time such as"),
        (("restore", "--from=/nowhere/at/all"), "it has no snapshot that counts"),
        (("restore", "--from=ftp://host/x"), "expected a directory, or s3://bucket/prefix"),
    ],
)
def test_restores_that_cannot_be(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = run("kvorumutl", *arguments, f"--data-dir={tmp_path}/x")
    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("backup",), "--to is missing"),
        (("backup", "list"), "--from is missing"),
        (("backup", "--to=x", "--keep=0"), "have to be above 0"),
        (("backup", "--to=gs://bucket"), "expected a directory, or s3://bucket/prefix"),
        (("backup", "verify", "--from=/nowhere/at/all"), "has no snapshot that counts"),
    ],
)
def test_backups_that_cannot_be(arguments: tuple[str, ...], words: str) -> None:
    done = run("kvorumctl", *arguments)
    assert done.returncode != 0
    assert words in done.stderr


def test_verify_ends_with_an_error_if_something_is_damaged(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with running_kvorum(tmp_path / "data") as server:
        flags = (f"--endpoints={server.address}", "backup", f"--to={archive}", "--once")
        assert run("kvorumctl", *flags).returncode == 0
    (path,) = archive.glob("*.db")
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    done = run("kvorumctl", "backup", "verify", f"--from={archive}")
    assert done.returncode != 0
    assert f"{path.name} is damaged" in done.stderr and "1 problem" in done.stderr


def command_lines() -> list[str]:
    blocks = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.M)
    text = "".join(blocks).replace("\\\n", " ")
    return re.findall(r"^ *(kvorumctl .*|kvorumutl .*)$", text, re.M)


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_of_the_page_can_be_read(line: str) -> None:
    program, *words = shlex.split(line)
    root = CTL if program == "kvorumctl" else UTL
    assert parse(root, words).command is not root


def test_the_page_has_command_lines() -> None:
    assert len(command_lines()) >= 6
