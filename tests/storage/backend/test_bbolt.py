"""Files of etcd's database format: written here and read by etcd's tools, and the other way."""

import json
import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.storage.backend.bbolt import ImageError, open_image, write_image
from kvorum.storage.files import Opening
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from tests.etcd import binary, running_etcd

Buckets = dict[bytes, dict[bytes, bytes]]

KEYS = st.binary(min_size=1, max_size=40) | st.builds(
    lambda first, length: bytes([first]) * length, st.integers(0, 255), st.integers(1, 9000)
)
VALUES = st.binary(max_size=80) | st.builds(bytes, st.integers(0, 20_000))
BUCKETS = st.dictionaries(
    st.binary(min_size=1, max_size=12), st.dictionaries(KEYS, VALUES, max_size=60), max_size=6
)


def write(buckets: Buckets) -> MemoryFiles:
    files = MemoryFiles()
    descriptor = files.open("image", Opening.CREATE)
    ordered = ((name, sorted(buckets[name].items())) for name in sorted(buckets))
    length = write_image(files, descriptor, ordered)
    assert files.size(descriptor) == length
    files.close(descriptor)
    return files


def read(files: MemoryFiles | RealFiles, path: str = "image") -> Buckets:
    image = open_image(files, path)
    try:
        return {name: dict(image.items(name)) for name in image.buckets()}
    finally:
        image.close()


@given(BUCKETS)
def test_what_is_written_is_read(buckets: Buckets) -> None:
    assert read(write(buckets)) == buckets


def test_many_entries_make_several_levels_of_branches() -> None:
    entries = {b"%08d" % number: b"v" * (number % 300) for number in range(60_000)}
    buckets: Buckets = {b"key": entries, b"meta": {}}
    files = write(buckets)
    image = open_image(files, "image")
    assert list(image.items(b"key")) == sorted(entries.items())


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_damaged_file_is_refused_or_says_nothing_else(seed: int, flips: int) -> None:
    chance = random.Random(seed)
    entries = {b"%04d" % number: bytes([number % 251]) * (number % 90) for number in range(400)}
    buckets: Buckets = {b"alarm": {}, b"key": entries, b"meta": {b"a": b"b", b"long": bytes(9000)}}
    files = write(buckets)
    descriptor = files.open("image", Opening.WRITE)
    size = files.size(descriptor)
    if chance.random() < 0.2:
        files.truncate(descriptor, chance.randrange(size))
    else:
        for _ in range(flips):
            place = chance.randrange(size)
            (byte,) = files.pread(descriptor, place, 1)
            files.pwrite(descriptor, place, bytes([byte ^ 1 << chance.randrange(8)]))
    # What a flip makes of a key, a value or a count cannot be seen here: pages have no checksum.
    # That is what the one behind a snapshot is for. But nothing is ever made up.
    with suppress(ImageError):
        found = read(files)
        assert sum(map(len, found.values())) <= sum(map(len, buckets.values()))


def test_the_older_transaction_serves_if_the_newest_meta_page_is_torn() -> None:
    buckets: Buckets = {b"key": {b"a": b"1"}}
    for page in (0, 1):
        files = write(buckets)
        descriptor = files.open("image", Opening.WRITE)
        files.pwrite(descriptor, page * 4096 + 40, b"torn")
        assert read(files) == buckets


def test_a_real_etcds_database_is_read(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "data") as etcd:
        for number in range(300):
            etcd.put(b"k%03d" % number, b"x" * number)
        saved = tmp_path / "saved"
        save = [f"--endpoints={etcd.address}", "snapshot", "save", str(saved)]
        subprocess.run([str(binary("etcdctl")), *save], check=True, capture_output=True)
    found = read(RealFiles(), str(saved))
    assert len(found[b"key"]) == 300
    assert {b"alarm", b"auth", b"cluster", b"key", b"lease", b"members", b"meta"} <= found.keys()
    live = read(RealFiles(), str(tmp_path / "data" / "member" / "snap" / "db"))
    assert live[b"key"] == found[b"key"]


def test_etcds_tools_read_what_is_written(tmp_path: Path) -> None:
    entries = {
        number.to_bytes(8, "big") + b"_" + bytes(8): b"\x0a\x06%06d\x18\x01" % number
        for number in range(2, 20_002)
    }
    names = b"alarm auth authRoles authUsers cluster key lease members members_removed meta"
    buckets: Buckets = {name: {} for name in names.split()}
    buckets[b"key"] = entries
    files = RealFiles()
    path = tmp_path / "db"
    descriptor = files.open(str(path), Opening.CREATE)
    write_image(files, descriptor, ((name, sorted(buckets[name].items())) for name in buckets))
    files.close(descriptor)
    done = subprocess.run(
        [binary("etcdutl"), "snapshot", "status", path, "--write-out=json"],
        check=True,
        capture_output=True,
        text=True,
    )
    status = json.loads(done.stdout)
    assert (status["revision"], status["totalKey"]) == (20_001, 20_000)


def test_entries_out_of_order_are_a_mistake_of_the_caller() -> None:
    files = MemoryFiles()
    descriptor = files.open("image", Opening.CREATE)
    with pytest.raises(AssertionError, match="does not come after"):
        write_image(files, descriptor, [(b"key", [(b"b", b""), (b"a", b"")])])
