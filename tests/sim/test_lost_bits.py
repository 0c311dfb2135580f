"""A lost sector that held one bit looks like a flipped one: it explains a refusal, and is set."""

from pathlib import Path

import pytest

from kvorum.sim.disk import Disk
from kvorum.sim.world import World
from kvorum.storage.files import Opening
from kvorum.storage.files.interface import read_file
from kvorum.storage.wal.errors import CorruptLogError

PATH = "/data/0.wal"
OFFSET, BIT = 700, 8 * 700 + 3


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(World(1).stream("disk"), str(tmp_path), "/data/member", lambda *_: None)
    descriptor = disk.files.open(PATH, Opening.CREATE)
    disk.files.pwrite(descriptor, 0, b"x" * 512 + bytes(512))
    disk.files.close(descriptor)
    return disk


def refusal() -> CorruptLogError:
    return CorruptLogError(PATH, 300, 7, f"checksum; with bit {BIT} flipped back it is whole")


def test_a_sector_without_anything_explains_it_and_the_bit_is_set(disk: Disk) -> None:
    assert disk.explains(refusal())
    disk.restore()
    content = read_file(disk.files, PATH)
    assert content == b"x" * 512 + bytes(OFFSET - 512) + b"\x08" + bytes(1023 - OFFSET)


def test_a_sector_with_anything_in_it_was_not_lost(disk: Disk) -> None:
    disk.files.flip(PATH, 1000, 1)
    assert not disk.explains(refusal())


def test_another_refusal_is_not_explained(disk: Disk) -> None:
    assert not disk.explains(CorruptLogError(PATH, 300, 7, "checksum"))
