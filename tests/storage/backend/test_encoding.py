"""Keys and values as they are written into files."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.storage.backend.encoding import (
    KEY_BYTES_MAX,
    is_whole,
    open_rows,
    parse_row_key,
    parse_stored,
    revision_of,
    row_key,
    seal_value,
    sealed_rows,
    stored_name,
    stored_value,
)

REVISIONS = st.builds(
    revision_of, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), tombstone=st.booleans()
)
FIRST_REVISIONS = st.integers(0, 2**63 - 1).map(revision_of)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.booleans())
def test_a_row_key_is_etcds(main: int, sub: int, tombstone: bool) -> None:
    expected = struct.pack(">Q", main) + b"_" + struct.pack(">Q", sub) + b"t" * tombstone
    revision = revision_of(main, sub, tombstone=tombstone)
    assert row_key(revision) == expected
    assert parse_row_key(expected) == revision


@given(REVISIONS, REVISIONS)
def test_row_keys_sort_as_revisions_do(one: int, other: int) -> None:
    assert (one < other) == (row_key(one) < row_key(other))


@given(st.binary(max_size=20))
def test_what_is_no_row_key_is_refused(key: bytes) -> None:
    try:
        revision = parse_row_key(key)
    except ValueError:
        return
    assert row_key(revision) == key


@given(st.dictionaries(REVISIONS | FIRST_REVISIONS, st.binary(max_size=50)))
def test_rows_come_back(rows: dict[int, bytes]) -> None:
    sealed = sealed_rows(rows.items())
    assert sealed == [
        (row_key(revision), seal_value(row_key(revision), value))
        for revision, value in rows.items()
    ]
    assert open_rows(sealed) == list(rows.items())


@given(st.binary(min_size=1, max_size=20), st.binary(max_size=40), st.data())
def test_no_flipped_bit_in_key_or_value_goes_unnoticed(
    key: bytes, value: bytes, data: st.DataObject
) -> None:
    sealed = seal_value(key, value)
    assert is_whole(key, sealed)
    bit = data.draw(st.integers(0, 8 * len(key + sealed) - 1))
    flipped = bytearray(key + sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    assert not is_whole(bytes(flipped[: len(key)]), bytes(flipped[len(key) :]))


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_less_than_a_checksum_is_damage(length: int) -> None:
    assert not is_whole(b"key", bytes(length))


@given(st.binary(min_size=1, max_size=20), st.integers(1, 600), st.binary(max_size=20))
def test_names_of_any_length_come_back(stem: bytes, length: int, value: bytes) -> None:
    name = (stem * length)[:length]
    key = stored_name(name)
    assert len(key) <= KEY_BYTES_MAX
    assert parse_stored(key, stored_value(name, value)) == (name, value)


@pytest.mark.parametrize("length", [KEY_BYTES_MAX - 1, KEY_BYTES_MAX, KEY_BYTES_MAX + 1])
def test_names_around_the_limit_do_not_meet(length: int) -> None:
    name = b"n" * length
    assert (stored_name(name) == name) == (length < KEY_BYTES_MAX)
    assert stored_name(stored_name(name)) != stored_name(name) or length < KEY_BYTES_MAX
