"""Directories of members that do not run, damaged in every way that the doctor knows."""

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import AlarmMember, AlarmType
from kvorum.storage.backend.buckets import ALARM, CONSISTENT_INDEX, META
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.wal import SEGMENT_BYTES
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.tools.doctor.damaging import Content, is_ours, rewrite_database
from tests.tools.doctor.examining import client_of, of_directories

KINDS = ("kvorum", "etcd")


@pytest.fixture(scope="module", params=KINDS)
def healthy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a member that was stopped, with snapshots and some history."""
    directory = tmp_path_factory.mktemp("healthy") / "data"
    running = running_kvorum if request.param == "kvorum" else running_etcd
    flags = ("--snapshot-count=20", "--unsafe-no-fsync")
    with running(directory, *flags) as server:
        with client_of(server.address) as client:
            for number in range(60):
                client.put(f"key/{number:03}", "value" * 30)
            client.compact(client.read(b"none").revision - 10, physical=True)
        server.process.terminate()
        server.process.wait()
    make_small(directory)
    return directory


@pytest.fixture
def data(healthy: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    subprocess.run(["cp", "-a", "--sparse=always", healthy, tmp_path / "data"], check=True)
    return tmp_path / "data"


def make_small(data: Path) -> None:
    """Remove the zeros that segments are made of in advance: tests copy and read them."""
    (data / "member" / "wal" / "0.tmp").unlink(missing_ok=True)
    for segment in (data / "member" / "wal").glob("*.wal"):
        os.truncate(segment, end_of_data(segment) + 4096)


def database_of(data: Path) -> Path:
    return next((data / "member" / "backend").glob("backend.?"), data / "member" / "snap" / "db")


def usual(data: Path) -> set[str]:
    """What is found in a healthy directory."""
    return set() if is_ours(data) else {"directory-of-etcd"}


def last_segment(data: Path) -> Path:
    return sorted((data / "member" / "wal").glob("*.wal"))[-1]


def end_of_data(segment: Path) -> int:
    return len(segment.read_bytes().rstrip(b"\0"))


@pytest.mark.long
def test_a_healthy_directory_gives_no_findings_and_stays_as_it_is(data: Path) -> None:
    def content() -> dict[Path, str]:
        # LMDB's table of readers is made by whoever reads.
        return {
            path: sha256(path.read_bytes()).hexdigest()
            for path in data.rglob("*")
            if path.is_file() and not path.name.endswith("-lock")
        }

    before = content()
    assert of_directories(data).keys() == usual(data)
    assert content() == before


@pytest.mark.long
def test_a_killed_member_leaves_a_healthy_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_kvorum(data) as server, client_of(server.address) as client:
        client.put("key", "value")
        server.process.kill()
        server.process.wait()
    assert not of_directories(data)


def test_a_torn_log_is_harmless(data: Path) -> None:
    segment = last_segment(data)
    # A record's length without the record: what a power cut leaves of a batch.
    with segment.open("r+b") as file:
        end = end_of_data(segment)
        file.seek(end + -end % 8)
        file.write((4096).to_bytes(8, "little") + b"\x08")
        file.truncate()
    found = of_directories(data)
    assert found.keys() == usual(data) | {"log-torn"}
    (torn,) = found["log-torn"]
    assert torn["severity"] == "notice" and torn["subject"] == str(segment)
    assert torn["evidence"]["offset"] == end + -end % 8


def test_a_corrupt_log_is_certain(data: Path) -> None:
    segment = sorted((data / "member" / "wal").glob("*.wal"))[0]
    content = bytearray(segment.read_bytes())
    content[end_of_data(segment) // 2] ^= 0x10
    segment.write_bytes(content)
    found = of_directories(data)
    assert found.keys() == usual(data) | {"log-corrupt"}
    (corrupt,) = found["log-corrupt"]
    assert corrupt["certainty"] == "certain" and corrupt["subject"] == str(segment)
    # The member's id is known, though the log is damaged.
    assert not corrupt["run"][0].endswith("<member id>")


@pytest.mark.long
def test_a_log_with_no_files_is_missing(data: Path) -> None:
    shutil.rmtree(data / "member" / "wal")
    assert of_directories(data).keys() == usual(data) | {"log-missing"}


def test_a_log_elsewhere_is_found(data: Path, tmp_path: Path) -> None:
    (data / "member" / "wal").rename(tmp_path / "log")
    found = of_directories(data, flags=(f"--wal-dir={tmp_path / 'log'}",))
    assert found.keys() == usual(data)


@pytest.mark.long
def test_a_snapshot_that_cannot_be_read(data: Path) -> None:
    newest = max((data / "member" / "snap").glob("*.snap"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    found = of_directories(data)
    assert found.keys() - usual(data) <= {"snapshot-broken", "snapshot-missing"}
    assert found["snapshot-broken"][0]["subject"] == str(newest)


@pytest.mark.long
def test_snapshots_that_are_missing(tmp_path: Path) -> None:
    """Only in a log that does not begin at its beginning."""
    data = tmp_path / "data"
    flags = ("--snapshot-count=5", "--unsafe-no-fsync")
    with running_kvorum(data, *flags) as server:
        with client_of(server.address) as client:
            for number in range(20):
                client.put(f"key/{number}", "value")
        server.process.terminate()
        server.process.wait()
    make_small(data)
    # As if the first segments had been released, which takes hours of writing.
    segment = last_segment(data)
    segment.rename(segment.with_name(f"{1:016x}-{8:016x}.wal"))
    assert not of_directories(data)
    for path in (data / "member" / "snap").glob("*.snap"):
        path.unlink()
    found = of_directories(data)
    assert found.keys() == {"snapshot-missing"}


def test_a_database_that_is_missing(data: Path) -> None:
    if is_ours(data):
        shutil.rmtree(data / "member" / "backend")
    else:
        database_of(data).unlink()
    assert of_directories(data).keys() == {"database-missing"}


@pytest.mark.long
@pytest.mark.parametrize("damage", ["cut", "overwritten", "row"])
def test_a_database_that_is_damaged(data: Path, damage: str) -> None:
    path = database_of(data)
    content = bytearray(path.read_bytes())
    place = content.index(b"key/050")
    if damage == "cut":
        del content[8192:]
    elif damage == "overwritten":
        page = place - place % 4096
        content[page : page + 4096] = b"\xa5" * 4096
    else:
        # Rows have checksums in ours; in etcd's, what is not a message is found.
        content[place - 2 : place] = b"\xff\xff"
    path.write_bytes(content)
    found = of_directories(data)
    assert found.keys() == usual(data) | {"database-corrupt"}
    assert found["database-corrupt"][0]["evidence"]["problem"]


@pytest.mark.parametrize("healthy", ["etcd"], indirect=True)
def test_rows_out_of_order(data: Path) -> None:
    path = database_of(data)
    row = row_key(revision_of(57))
    assert row in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(row, row_key(revision_of(5))))
    found = of_directories(data)
    assert found.keys() == usual(data) | {"database-corrupt"}
    assert "not in order" in found["database-corrupt"][0]["evidence"]["problem"]


def test_a_database_ahead_of_its_log(data: Path) -> None:
    def advance(content: Content) -> None:
        meta = dict(content[META])
        content[META] = sorted({**meta, CONSISTENT_INDEX: (10**6).to_bytes(8, "big")}.items())

    rewrite_database(data, advance)
    found = of_directories(data)
    assert found.keys() == usual(data) | {"database-ahead-of-log"}
    evidence = found["database-ahead-of-log"][0]["evidence"]
    assert evidence["applied_index"] == 10**6 > evidence["log_end"]


def test_a_database_behind_its_log(data: Path) -> None:
    def go_back(content: Content) -> None:
        meta = dict(content[META])
        content[META] = sorted({**meta, CONSISTENT_INDEX: (1).to_bytes(8, "big")}.items())

    rewrite_database(data, go_back)
    assert of_directories(data).keys() == usual(data) | {"database-behind-log"}


def test_an_alarm_that_is_stored(data: Path) -> None:
    def alarm(content: Content) -> None:
        raised = AlarmMember(memberID=0xABC, alarm=AlarmType.NOSPACE)
        content[ALARM] = [(raised.SerializeToString(), b"")]

    rewrite_database(data, alarm)
    found = of_directories(data)
    assert found.keys() == usual(data) | {"alarm-stored"}
    assert found["alarm-stored"][0]["evidence"] == {"alarms": "NOSPACE of abc"}


@pytest.mark.parametrize("healthy", ["kvorum"], indirect=True)
def test_a_format_of_the_future(data: Path) -> None:
    current = data / "member" / "backend" / "CURRENT"
    current.write_text(current.read_text().replace("format 1", "format 7"))
    found = of_directories(data)
    assert found.keys() == {"format-too-new"}
    assert found["format-too-new"][0]["evidence"]["format"] == 7


@pytest.mark.parametrize("healthy", ["kvorum"], indirect=True)
def test_databases_of_both_kinds(data: Path) -> None:
    (data / "member" / "snap" / "db").write_bytes(b"")
    assert of_directories(data).keys() == {"directories-of-two-kinds"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_whose_member_runs(tmp_path: Path, kind: str) -> None:
    running = running_kvorum if kind == "kvorum" else running_etcd
    with running(tmp_path / "data"):
        assert of_directories(tmp_path / "data").keys() == {"directory-in-use"}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert of_directories(tmp_path / "none").keys() == {"directory-unreadable"}
    (tmp_path / "none").mkdir()
    assert of_directories(tmp_path / "none").keys() == {"directory-unreadable"}


def test_permissions_and_owners(data: Path) -> None:
    data.chmod(0o755)
    found = of_directories(data)
    assert found.keys() == usual(data) | {"directory-open-to-others"}
    assert found["directory-open-to-others"][0]["run"] == [f"chmod 700 {data}"]
    data.chmod(0o700)
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(last_segment(data), 12345, 12345)
    found = of_directories(data)
    assert found.keys() == usual(data) | {"owners-differ"}
    assert found["owners-differ"][0]["evidence"]["file_user"] == 12345


@pytest.mark.parametrize(
    ("room", "name"),
    [(SEGMENT_BYTES - (1 << 20), "disk-full"), (SEGMENT_BYTES + (1 << 20), "disk-nearly-full")],
)
def test_a_disk_without_room(data: Path, tmp_path: Path, room: int, name: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(path.stat().st_size for path in data.rglob("*")) + room + (1 << 20)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        subprocess.run(["cp", "-a", data, disk / "data"], check=True)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        with (disk / "filler").open("wb") as filler:
            filler.write(bytes(max(0, free - room)))
        assert of_directories(disk / "data").keys() == usual(data) | {name}
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_leftovers_of_what_was_interrupted(data: Path) -> None:
    for path in (
        data.with_name("data.unfinished"),
        data / "member" / "snap" / "tmp.1.snap.db",
        data / "member" / "wal" / "1.wal.broken",
    ):
        path.write_bytes(b"x")
    found = of_directories(data)
    assert found.keys() == usual(data) | {"leftovers"}
    assert found["leftovers"][0]["evidence"]["files"] == 3
