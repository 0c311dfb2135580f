"""Databases of a simulated machine: what a crash leaves of names and commits."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from kvorum.sim.environments import DamagedEntry, SimulatedEnvironments
from kvorum.storage.backend.buckets import META
from kvorum.storage.backend.environment import DatabaseWrite
from kvorum.storage.backend.errors import BackendError, CorruptionError
from kvorum.storage.files.interface import Opening
from kvorum.storage.files.memory import DiskCall, MemoryFiles

DIRECTORY = "/db"
PATH = f"{DIRECTORY}/backend.1"


class Cut(BaseException):
    pass


class Disk:
    """A machine's files and databases, over its crashes."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.numbers: Iterator[int] = count(1)
        self.survives = False
        self.use(MemoryFiles())
        self.files.make_directory(DIRECTORY)
        self.files.sync_directory("/")

    def use(self, files: MemoryFiles) -> None:
        self.files = files
        self.environments = SimulatedEnvironments(
            files, self.directory, lambda: next(self.numbers), lambda: self.survives
        )

    def crash(self, *, power_cut: bool, survives: bool) -> None:
        self.survives = survives
        self.environments.crash()
        self.files.before = None
        if power_cut:
            self.use(self.files.after_power_cut(lambda: survives))
        else:
            self.files.kill()
            self.use(self.files)

    def read(self) -> bytes | None:
        environment = self.environments.open(PATH, 0)
        view = environment.begin()
        try:
            return view.get(META, b"name")
        finally:
            view.end()
            environment.close()

    def begin(self, value: bytes) -> DatabaseWrite:
        environment = self.environments.open(PATH, 0)
        transaction = environment.begin_write()
        transaction.put(META, [(b"name", value)])
        return transaction


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(tmp_path)
    disk.environments.open(PATH, 0).close()
    disk.files.sync_directory(DIRECTORY)
    return disk


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_finished_commit_stays(disk: Disk, power_cut: bool) -> None:
    disk.begin(b"done").commit()
    disk.crash(power_cut=power_cut, survives=False)
    assert disk.read() == b"done"


@pytest.mark.parametrize("power_cut", [False, True])
def test_what_was_only_staged_is_gone(disk: Disk, power_cut: bool) -> None:
    disk.begin(b"staged")
    disk.crash(power_cut=power_cut, survives=True)
    assert disk.read() is None


@pytest.mark.parametrize("survives", [False, True])
def test_a_commit_on_its_way_happens_or_not(disk: Disk, survives: bool) -> None:
    transaction = disk.begin(b"perhaps")

    def before(call: DiskCall) -> None:
        assert call.name == "commit"
        raise Cut

    disk.files.before = before
    disk.survives = survives
    with pytest.raises(Cut):
        transaction.commit()
    disk.crash(power_cut=True, survives=survives)
    assert disk.read() == (b"perhaps" if survives else None)


def test_a_name_that_was_not_synced_may_be_lost(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.begin(b"done").commit()
    disk.crash(power_cut=True, survives=False)
    assert not disk.files.exists(PATH)
    with pytest.raises(BackendError):
        disk.environments.open_reader(PATH)


def test_a_copy_is_durable_when_its_file_was_synced(disk: Disk) -> None:
    disk.begin(b"copied").commit()
    source = disk.environments.open_reader(PATH)
    for name, is_synced in (("/synced", True), ("/unsynced", False)):
        descriptor = disk.files.open(name, Opening.CREATE)
        disk.environments.copy(source, name, descriptor)
        if is_synced:
            disk.files.fdatasync(descriptor)
        disk.files.close(descriptor)
    disk.files.sync_directory("/")
    disk.crash(power_cut=True, survives=False)
    copied = disk.environments.open_reader("/synced")
    view = copied.begin()
    assert view.get(META, b"name") == b"copied"
    view.end()
    copied.close()
    with pytest.raises(CorruptionError):
        disk.environments.open_reader("/unsynced")


def strayed(disk: Disk) -> DamagedEntry:
    """Let a bit of the key of the only entry flip."""
    for seed in count():
        damage = disk.environments.flip(DIRECTORY, Random(seed))
        if damage is not None and damage.key != damage.now_key:
            return damage
        if damage is not None:
            disk.environments.restore(DIRECTORY, damage)
    raise AssertionError


def test_an_entry_that_strayed_is_put_back(disk: Disk) -> None:
    disk.begin(b"once").commit()
    disk.crash(power_cut=False, survives=True)
    damage = strayed(disk)
    assert disk.read() is None
    disk.environments.restore(DIRECTORY, damage)
    assert disk.read() == b"once"


@pytest.mark.parametrize(("commits", "value"), [(False, b"once"), (True, b"since")])
def test_what_was_written_since_stays(disk: Disk, commits: bool, value: bytes) -> None:
    disk.begin(b"once").commit()
    disk.crash(power_cut=False, survives=True)
    damage = strayed(disk)
    since = disk.begin(b"since")
    if commits:
        since.commit()
    disk.crash(power_cut=False, survives=False)
    disk.environments.restore(DIRECTORY, damage)
    assert disk.read() == value


def test_what_was_deleted_since_does_not_come_back(disk: Disk) -> None:
    disk.begin(b"once").commit()
    disk.crash(power_cut=False, survives=True)
    damage = strayed(disk)
    transaction = disk.environments.open(PATH, 0).begin_write()
    transaction.delete(META, [b"name"])
    transaction.commit()
    disk.crash(power_cut=False, survives=True)
    disk.environments.restore(DIRECTORY, damage)
    assert disk.read() is None


def test_an_entry_that_strayed_is_not_written_over(disk: Disk) -> None:
    disk.begin(b"once").commit()
    disk.crash(power_cut=False, survives=True)
    damage = strayed(disk)
    transaction = disk.environments.open(PATH, 0).begin_write()
    transaction.put(META, [(damage.now_key, b"another")])
    transaction.commit()
    disk.crash(power_cut=False, survives=True)
    disk.environments.restore(DIRECTORY, damage)
    assert disk.read() == b"once"
