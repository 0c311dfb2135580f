"""Databases walked from their end: the same entries, the other way round, in both formats."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.storage.backend import View
from kvorum.storage.backend.bbolt import ImageError, open_image, write_image
from kvorum.storage.backend.buckets import AUTH_USERS, BUCKETS, KEY
from kvorum.storage.backend.encoding import (
    row_key,
    seal_value,
    sealed_rows,
    stored_name,
    stored_value,
)
from kvorum.storage.backend.environment import Environments, writing
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Opening
from kvorum.storage.files.memory import MemoryFiles

PATH = "/image"
ENTRIES = st.dictionaries(
    st.binary(min_size=1, max_size=40), st.sampled_from([b"", b"v" * 30, b"w" * 900, b"x" * 9000])
)
# Long names are stored by their beginning and a digest, out of order.
NAMES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.builds(
        lambda length, end: b"n" * length + end,
        st.sampled_from([470, 479, 505, 511, 600]),
        st.binary(max_size=40),
    ),
)


def image_of(entries: dict[bytes, bytes]) -> MemoryFiles:
    files = MemoryFiles()
    descriptor = files.open(PATH, Opening.CREATE)
    write_image(
        files,
        descriptor,
        ((name, sorted(entries.items()) if name == KEY else []) for name in BUCKETS),
    )
    files.close(descriptor)
    return files


@given(ENTRIES, st.integers(1, 40))
def test_an_image_backwards(entries: dict[bytes, bytes], copies: int) -> None:
    # Enough of them for branches above branches.
    many = {
        b"%03d" % number + key: value for number in range(copies) for key, value in entries.items()
    }
    files = image_of(many)
    image = open_image(files, PATH)
    assert list(image.items_back(KEY)) == sorted(many.items(), reverse=True)
    assert list(image.items_back(b"none")) == list(image.items_back(AUTH_USERS)) == []
    image.close()


@settings(max_examples=60)
@given(st.integers(2, 60), st.integers(0, 4095), st.integers(0, 255))
def test_a_damaged_image_backwards(page: int, offset: int, value: int) -> None:
    entries = {b"%05d" % number: b"v" * 200 for number in range(900)}
    files = image_of(entries)
    descriptor = files.open(PATH, Opening.WRITE)
    files.pwrite(descriptor, page * 4096 + offset, bytes([value]))
    files.close(descriptor)
    keys = []
    try:
        image = open_image(files, PATH)
        keys = [key for key, _ in image.items_back(KEY)]
    except ImageError:
        pass
    # Whatever was found is in order: there is no loop and nothing twice.
    assert keys == sorted(set(keys), reverse=True)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@settings(max_examples=30)
@given(names=st.sets(NAMES, max_size=60), rows=st.sets(st.integers(1, 1 << 60), max_size=60))
def test_a_view_backwards(
    tmp_path_factory: pytest.TempPathFactory, kind: str, names: set[bytes], rows: set[int]
) -> None:
    environments: Environments = MemoryEnvironments(MemoryFiles())
    path = "/database"
    if kind == "lmdb":
        environments, place = LmdbEnvironments(), tmp_path_factory.getbasetemp() / "backwards"
        for left in (place, Path(f"{place}-lock")):
            left.unlink(missing_ok=True)
        path = str(place)
    environment = environments.open(path, 1 << 30, is_synced=False)
    try:
        with writing(environment) as transaction:
            stored = [(stored_name(name), stored_value(name, name[:9])) for name in names]
            sealed = [(key, seal_value(key, value)) for key, value in stored]
            transaction.put(AUTH_USERS, sealed)
            transaction.append(KEY, sealed_rows((each, b"row") for each in sorted(rows)))
        view = View(environment, PRODUCTION.view_scan_entries)
        assert list(view.entries_back(AUTH_USERS)) == sorted(
            ((name, name[:9]) for name in names), reverse=True
        )
        assert list(view.entries_back(KEY)) == [
            (row_key(each), b"row") for each in sorted(rows, reverse=True)
        ]
        view.end()
    finally:
        environment.close()
