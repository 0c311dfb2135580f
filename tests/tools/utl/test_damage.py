"""Snapshots that are damaged: a clear error, and nothing is left where the member should be."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend import open_view
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.utl.main import run
from tests.tools.utl.images import ROWS, Buckets, damage, snapshot, usual

# Every example cleans up behind itself; what the disk takes is not this test's business.
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def rows_of(data: Path) -> dict[bytes, bytes]:
    directory = str(data / "member" / "backend")
    with open_view(RealFiles(), LmdbEnvironments(), directory) as view:
        return dict(view.keyed_rows(view.scan_sealed_rows(b"", ROWS * 2)))


def restore(path: Path, data: Path, *flags: str) -> int:
    return run(["snapshot", "restore", str(path), "--data-dir", str(data), *flags])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return snapshot(tmp_path_factory.mktemp("whole") / "snapshot", usual())


@EXAMPLES
@given(st.integers(0, 2**32))
def test_a_damaged_snapshot_is_refused_and_leaves_nothing(
    tmp_path: Path, whole: bytes, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    path, data = tmp_path / "snapshot", tmp_path / "data"
    damaged = damage(whole, random.Random(seed))
    if damaged == whole:
        return
    path.write_bytes(damaged)
    assert restore(path, data) == 1
    error = capsys.readouterr().err
    assert "sha256" in error or "missing hash" in error or "is not a whole database" in error
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]


@EXAMPLES
@given(st.integers(0, 2**32))
def test_without_the_checksum_what_is_restored_is_still_checked(
    tmp_path: Path, whole: bytes, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    path, data = tmp_path / "snapshot", tmp_path / "data"
    path.write_bytes(damage(whole, random.Random(seed)))
    code = restore(path, data, "--skip-hash-check")
    assert code in (0, 1)
    if code:
        assert "is not a whole database" in capsys.readouterr().err
        assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]
    else:
        # A flip within a value cannot be seen, nor one that makes it empty, as the mark of a
        # raised revision is; but rows are those of their revisions.
        rows = rows_of(data)
        shutil.rmtree(data)
        for key, value in rows.items():
            if value:
                assert KeyValue.FromString(value).mod_revision == int.from_bytes(key[:8], "big")


def misplaced(buckets: Buckets) -> None:
    rows = buckets[KEY]
    rows[row_key(revision_of(7))], rows[row_key(revision_of(8))] = (
        rows[row_key(revision_of(8))],
        rows[row_key(revision_of(7))],
    )


def unreadable(buckets: Buckets) -> None:
    buckets[KEY][row_key(revision_of(9))] = b"\xff\xff"


def not_a_row(buckets: Buckets) -> None:
    buckets[KEY][b"zzz"] = b""


def unknown_bucket(buckets: Buckets) -> None:
    buckets[b"zoo"] = {b"a": b"b"}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (misplaced, "row of revision 7, sub 0 holds no key and value of it"),
        (unreadable, "row of revision 9, sub 0 holds no key and value of it"),
        (not_a_row, "is no row key"),
        (unknown_bucket, "bucket b'zoo'"),
    ],
)
def test_a_sound_file_with_what_no_etcd_writes_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Buckets], None],
    words: str,
) -> None:
    buckets = usual()
    spoil(buckets)
    path = tmp_path / "snapshot"
    snapshot(path, buckets)
    (tmp_path / "data").mkdir()
    assert restore(path, tmp_path / "data") == 1
    assert words in capsys.readouterr().err
    # A directory that was there, perhaps a mount point, is there as it was.
    assert list((tmp_path / "data").iterdir()) == []
    # etcd's tool tells the status of such a file if the values can be decoded; ours warns.
    is_decodable = run(["snapshot", "status", str(path)]) == 0
    assert is_decodable == (spoil in (misplaced, unknown_bucket))
    assert words in capsys.readouterr().err or not is_decodable


def test_what_is_there_is_not_touched(
    tmp_path: Path, whole: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "snapshot", tmp_path / "data"
    path.write_bytes(whole)
    data.mkdir()
    (data / "precious").write_text("mine")
    assert restore(path, data) == 1
    assert "not empty" in capsys.readouterr().err
    assert (data / "precious").read_text() == "mine" and len(list(data.iterdir())) == 1
    assert restore(path, tmp_path / "other", "--wal-dir", str(data)) == 1
    assert f'wal-dir "{data}" exists' in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "snapshot"]


def test_a_killed_attempt_does_not_hinder_the_next(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(whole)
    left = tmp_path / "deep" / "data.unfinished" / "member"
    left.mkdir(parents=True)
    (left / "half").write_text("written")
    assert restore(path, tmp_path / "deep" / "data") == 0
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["data"]
    assert rows_of(tmp_path / "deep" / "data") == usual()[KEY]
