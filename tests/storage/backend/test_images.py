"""Databases as etcd's files and back: nothing lost on the way, whatever fails, in little memory."""

import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.member.images import BuildImage, InstallImage
from kvorum.storage.backend import dump, install, open_backend, open_view
from kvorum.storage.backend.bbolt import ImageError, open_image
from kvorum.storage.backend.buckets import AUTH_USERS, BUCKETS, KEY, META
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.files import Files, Opening
from kvorum.storage.snap import RemoveLeftovers
from tests.storage.backend.disks import Crash, Disk, LmdbDisk, MemoryDisk

Content = dict[bytes, dict[bytes, bytes]]

# Names of more than 511 bytes are stored in a form of their own.
NAMES = st.binary(min_size=1, max_size=20) | st.builds(
    lambda byte, length: bytes([byte]) * length, st.integers(0, 255), st.integers(505, 600)
)
ENTRIES = st.dictionaries(NAMES, st.binary(max_size=50), max_size=5)
VALUES = st.binary(max_size=50) | st.builds(bytes, st.integers(0, 20_000))


def row(main: int, value: bytes, *, tombstone: bool = False) -> tuple[bytes, bytes]:
    kv = KeyValue(key=b"key") if tombstone else KeyValue(key=b"k", mod_revision=main, value=value)
    return row_key(revision_of(main, tombstone=tombstone)), kv.SerializeToString()


ROWS = st.dictionaries(st.integers(2, 1 << 40), st.tuples(VALUES, st.booleans()), max_size=20).map(
    lambda rows: dict(
        row(main, value, tombstone=tombstone) for main, (value, tombstone) in rows.items()
    )
)


def contents() -> st.SearchStrategy[Content]:
    others = {bucket: ENTRIES for bucket in BUCKETS if bucket != KEY}
    return st.fixed_dictionaries(others | {KEY: ROWS})


def filled(disk: Disk, content: Content) -> None:
    ordered = [(bucket, sorted(content[bucket].items())) for bucket in sorted(content)]
    install(disk.files, disk.environments, disk.directory, ordered)


def found(disk: Disk) -> Content:
    with open_view(disk.files, disk.environments, disk.directory) as view:
        return {bucket: dict(entries) for bucket, entries in dump(view)}


def image_of(files: Files, path: str) -> Content:
    image = open_image(files, path)
    try:
        return {bucket: dict(image.items(bucket)) for bucket in image.buckets()}
    finally:
        image.close()


@given(contents())
def test_a_database_is_the_same_on_the_other_side(content: Content) -> None:
    disk, other = MemoryDisk.new(), MemoryDisk.new()
    filled(disk, content)
    facts = BuildImage.of(disk.directory, "image", PRODUCTION).run(disk.files, disk.environments)
    assert image_of(disk.files, "image") == content
    index = int.from_bytes(content[META].get(b"consistent_index", b""), "big")
    assert facts.index == index
    # The file travels by itself.
    other.files = disk.files
    other.environments = disk.environments
    other.directory = "other"
    other.files.make_directory("other")
    InstallImage("image", other.directory, 0, PRODUCTION.image_commit_entries).run(
        other.files, other.environments
    )
    assert found(other) == content


@given(st.integers(0, 2**32))
def test_a_crash_while_an_image_is_built_or_installed(seed: int) -> None:
    chance = random.Random(seed)
    old: Content = {bucket: {} for bucket in BUCKETS}
    old[AUTH_USERS] = {b"user" * 200: b"password"}
    old[KEY] = dict(row(main, b"o" * 300) for main in range(2, 40))
    new = old | {KEY: dict(row(main, b"n" * 400) for main in range(2, 60))}
    disk = MemoryDisk.new()
    disk.files.make_directory("snap")
    disk.files.sync_directory("")
    filled(disk, new)
    BuildImage.of(disk.directory, "snap/whole", PRODUCTION).run(disk.files, disk.environments)
    descriptor = disk.files.open("snap/whole", Opening.WRITE)
    disk.files.fdatasync(descriptor)
    disk.files.close(descriptor)
    disk.files.sync_directory("snap")
    filled(disk, old)
    disk.crash_after(chance.randrange(12))
    is_build = chance.random() < 0.5
    try:
        if is_build:
            BuildImage.of(disk.directory, "snap/tmp.image.1", PRODUCTION).run(
                disk.files, disk.environments
            )
        else:
            InstallImage("snap/whole", disk.directory, 0, PRODUCTION.image_commit_entries).run(
                disk.files, disk.environments
            )
    except Crash:
        pass
    disk = disk.crash(lambda: chance.random() < 0.5)
    # What the next start does.
    RemoveLeftovers("snap").run(disk.files)
    open_backend(disk.files, disk.environments, disk.directory).close()
    assert [name for name in disk.files.list("snap") if name.startswith("tmp")] == []
    content = found(disk)
    assert content == old if is_build else content in (old, new)
    BuildImage.of(disk.directory, "snap/tmp.image.1", PRODUCTION).run(disk.files, disk.environments)
    assert image_of(disk.files, "snap/tmp.image.1") == content
    InstallImage("snap/whole", disk.directory, 0, PRODUCTION.image_commit_entries).run(
        disk.files, disk.environments
    )
    assert found(disk) == new


def test_a_damaged_image_leaves_the_database_that_is_there(tmp_path: Path) -> None:
    content: Content = {bucket: {} for bucket in BUCKETS}
    content[KEY] = dict(row(main, b"value" * 50) for main in range(2, 300))
    disk = LmdbDisk(tmp_path)
    filled(disk, content)
    path = str(tmp_path / "image")
    BuildImage.of(disk.directory, path, PRODUCTION).run(disk.files, disk.environments)
    damaged = bytearray(Path(path).read_bytes())
    # Halfway through the rows: the first of them were taken in already.
    place = damaged.index(row_key(revision_of(150)), 3 * 4096)
    damaged[place + 7] ^= 0xFF
    Path(path).write_bytes(damaged)
    with pytest.raises(ImageError):
        InstallImage(path, disk.directory, 0, PRODUCTION.image_commit_entries).run(
            disk.files, disk.environments
        )
    open_backend(disk.files, disk.environments, disk.directory).close()
    assert found(disk) == content
    assert len(list(tmp_path.glob("backend.[0-9]"))) == 1


def test_large_values_pass_one_by_one(tmp_path: Path) -> None:
    count, size = 100, 1_000_000
    disk = LmdbDisk(tmp_path)
    value = bytes(size)
    install(
        disk.files,
        disk.environments,
        disk.directory,
        [(KEY, (row(main, value) for main in range(2, count + 2)))],
    )
    path = str(tmp_path / "image")
    build = BuildImage.of(disk.directory, path, PRODUCTION)
    load = InstallImage(path, disk.directory, 0, PRODUCTION.image_commit_entries)
    tracemalloc.start()
    try:
        build.run(disk.files, disk.environments)
        assert tracemalloc.get_traced_memory()[1] < 16 * size
        tracemalloc.reset_peak()
        load.run(disk.files, disk.environments)
        # A transaction's worth, and its copy with checksums.
        assert tracemalloc.get_traced_memory()[1] < 80 * size
    finally:
        tracemalloc.stop()
    assert len(found(disk)[KEY]) == count
