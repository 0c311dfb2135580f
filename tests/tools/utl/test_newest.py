"""Keys counted and hashed in little memory: the same as with a table of all keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.network.edge import native_rows
from kvorum.state.mvcc.hashes import hash_rows
from kvorum.storage.backend import CorruptionError, install
from kvorum.storage.backend.buckets import BUCKETS, KEY
from kvorum.storage.backend.encoding import parse_row_key, revision_of, row_key, seal_value
from kvorum.storage.backend.environment import writing
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.offline.hashing import Hashing
from kvorum.tools.offline.newest import Newest
from kvorum.tools.offline.snapshots import status_of
from kvorum.tools.utl.hashing import hash_kv
from tests.tools.utl.images import snapshot

Rows = list[tuple[bytes, bytes]]

FOUND = native_rows()
KINDS = [None] if FOUND is None else [None, FOUND]


@st.composite
def histories(draw: st.DrawFn) -> Rows:
    """Rows in the order of revisions: a few keys, put and deleted, also within one revision."""
    rows: Rows = []
    main = sub = 0
    for is_next, key, is_tombstone, step in draw(
        st.lists(
            st.tuples(
                st.booleans(), st.integers(0, 3), st.booleans(), st.sampled_from([1, 1, 300])
            ),
            max_size=40,
        )
    ):
        main, sub = (main + step, 0) if is_next or not main else (main, sub + 1)
        name = b"k%d" % key * (1 + key * 30)
        kv = KeyValue(key=name)
        if not is_tombstone:
            kv.create_revision = kv.mod_revision = main
            kv.version, kv.value = 1, bytes(key)
        rows.append(
            (row_key(revision_of(main, sub, tombstone=is_tombstone)), kv.SerializeToString())
        )
    if draw(st.booleans()):
        rows.append((row_key(revision_of(main + 1000)), b""))
    return rows


def live_keys(rows: Rows) -> int:
    live: dict[bytes, bool] = {}
    for key, value in rows:
        live[KeyValue.FromString(value).key] = len(key) == 17
    return sum(live.values())


def pieces(rows: Rows, length: int) -> Iterator[Rows]:
    sealed = [(key, seal_value(key, value)) for key, value in rows]
    return (sealed[start : start + length] for start in range(0, len(sealed), length))


@given(histories(), st.integers(1, 7), st.sampled_from([1, 3, 1000]))
def test_live_keys_are_those_of_a_table(rows: Rows, length: int, keys_max: int) -> None:
    for native in KINDS:
        newest = Newest(native, keys_max=keys_max)
        for piece in pieces(rows, length):
            assert newest.note(piece)
        assert newest.finish() == live_keys(rows)


@given(histories(), st.integers(1, 7), st.sampled_from([1, 3, 1000]), st.data())
def test_hashes_are_those_of_a_member(
    rows: Rows, length: int, keys_max: int, data: st.DataObject
) -> None:
    mains = sorted({1, *(parse_row_key(key) >> 32 for key, _ in rows)})
    revision = data.draw(st.sampled_from(mains))
    compacted = data.draw(st.one_of(st.just(revision), st.integers(-1, revision)))
    parsed = [(parse_row_key(key), value) for key, value in rows]
    expected = hash_rows(
        lambda main: iter([row for row in parsed if row[0] >> 32 <= main]),
        revision,
        compacted,
        is_compaction=False,
    )

    @contextmanager
    def walk() -> Iterator[Iterator[Rows]]:
        yield pieces(rows, length)

    for native in KINDS:
        hashing = Hashing(walk=walk, blame=list, native=native, keys_max=keys_max)
        assert hashing.run(revision, compacted) == expected


@pytest.mark.parametrize("native", KINDS)
def test_a_row_that_marks_a_raised_revision_counts_as_a_key(
    tmp_path: Path, native: NativeRows | None
) -> None:
    kv = KeyValue(key=b"k", create_revision=2, mod_revision=2, version=1)
    buckets: dict[bytes, dict[bytes, bytes]] = {bucket: {} for bucket in BUCKETS}
    buckets[KEY] = {
        row_key(revision_of(2)): kv.SerializeToString(),
        row_key(revision_of(9)): b"",
    }
    snapshot(tmp_path / "snapshot", buckets)
    found = status_of(RealFiles(), str(tmp_path / "snapshot"), native)
    assert (found.revision, found.total_key) == (9, 2)


@pytest.mark.parametrize("native", KINDS)
def test_a_damaged_row_of_a_directory_is_named(tmp_path: Path, native: NativeRows | None) -> None:
    files, environments = RealFiles(), LmdbEnvironments(native)
    backend = tmp_path / "member" / "backend"
    backend.mkdir(parents=True)
    kv = KeyValue(key=b"k", create_revision=2, mod_revision=2, version=1)
    rows = [(row_key(revision_of(2)), kv.SerializeToString())]
    install(files, environments, str(backend), [(KEY, rows)])
    environment = environments.open(str(backend / "backend.1"), 1 << 30)
    with writing(environment) as transaction:
        transaction.append(KEY, [(row_key(revision_of(3)), b"not sealed")])
    environment.close()
    with pytest.raises(CorruptionError, match="row of revision 3, sub 0"):
        hash_kv(files, environments, str(tmp_path), 0)
