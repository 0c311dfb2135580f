"""`dump db`: the same lines as etcd-dump-db, of both servers' databases, whole and damaged."""

import json
import random
import shutil
import tracemalloc
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.api.pb.authpb import User
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.bbolt import write_image
from kvorum.storage.backend.buckets import AUTH_USERS, BUCKETS, KEY, LEASE
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles
from kvorum.tools.utl.dumps.sources import DatabaseLocation
from tests.etcd import is_target, running_etcd
from tests.tools.utl.dumps.conftest import Stopped
from tests.tools.utl.dumps.runs import Words, dump, dumped, objects, tool

PAGE_BYTES = 4096
NAMES = [bucket.decode() for bucket in BUCKETS]


def copied(member: Stopped, place: Path) -> Path:
    """Return a copy that may be changed: etcd's tools write to what they read."""
    shutil.copytree(member.directory, place)
    return place


def own_file(directory: Path) -> Path:
    (found,) = (directory / "member" / "backend").glob("backend.[0-9]")
    return found


def made(path: Path, rows: dict[int, bytes], users: dict[bytes, bytes] | None = None) -> Path:
    """Make a database of etcd's."""
    path.unlink(missing_ok=True)
    content: dict[bytes, dict[bytes, bytes]] = {bucket: {} for bucket in BUCKETS}
    content[KEY] = {row_key(revision): value for revision, value in rows.items()}
    content[AUTH_USERS] = users or {}
    files = RealFiles()
    descriptor = files.open(str(path), Opening.CREATE)
    write_image(files, descriptor, ((name, sorted(content[name].items())) for name in BUCKETS))
    files.close(descriptor)
    return path


def row(revision: int, key: bytes, value: bytes) -> bytes:
    if revision & 1:
        return KeyValue(key=key).SerializeToString()
    main = revision >> 32
    kv = KeyValue(key=key, value=value, create_revision=main, mod_revision=main, version=1)
    return kv.SerializeToString()


def test_lines_are_those_of_etcd_dump_db(etcd: Stopped, tmp_path: Path) -> None:
    place = copied(etcd, tmp_path / "etcd")
    dumps: list[Words] = [["list-bucket", place], ["hash", place]]
    dumps += [["iterate-bucket", place, name, "--decode"] for name in NAMES]
    dumps += [["iterate-bucket", place, name] for name in NAMES if name != "authUsers"]
    dumps += [
        ["iterate-bucket", place, "key", "--limit", "7"],
        ["list-bucket", place / "member" / "snap" / "db"],
    ]
    for words in dumps:
        assert dumped("db", *words) == tool("etcd-dump-db", *words).output, words


def test_refusals_are_those_of_etcd_dump_db(etcd: Stopped, tmp_path: Path) -> None:
    place = copied(etcd, tmp_path / "etcd")
    for words in (
        ["list-bucket"],
        ["list-bucket", tmp_path / "nowhere"],
        ["list-bucket", tmp_path / "nodb"],
        ["iterate-bucket", place],
        ["iterate-bucket", place, "nothing"],
        ["scan-keys", place, "first"],
        ["hash"],
    ):
        theirs, ours = tool("etcd-dump-db", *words), dump("db", *words)
        # Their log has the date and the time in front.
        assert ours.code == theirs.code == 1
        assert ours.errors.removeprefix("Error: ") == theirs.errors.split(" ", 2)[2], words


@pytest.mark.long
def test_both_servers_show_the_same(etcd: Stopped, kvorum: Stopped) -> None:
    for name in ("key", "lease", "auth", "authRoles", "alarm", "members_removed", "cluster"):
        if name == "cluster" and not is_target():
            continue  # versions differ
        words = ("db", "iterate-bucket", "--decode")
        ours = dumped(*words, kvorum.directory, name)
        assert ours == dumped(*words, etcd.directory, name)
        assert ours or name in ("alarm", "members_removed")


def test_the_hash_is_what_the_member_answered(member: Stopped) -> None:
    (found,) = objects("db", "hash", member.directory)
    assert found["hash"] == member.hash
    assert dumped("db", "hash", member.directory).endswith(f"\nHash: {member.hash}\n")


def test_a_limit_shows_the_first_of_all(member: Stopped) -> None:
    words = ("db", "iterate-bucket", member.directory, "key", "--decode")
    lines = dumped(*words).splitlines()
    revisions = [(each["main"], each["sub"]) for each in objects(*words)]
    assert revisions == sorted(revisions, reverse=True) and len(lines) > 100
    for limit in (1, 17, len(lines), len(lines) + 1):
        assert dumped(*words, f"--limit={limit}").splitlines() == lines[:limit]


REVISIONS = st.builds(
    revision_of, st.integers(1, 1 << 40), st.integers(0, 99), tombstone=st.booleans()
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(REVISIONS, st.tuples(st.binary(min_size=1), st.binary()), max_size=90))
def test_what_was_written_is_shown(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[int, tuple[bytes, bytes]]
) -> None:
    stored = {revision: row(revision, *each) for revision, each in rows.items()}
    path = made(tmp_path_factory.getbasetemp() / "written.db", stored)
    shown = objects("db", "iterate-bucket", path, "key", "--decode")
    expected = [
        (revision >> 32, bool(revision & 1), key, b"" if revision & 1 else value)
        for revision, (key, value) in sorted(rows.items(), reverse=True)
    ]
    assert expected == [
        (each["main"], each["tombstone"], b64decode(each["key"]), b64decode(each["value"]))
        for each in shown
    ]
    scanned = objects("db", "scan-keys", path, "0")
    # Nothing was ever deleted from this file, so that it has each row once.
    assert sorted((each["main"], each["sub"], each["tombstone"]) for each in scanned) == sorted(
        (each["main"], each["sub"], each["tombstone"]) for each in shown
    )


def test_scanned_rows_are_those_of_etcd_dump_db(etcd: Stopped, tmp_path: Path) -> None:
    place = copied(etcd, tmp_path / "etcd")
    for start in ("0", "100"):
        theirs = tool("etcd-dump-db", "scan-keys", place, start)
        assert theirs.output.count("pageID=") > 50
        lines = dumped("db", "scan-keys", place, start).splitlines()
        # Small buckets within their own entries are passed over by etcd's tool.
        assert [line for line in lines if line in set(theirs.output.splitlines())] == (
            theirs.output.splitlines()
        )


def test_a_scan_finds_every_row(member: Stopped) -> None:
    def revision(each: dict[str, object]) -> tuple[object, ...]:
        return each["main"], each["sub"], each["tombstone"], each["key"], each["value"]

    rows = objects("db", "iterate-bucket", member.directory, "key", "--decode")
    scanned = {revision(each) for each in objects("db", "scan-keys", member.directory, "0")}
    assert {revision(each) for each in rows} <= scanned
    late = objects("db", "scan-keys", member.directory, "200")
    assert {each for each in scanned if int(str(each[0])) >= 200} == set(map(revision, late))


def keys_in(output: str) -> list[str]:
    return [line.partition(", value=")[0] for line in output.splitlines()]


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@example(is_own=False, seed=6337, damage="zeros")
@given(st.booleans(), st.integers(0, 1 << 30), st.sampled_from(["zeros", "noise", "a bit"]))
def test_damage_is_reported_and_a_scan_goes_on(
    etcd: Stopped,
    kvorum: Stopped,
    tmp_path_factory: pytest.TempPathFactory,
    is_own: bool,
    seed: int,
    damage: str,
) -> None:
    member = kvorum if is_own else etcd
    place = tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    copied(member, place)
    path = own_file(place) if is_own else place / "member" / "snap" / "db"
    content = bytearray(path.read_bytes())
    chance = random.Random(seed)
    page = chance.randrange(2, len(content) // PAGE_BYTES)
    start, end = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
    if damage == "a bit":
        content[chance.randrange(start, end)] ^= 1 << chance.randrange(8)
    else:
        content[start:end] = (
            chance.randbytes(PAGE_BYTES) if damage == "noise" else bytes(PAGE_BYTES)
        )
    path.write_bytes(content)
    if not is_own:
        # Ours is left out: LMDB believes its pages, and may end the process where they are damaged.
        whole = keys_in(dumped("db", "iterate-bucket", member.directory, "key"))
        found = dump("db", "iterate-bucket", place, "key")
        keys = keys_in(found.output)
        assert found.code == 0 or (found.code == 1 and found.errors.startswith("Error: "))
        # There are no checksums to tell that a bit changed, or a page of a long value.
        assert damage == "a bit" or keys == (whole[: len(keys)] if found.code else whole)
    scanned = dump("db", "scan-keys", place, "0", "-w", "json")
    assert scanned.code == 0
    before = set(dumped("db", "scan-keys", member.directory, "0", "-w", "json").splitlines())
    lost = before.difference(scanned.output.splitlines())
    # A page, and values that reach into it or lie on it. A bit may make a page look longer.
    assert damage == "a bit" or len({json.loads(line)["page"] for line in lost}) <= 2


def test_a_large_database_takes_little_memory(tmp_path: Path) -> None:
    value = bytes(100_000)
    rows = {revision_of(main): row(revision_of(main), b"k", value) for main in range(2, 302)}
    path = made(tmp_path / "large.db", rows)
    del rows
    assert path.stat().st_size > 30_000_000
    dumped("db", "hash", path)
    tracemalloc.start()
    try:
        with DatabaseLocation(RealFiles(), str(path)).opened(1) as database:
            assert sum(1 for _ in database.entries_back(KEY)) == 300
        with DatabaseLocation(RealFiles(), str(path)).opened(1) as database:
            database.hash()
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_running_etcd_is_waited_for_and_reported(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd"):
        for words in (["list-bucket"], ["scan-keys", "0"]):
            command, *rest = words
            found = dump("db", command, tmp_path / "etcd", *rest, "--timeout=50ms")
            assert found.code == 1
            assert found.errors.endswith("Error: failed to open bolt DB timeout\n")
            assert "stop the member that uses it" in found.errors


def test_formats_that_dumps_do_not_have(etcd: Stopped) -> None:
    for word, text in (("table", "table not supported as output format"), ("x", "unsupported")):
        found = dump("db", "list-bucket", etcd.directory, "-w", word)
        assert found.code == 4 and text in found.errors


def test_a_stored_user_has_no_password(tmp_path: Path) -> None:
    user = User(name=b"u", password=b"$2a$10$hash", roles=["r"])
    path = made(tmp_path / "users.db", {}, {b"u": user.SerializeToString(), b"v": b"\xff"})
    for words in ([], ["--decode"], ["-w=json"], ["--decode", "-w=json"]):
        assert "hash" not in dumped("db", "iterate-bucket", path, "authUsers", *words)
    shown = objects("db", "iterate-bucket", path, "authUsers")
    # What is no user is shown as it is.
    assert shown[0] == {"key": "dg==", "value": "/w=="}
    assert User.FromString(b64decode(shown[1]["value"])).password == b"<value removed>"
    assert LEASE.decode() in dumped("db", "list-bucket", path)
