"""Rows of any shape, as another member may have written them, and what a start makes of them."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.index import Index
from kvorum.state.mvcc.ranges import RangeOptions
from kvorum.state.mvcc.restore import restore_slices, restore_store
from kvorum.state.mvcc.slices import run_to_end
from tests.database import Database
from tests.state.mvcc.machine import Recorder

NUMBERS = st.one_of(*(st.integers(1 << bits, (2 << bits) - 1) for bits in (1, 6, 13, 20, 40)))
ROWS = st.lists(
    st.tuples(
        st.one_of(st.binary(min_size=1, max_size=3), st.binary(min_size=120, max_size=140)),
        NUMBERS,  # how far the revision is from the one before
        NUMBERS,  # how long ago the key was created
        st.one_of(st.just(1), NUMBERS),
        st.one_of(st.integers(0, 3), st.integers(120, 132), st.integers(16380, 16390)),
        st.sampled_from([0, 0, 0, 7, 1 << 40]),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[0],
)


@given(rows=ROWS)
@example([(b"k", 100, 1, 1, 0, 7)])
@example([(b"k", 300, 200, 1, 5, 0), (b"\x18", 1, 1, 0x18, 1, 0)])
def test_every_row_is_understood(rows: list[tuple[bytes, int, int, int, int, int]]) -> None:
    database = Database()
    lessor = Lessor(database.backend, PRODUCTION)
    for lease in (7, 1 << 40):
        lessor.grant(lease, 60, 0.0)
    main = 1
    expected = []
    for key, distance, age, version, length, lease in rows:
        main += distance
        kv = KeyValue(key=key, mod_revision=main, version=version, lease=lease)
        # Version 1 and the create revision being the row's own are the same thing.
        kv.create_revision = main if version == 1 else max(1, main - age)
        kv.value = b"\x2a" * length
        database.backend.put_row(main << 32, kv.SerializeToString())
        expected.append(kv)
    counts: list[int] = []
    store = restore_store(database.backend, lessor, Recorder(), PRODUCTION, counts.append)
    assert counts == [len(rows)]
    assert store.revision == main
    expected.sort(key=lambda kv: kv.key)
    everything = RangeOptions(b"\0", b"\0")
    keys_only = everything._replace(keys_only=True)

    assert store.range(everything).kvs == [kv.SerializeToString() for kv in expected]
    in_slices = run_to_end(restore_slices(database.backend, lessor, Recorder(), PRODUCTION))
    assert in_slices.revision == store.revision
    assert in_slices.range(everything) == store.range(everything)
    for kv in expected:
        assert lessor.lease_of(kv.key) == kv.lease
        kv.value, kv.lease = b"", 0
    assert store.range(keys_only).kvs == [kv.SerializeToString() for kv in expected]
    database.close()


def test_a_mark_that_raises_the_revision_is_no_key() -> None:
    database = Database()
    database.backend.put_row(1000 << 32, b"")
    store = restore_store(
        database.backend, Lessor(database.backend, PRODUCTION), Recorder(), PRODUCTION
    )
    assert store.revision == 1000
    assert store.range(RangeOptions(b"\0", b"\0")).count == 0
    assert store.put(b"k", b"", 0) == 1001
    database.close()


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["put", "put", "empty", "leased", "deleted"]), max_size=30),
    st.integers(0, 70),
)
def test_long_histories_are_those_that_were_written(changes: list[str], before: int) -> None:
    """Most rows of a key that is written often take a short way; none is taken for another."""
    database = Database()
    lessor = Lessor(database.backend, PRODUCTION)
    lessor.grant(7, 60, 0.0)
    create, version, lease = 2, 0, 0
    expected = Index(PRODUCTION)
    for main, change in enumerate(["put"] * before + changes, 2):
        create, version = (create, version + 1) if version else (main, 1)
        lease = 7 if change == "leased" else 0
        kv = KeyValue(key=b"k", create_revision=create, mod_revision=main, version=version)
        kv.value, kv.lease = b"" if change == "empty" else b"\x30" * main, lease
        revision = main << 32
        if change == "deleted":
            kv, revision, version = KeyValue(key=b"k"), revision | 1, 0
        database.backend.put_row(revision, kv.SerializeToString())
        expected.restore(b"k", revision, create, version)
    store = restore_store(database.backend, lessor, Recorder(), PRODUCTION)
    assert store._index.entries == expected.entries
    assert lessor.lease_of(b"k") == lease
    database.close()
