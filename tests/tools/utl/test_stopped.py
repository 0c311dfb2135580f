"""Directories of stopped members of both kinds: restored, defragmented, migrated, verified."""

import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.raft.entries import Entry, EntryType
from kvorum.storage.backend import open_view
from kvorum.storage.backend.bbolt import open_image, replace_bucket
from kvorum.storage.backend.buckets import KEY, MEMBERS, MEMBERS_REMOVED, META
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.interface import write_file
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from kvorum.tools.offline.facts import ClusterBuckets
from kvorum.tools.offline.histories import read_history
from kvorum.tools.utl.main import run
from kvorum.tools.utl.v2_store import has_custom_content, has_custom_requests
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.tools.utl.commands import answer
from tests.tools.utl.duel import Duel
from tests.tools.utl.history import Sight, connected, perform, random_calls
from tests.tools.utl.images import snapshot, usual, usual_snapshot
from tests.tools.utl.logs import logged

needs_target = pytest.mark.skipif(
    not is_target(), reason="etcdutl 3.5.1 has other commands; 'make oracle' builds 3.7.3"
)
EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def duel(tmp_path: Path) -> Duel:
    return Duel(tmp_path)


@pytest.fixture(scope="module")
def etcd_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("stopped") / "etcd"
    with running_etcd(data) as etcd, connected(etcd.address) as client:
        perform(client, random_calls(41, 300), compactions=2)
    return data


@pytest.fixture(scope="module")
def kvorum_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("stopped") / "kvorum"
    with running_kvorum(data) as kvorum, connected(kvorum.address) as client:
        perform(client, random_calls(41, 300), compactions=2)
    return data


def database_of(data: Path) -> Path:
    return data / "member" / "snap" / "db"


def etcd_facts(data: Path) -> ClusterBuckets:
    image = open_image(RealFiles(), str(database_of(data)))
    try:
        return ClusterBuckets(image)
    finally:
        image.close()


def kvorum_facts(data: Path) -> ClusterBuckets:
    directory = str(data / "member" / "backend")
    with open_view(RealFiles(), LmdbEnvironments(), directory) as view:
        return ClusterBuckets(view)


def tree_of(data: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file's content and time of change, but for what LMDB has for its readers."""
    return {
        str(path.relative_to(data)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(data.rglob("*"))
        if path.is_file() and not path.name.endswith("-lock")
    }


NAMES = st.sampled_from(["default", "m1", "m2"])
URLS = st.sampled_from(["http://localhost:2380", "http://127.0.0.1:1", "https://127.0.0.1:2"])
CLUSTERS = st.dictionaries(NAMES, st.lists(URLS, min_size=1, max_size=2, unique=True), min_size=1)
SPOILT = st.sampled_from(["", "", "", "name", "url", "no scheme", "nothing"])
BUMPS = st.sampled_from([(), ("--bump-revision=7", "--mark-compacted"), ("--bump-revision=7",)])


@pytest.mark.long
@needs_target
@settings(EXAMPLES, max_examples=12)
@given(CLUSTERS, st.integers(0, 2), SPOILT, st.sampled_from(["etcd-cluster", "other"]), BUMPS)
def test_what_is_restored_is_the_same_member(
    duel: Duel,
    cluster: dict[str, list[str]],
    which: int,
    spoilt: str,
    token: str,
    bump: tuple[str, ...],
) -> None:
    buckets = usual()
    buckets[MEMBERS] = {b"1": b'{"id":1,"isLearner":true,"peerURLs":["http://a:1"]}'}
    buckets[MEMBERS_REMOVED] = {b"2": b"removed"}
    duel.put("snapshot", snapshot(duel.ours / "snapshot", buckets))
    name = sorted(cluster)[which % len(cluster)]
    own = ",".join(cluster[name]) if spoilt != "url" else "http://127.0.0.1:9"
    listed = ",".join(f"{each}={url}" for each, urls in cluster.items() for url in urls)
    listed = {"no scheme": "m1=127.0.0.1:3", "nothing": ""}.get(spoilt, listed)
    words = ["snapshot", "restore", "snapshot", "--data-dir=data", *bump]
    words += [f"--name={'nobody' if spoilt == 'name' else name}"]
    words += [f"--initial-cluster={listed}", f"--initial-advertise-peer-urls={own}"]
    # What is wrong with members is told as the server tells it, in more words.
    outcome = duel.compare(*words, f"--initial-cluster-token={token}", has_same_error=False)
    theirs, ours = duel.theirs / "data", duel.ours / "data"
    try:
        if not outcome.code:
            check_same_member(theirs, ours)
    finally:
        for each in (theirs, ours):
            shutil.rmtree(each, ignore_errors=True)


def check_same_member(theirs: Path, ours: Path) -> None:
    assert logged(ours / "member" / "wal") == logged(theirs / "member" / "wal")
    found = [
        read_history(RealFiles(), each / "member" / "snap", each / "member" / "wal")[0]
        for each in (theirs, ours)
    ]
    assert found[0] is not None
    for each in found:
        assert each is not None
        assert (each.index, each.term, each.conf_state) == (
            found[0].index, found[0].term, found[0].conf_state,
        )  # fmt: skip
    wanted, got = etcd_facts(theirs), kvorum_facts(ours)
    # etcd leaves the members of the old cluster there.
    for facts in (wanted, got):
        facts.buckets[META].pop(b"confState", None)
    assert got.buckets[META] == wanted.buckets[META]
    for bucket in (MEMBERS, MEMBERS_REMOVED):
        assert [(key, decoded(each)) for key, each in got.items(bucket)] == [
            (key, decoded(each)) for key, each in wanted.items(bucket)
        ]
    image = open_image(RealFiles(), str(database_of(theirs)))
    directory = str(ours / "member" / "backend")
    with open_view(RealFiles(), LmdbEnvironments(), directory) as view:
        rows = view.keyed_rows(view.scan_sealed_rows(b"", 1 << 20))
        assert rows == list(image.items(KEY))
    image.close()


def decoded(document: bytes) -> object:
    try:
        return json.loads(document)
    except ValueError:
        return document


@needs_target
@pytest.mark.parametrize("place", ["data", "wal"])
def test_obstacles_are_reported_before_the_snapshot_is_read(duel: Duel, place: str) -> None:
    for each in (duel.theirs, duel.ours):
        (each / place).mkdir()
        (each / place / "precious").touch()
    words = ("snapshot", "restore", "missing", "--data-dir=data", "--wal-dir=wal")
    duel.compare(*words)
    assert [each.name for each in duel.ours.iterdir()] == [place]


def test_what_was_restored_is_verified_if_the_environment_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot(tmp_path / "snapshot", usual())
    monkeypatch.setenv("ETCD_VERIFY", "ALL")
    data = tmp_path / "data"
    words = ["snapshot", "restore", str(tmp_path / "snapshot"), "--data-dir", str(data)]
    assert run([*words, "--wal-dir", str(tmp_path / "wal")]) == 0
    verify = ["verify", "--data-dir", str(data), "--wal-dir", str(tmp_path / "wal"), "-w", "json"]
    assert run([*verify, "--exact-index"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "consistentIndex": 1, "term": 1, "snapshotIndex": 1, "commit": 1, "lastIndex": 1,
        "revision": 201, "rows": 200,
    }  # fmt: skip


@needs_target
def test_an_etcds_database_shrinks_and_keeps_everything(etcd_data: Path, duel: Duel) -> None:
    duel.copy(etcd_data, "data")
    database = database_of(duel.ours / "data")
    database.chmod(0o640)
    before = answer("etcdutl", "snapshot", "status", database)
    duel.compare("defrag", "--data-dir", "data")
    after = answer("etcdutl", "snapshot", "status", database)
    assert after.pop("totalSize") < before.pop("totalSize") and after == before
    assert database.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in database.parent.iterdir()] == ["db"]
    sights = []
    for each in (duel.theirs, duel.ours):
        with running_etcd(each / "data") as etcd, connected(etcd.address) as client:
            sights.append(Sight(client))
    assert sights[0] == sights[1]


TARGETS = ("3.5", "3.6", "3.7", "3.8", "4.0")


@needs_target
def test_storage_versions_change_as_etcdutl_changes_them(etcd_data: Path, duel: Duel) -> None:
    duel.copy(etcd_data, "data")
    chance = random.Random(5)
    for _ in range(16):
        words = ["migrate", "--data-dir=data", f"--target-version={chance.choice(TARGETS)}"]
        words += ["--force"] if chance.random() < 0.3 else []
        duel.compare(*words)
        wanted, got = etcd_facts(duel.theirs / "data"), etcd_facts(duel.ours / "data")
        assert got.buckets == wanted.buckets, words
    # One that etcd 3.7 starts from.
    duel.compare("migrate", "--data-dir=data", "--target-version=3.7", "--force")
    status = answer("etcdutl", "snapshot", "status", database_of(duel.ours / "data"))
    assert status["version"] == "3.7.0"
    with running_etcd(duel.ours / "data") as etcd, connected(etcd.address) as client:
        perform(client, random_calls(6, 20))


@pytest.mark.long
def test_a_directory_of_ours_changes_its_version_in_the_same_way(
    kvorum_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(kvorum_data, data)

    def migrate(target: str, *flags: str) -> tuple[int, bytes | None]:
        code = run(["migrate", "--data-dir", str(data), "--target-version", target, *flags])
        return code, kvorum_facts(data).get(META, b"storageVersion")

    assert kvorum_facts(data).get(META, b"storageVersion") == b"3.7.0"
    assert migrate("3.6") == (0, b"3.6.0")
    assert "updated storage version: 3.6.0" in capsys.readouterr().err
    assert migrate("3.8") == (1, b"3.6.0")
    assert 'version "3.8.0" is not supported' in capsys.readouterr().err
    assert migrate("3.8", "--force") == (0, b"3.8.0")
    assert migrate("3.5", "--force") == (0, None)
    assert migrate("3.7") == (0, b"3.7.0")
    with running_kvorum(data) as kvorum, connected(kvorum.address) as client:
        perform(client, random_calls(7, 20))


@needs_target
@pytest.mark.parametrize(
    "words",
    [
        ("defrag", "--data-dir=data"),
        ("migrate", "--data-dir=data", "--target-version=3.6"),
        ("snapshot", "status", "data/member/snap/db"),
        ("hashkv", "data/member/snap/db"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("damage", ["head", "page", "log"])
def test_a_damaged_directory_is_refused_and_left_as_it_is(
    etcd_data: Path, duel: Duel, words: tuple[str, ...], damage: str
) -> None:
    duel.copy(etcd_data, "data")
    for each in (duel.theirs, duel.ours):
        database = database_of(each / "data")
        content = bytearray(database.read_bytes())
        if damage == "head":
            content[:8192] = bytes(8192)
        elif damage == "page":
            content[8192:] = bytes(len(content) - 8192)
        else:
            shutil.rmtree(each / "data" / "member" / "wal")
        database.write_bytes(content)
    before = tree_of(duel.ours)
    outcome = duel.compare(*words, has_same_error=False)
    if outcome.code:
        assert tree_of(duel.ours) == before


def test_a_running_member_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "data"):
        for words in (
            ("defrag", "--data-dir", "data"),
            ("migrate", "--data-dir", "data", "--target-version=3.6"),
            ("hashkv", "data/member/snap/db"),
            ("snapshot", "status", "data/member/snap/db"),
            ("verify", "--data-dir", "data"),
        ):
            placed = [word.replace("data/", f"{tmp_path}/data/") for word in words]
            placed = [f"{tmp_path}/data" if word == "data" else word for word in placed]
            assert run(["--timeout=1ms", *placed]) == 2, words


@pytest.mark.parametrize("kind", ["etcd", "kvorum"])
def test_what_is_only_read_stays_as_it_is(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(request.getfixturevalue(f"{kind}_data"), data)
    before = tree_of(data)
    assert run(["verify", "--data-dir", str(data)]) == 0
    assert run(["check", "v2store", "--data-dir", str(data)]) == 0
    assert run(["hashkv", str(data)]) == 0
    if kind == "etcd":
        assert run(["hashkv", str(database_of(data))]) == 0
        assert run(["snapshot", "hashkv", str(database_of(data))]) == 0
        assert run(["snapshot", "status", str(database_of(data))]) == 0
        words = ["snapshot", "restore", str(database_of(data)), "--skip-hash-check"]
        assert run([*words, "--data-dir", str(tmp_path / "restored")]) == 0
    assert tree_of(data) == before


def test_a_database_that_does_not_fit_its_log_is_found(
    etcd_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(etcd_data, data)
    path = database_of(data)
    facts = etcd_facts(data)
    for name, value, words in (
        (b"consistent_index", 1 << 40, "backend.ConsistentIndex (1099511627776) must be <="),
        (b"term", 1 << 40, "backend.Term (1099511627776) must be <= WAL.HardState.term"),
    ):
        entries = {**facts.buckets[META], name: value.to_bytes(8, "big")}
        replace_bucket(RealFiles(), str(path), META, sorted(entries.items()))
        assert run(["verify", "--data-dir", str(data)]) == 1
        assert words in capsys.readouterr().err
    replace_bucket(RealFiles(), str(path), META, facts.items(META))
    assert run(["verify", "--data-dir", str(data)]) == 0
    content = path.read_bytes()
    path.write_bytes(content[:8192] + bytes(len(content) - 8192))
    assert run(["verify", "--data-dir", str(data)]) == 1
    assert "is not a whole database file" in capsys.readouterr().err


@EXAMPLES
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0, 40, 3000, 9000]))
def test_a_power_cut_leaves_the_bucket_as_it_was_or_as_it_should_be(
    seed: int, is_new: bool, length: int
) -> None:
    chance = random.Random(seed)
    disk = MemoryFiles()
    path = "/db"
    write_file(disk, path, usual_snapshot()[:-32])
    entries = [(b"name", b"v" * length), (b"other", b"")]
    bucket = b"zoo" if is_new else META
    images: list[MemoryFiles] = []
    disk.before = lambda _: images.append(disk.after_power_cut(lambda: chance.random() < 0.5))
    before = _content(disk, path)
    replace_bucket(disk, path, bucket, entries)
    after = _content(disk, path)
    assert after == {**before, bucket: entries}
    assert images
    for image in (*images, disk.after_power_cut(lambda: False)):
        assert _content(image, path) in (before, after)
    assert _content(disk.after_power_cut(lambda: False), path) == after


def _content(files: MemoryFiles, path: str) -> dict[bytes, list[tuple[bytes, bytes]]]:
    image = open_image(files, path)
    try:
        return {bucket: list(image.items(bucket)) for bucket in image.buckets()}
    finally:
        image.close()


def test_content_of_version_2_is_found() -> None:
    def document(children: dict[str, object]) -> bytes:
        nodes = {name: {"Path": f"/{name}", "Children": each} for name, each in children.items()}
        return json.dumps({"Root": {"Path": "/", "Children": nodes}}).encode()

    assert not has_custom_content(document({"0": {"members": {}}, "1": None}))
    assert not has_custom_content(b"")
    assert has_custom_content(document({"0": {}, "1": {"foo": {"Value": "bar"}}}))

    def put(path: bytes) -> Entry:
        data = b"\x08\x05\x12\x03PUT\x1a" + bytes([len(path)]) + path + b"\x22\x02{}"
        return Entry(EntryType.NORMAL, 1, 1, data)

    assert not has_custom_requests([Entry(EntryType.NORMAL, 1, 1, b"")])
    assert not has_custom_requests([put(b"/0/members/8e9e05c52164694d/attributes")])
    assert has_custom_requests([put(b"/1/foo")])
