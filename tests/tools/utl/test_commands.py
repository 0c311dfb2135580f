"""The command line of `kvorumutl`: formats, exit codes, and what scripts of etcdutl rely on."""

import json
import sys
from pathlib import Path

import pytest

from kvorum.storage.backend.buckets import KEY, META
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.tools.cli.text import human_bytes
from kvorum.tools.utl.main import run
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.tools.ctl.terminal import terminal_of
from tests.tools.utl import commands
from tests.tools.utl.history import Sight, connected, perform, random_calls
from tests.tools.utl.images import ROWS, snapshot, usual


@pytest.fixture
def path(tmp_path: Path) -> Path:
    buckets = usual()
    buckets[META][b"storageVersion"] = b"3.7.0"
    for main, name in ((ROWS + 2, b"k001"), (ROWS + 3, b"k002")):
        buckets[KEY][row_key(revision_of(main, tombstone=True))] = b"\x0a\x04" + name
    snapshot(tmp_path / "snapshot", buckets)
    return tmp_path / "snapshot"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run([str(each) for each in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = run([str(each) for each in arguments])
    output, error = capsys.readouterr()
    assert not output and error.startswith("Error: ")
    return code, error


def test_status_in_every_format(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = ("snapshot", "status", path)
    found = json.loads(output_of(capsys, *status, "-w", "json"))
    size = path.stat().st_size - 32
    value = found.pop("hash")
    # 50 keys were put, and two of them deleted.
    assert found == {
        "revision": ROWS + 3, "totalKey": 48, "totalSize": size, "version": "3.7.0",
    }  # fmt: skip
    assert output_of(capsys, *status) == f"{value:x}, {ROWS + 3}, 48, {human_bytes(size)}, 3.7.0\n"
    assert output_of(capsys, "-w", "fields", *status).splitlines() == [
        f'"Hash" : {value}', f'"Revision" : {ROWS + 3}', '"Keys" : 48', f'"Size" : {size}',
        '"Version" : 3.7.0',
    ]  # fmt: skip
    lines = output_of(capsys, *status, "--write-out=table").splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 5
    assert [cell.strip() for cell in lines[1].strip("│").split("│")] == [
        "HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION",
    ]  # fmt: skip
    assert refused(capsys, *status, "-w", "protobuf")[0] == 4


def test_sizes_are_written_as_etcd_writes_them() -> None:
    sizes = {0: "0 B", 9: "9 B", 999: "999 B", 20_480: "20 kB", 2_147_483_648: "2.1 GB"}
    sizes |= {1_000: "1.0 kB", 9_949_999: "9.9 MB", 9_950_000: "10 MB"}
    assert {size: human_bytes(size) for size in sizes} == sizes


@pytest.mark.long
def test_wrong_arguments(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "snapshot", "status") == (
        128,
        "Error: snapshot status requires exactly one argument\n",
    )
    assert refused(capsys, "snapshot", "restore", path, path)[0] == 128
    assert refused(capsys, "snapshot", "restore", path, "--bump-revision", "3")[0] == 128
    assert refused(capsys, "snapshot", "restore", path, "--mark-compacted")[0] == 128
    assert refused(capsys, "snapshot", "restore", path, "--mark-compacted=maybe")[0] == 1
    code, text = refused(capsys, "snapshot", "restore", path, "--name", "other")
    assert (code, text) == (
        1,
        'Error: couldn\'t find local name "other" in the initial cluster configuration\n',
    )
    assert refused(capsys, "snapshot", "status", "nofile") == (
        1,
        "Error: stat nofile: no such file or directory\n",
    )
    assert refused(capsys, "nothing")[0] == 1
    assert refused(capsys, "snapshot", "status", path, "-w", "yaml")[0] == 4
    migrate = ("migrate", "--data-dir", "a", "--output-dir", "b")
    assert refused(capsys, *migrate, "--target-version", "3.5")[0] == 128
    assert refused(capsys, *migrate, "--to-etcd", "--target-version", "new")[0] == 128
    two = ("--endpoints", "127.0.0.1:1,127.0.0.1:2")
    assert refused(capsys, "snapshot", "save", path, *two)[0] == 5
    assert refused(capsys, "snapshot", "save", path, "--endpoints", "127.0.0.1:1")[0] == 5
    assert not list(path.parent.glob("*.part"))


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = output_of(capsys, "version").splitlines()
    assert first.startswith("kvorumutl version: ") and second == "API version: 3.7"


def test_revisions_that_have_no_hash(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "hashkv", path, "--rev", str(ROWS + 4)) == (
        1,
        "Error: mvcc: required revision is a future revision\n",
    )
    newest = json.loads(output_of(capsys, "hashkv", path, "-w", "json"))
    assert (newest["hashRevision"], newest["compactRevision"]) == (ROWS + 3, -1)


def test_hashes_are_a_real_etcds_also_behind_a_compaction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_etcd(tmp_path / "etcd") as etcd, connected(etcd.address) as oracle:
        perform(oracle, random_calls(21, 300), compactions=2)
        sight = Sight(oracle)
    database = tmp_path / "etcd" / "member" / "snap" / "db"
    assert sight.compacted > 1
    for revision, value in sight.hashes.items():
        found = output_of(capsys, "hashkv", database, "--rev", str(revision))
        assert found == f"{value}, {revision}, {sight.compacted}\n"
    assert refused(capsys, "hashkv", database, "--rev", str(sight.compacted - 1)) == (
        1,
        "Error: mvcc: required revision has been compacted\n",
    )


def test_a_terminal_sees_how_far_it_is(path: Path) -> None:
    program = Path(sys.executable).parent / "kvorumutl"
    command = [str(program), "snapshot", "restore", str(path), "--data-dir", str(path) + ".dir"]
    # What it shows is read all the time: the slower it is, the more it shows.
    with terminal_of(command) as terminal:
        assert terminal.end() == 0
    bars = [line.rsplit("\r")[-1] for line in terminal.seen.decode().split("\r\n")]
    assert [bar.split()[0].removeprefix("\033[K") for bar in bars if "%" in bar] == [
        "checking",
        "restoring",
    ]
    assert bars[-2].startswith("restored snapshot")


@pytest.mark.long
def test_a_database_shrinks_and_keeps_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_kvorum(data) as kvorum, connected(kvorum.address) as client:
        perform(client, random_calls(22, 300), compactions=1)
        sight = Sight(client)
    (before,) = (data / "member" / "backend").glob("backend.[0-9]")
    size = before.stat().st_size
    commands.done("kvorumutl", "defrag", "--data-dir", data)
    (after,) = (data / "member" / "backend").glob("backend.[0-9]")
    assert after != before and after.stat().st_size < size
    with running_kvorum(data) as kvorum, connected(kvorum.address) as client:
        assert Sight(client) == sight
    assert commands.refusal("defrag", "--data-dir", tmp_path)[0] == 1
