"""The compiled functions over rows do what Python does: the same pages, histories and verdicts."""

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.member.images import BuildImage, InstallImage, note_image
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.history import Entry
from kvorum.state.mvcc.restore import restore_slices, restore_store
from kvorum.state.mvcc.slices import run_to_end
from kvorum.storage.backend import CorruptionError, dump, install, open_backend, open_view
from kvorum.storage.backend.bbolt import ImageError
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.encoding import revision_of, row_key, seal_value
from kvorum.storage.backend.environment import writing
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Opening
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.files.real import RealFiles
from tests.state.mvcc.machine import Recorder
from tests.storage.backend.histories import FOUND, history, native

Rows = list[tuple[bytes, bytes]]

pytestmark = pytest.mark.skipif(FOUND is None, reason="the native edge is not built")


class Machine:
    """A machine's memory with a database, with the compiled functions or without."""

    def __init__(self, rows: NativeRows | None) -> None:
        self.files = MemoryFiles()
        self.files.make_directory("backend")
        self.environments = MemoryEnvironments(self.files, rows)

    def fill(self, rows: Rows) -> None:
        install(self.files, self.environments, "backend", [(KEY, rows)])

    def image(self) -> bytes:
        facts = BuildImage.of("backend", "image", PRODUCTION).run(self.files, self.environments)
        return self.read("image", facts.length)

    def read(self, path: str, length: int) -> bytes:
        descriptor = self.files.open(path, Opening.READ)
        try:
            return self.files.pread(descriptor, 0, length)
        finally:
            self.files.close(descriptor)

    def outcome(self, image: bytes) -> object:
        """Install an image; return what is there afterwards, or the error."""
        if self.files.exists("image"):
            self.files.unlink("image")
        descriptor = self.files.open("image", Opening.CREATE)
        self.files.pwrite(descriptor, 0, image)
        self.files.close(descriptor)
        try:
            InstallImage("image", "backend", 0, PRODUCTION.image_commit_entries).run(
                self.files, self.environments
            )
        except ImageError as error:
            return str(error)
        with open_view(self.files, self.environments, "backend") as view:
            return {bucket: list(entries) for bucket, entries in dump(view)}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 400), st.booleans())
def test_images_are_the_same(seed: int, count: int, large: bool) -> None:
    rows = list(history(seed, count, large=large))
    machines = [Machine(None), Machine(native())]
    for machine in machines:
        machine.fill(rows)
    ours, theirs = (machine.image() for machine in machines)
    assert ours == theirs
    contents = [machine.outcome(ours) for machine in machines]
    assert contents[0] == contents[1]
    assert isinstance(contents[0], dict) and contents[0][KEY] == rows


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_damage_of_an_image_gets_the_same_verdict(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine(None)
    machine.fill(list(history(seed, 300)))
    image = bytearray(machine.image())
    for _ in range(chance.choice((1, 1, 4))):
        # Heads of pages and elements are where a flipped bit means most.
        page = chance.randrange(2, len(image) // 4096) * 4096
        place = page + chance.choice(
            (chance.randrange(16), chance.randrange(300), chance.randrange(4096))
        )
        image[place] ^= 1 << chance.randrange(8)
    outcomes = []
    for each in (machine, Machine(native())):
        outcomes.append(each.outcome(bytes(image)))
        noted = run_to_end(note_image(each.files, each.environments, "image", PRODUCTION))
        # What the rows themselves have is all that is looked at here.
        assert noted is not None or isinstance(outcomes[-1], str)
        assert each.files.open_descriptors() == 0
    assert outcomes[0] == outcomes[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 600), st.booleans(), st.booleans())
def test_what_is_noted_of_an_image_is_what_a_start_reads(
    seed: int, count: int, large: bool, is_native: bool
) -> None:
    rows = list(history(seed, count, large=large))
    functions = native() if is_native else None
    machine = Machine(functions)
    machine.fill(rows)
    machine.image()
    noted = run_to_end(note_image(machine.files, machine.environments, "image", PRODUCTION))
    assert noted is not None
    assert machine.files.open_descriptors() == 0
    backend = open_backend(machine.files, machine.environments, "backend")
    lessor = Lessor(backend, PRODUCTION)
    for lease in (7, -5):
        lessor.grant(lease, 60, 0.0)
    store = run_to_end(restore_slices(backend, lessor, Recorder(), PRODUCTION, noted))
    leases = {lease: sorted(lessor.keys_of(lease)) for lease in (7, -5)}
    backend.close()
    expected = state_of(rows, functions)
    assert (store._index.entries, leases, store.revision) == expected
    assert list(map(type, store._index.entries.values())) == list(map(type, expected[0].values()))


def state_of(rows: Rows, functions: NativeRows | None) -> tuple[dict[bytes, Entry], object, int]:
    machine = Machine(functions)
    machine.fill(rows)
    backend = open_backend(machine.files, machine.environments, "backend")
    lessor = Lessor(backend, PRODUCTION)
    for lease in (7, -5):
        lessor.grant(lease, 60, 0.0)
    store = restore_store(backend, lessor, Recorder(), PRODUCTION)
    leases = {lease: sorted(lessor.keys_of(lease)) for lease in (7, -5)}
    backend.close()
    return store._index.entries, leases, store.revision


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 600))
def test_histories_are_the_same(seed: int, count: int) -> None:
    rows = list(history(seed, count))
    ours, theirs = state_of(rows, None), state_of(rows, native())
    assert ours == theirs
    assert list(ours[0]) == list(theirs[0])
    assert list(map(type, ours[0].values())) == list(map(type, theirs[0].values()))


def test_a_damaged_row_is_named_and_nothing_of_its_piece_is_noted(tmp_path: Path) -> None:
    rows = [(key, seal_value(key, value)) for key, value in history(1, 200)]
    key, sealed = rows[150]
    rows[150] = key, sealed[:-5] + bytes([sealed[-5] ^ 1]) + sealed[-4:]
    entries: dict[bytes, Entry] = {}
    leases: dict[bytes, int] = {}
    assert not native().note_rows(entries, leases, rows)
    assert not entries and not leases
    files, environments = RealFiles(), LmdbEnvironments(native())
    backend = open_backend(files, environments, str(tmp_path))
    backend.close()
    environment = environments.open(str(tmp_path / "backend.1"), 1 << 30)
    with writing(environment) as transaction:
        transaction.append(KEY, rows)
    environment.close()
    with pytest.raises(CorruptionError, match="checksum does not fit") as building:
        BuildImage.of(str(tmp_path), str(tmp_path / "image"), PRODUCTION).run(files, environments)
    backend = open_backend(files, environments, str(tmp_path))
    with pytest.raises(CorruptionError) as restoring:
        restore_store(backend, Lessor(backend, PRODUCTION), Recorder(), PRODUCTION)
    backend.close()
    assert str(building.value) == str(restoring.value)


def test_a_large_database_passes_in_pieces(tmp_path: Path) -> None:
    files, environments = RealFiles(), LmdbEnvironments(native())
    count, value = 4_000, bytes(20_000)
    source, target, path = tmp_path / "source", tmp_path / "target", str(tmp_path / "image")
    for directory in (source, target):
        directory.mkdir()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for main in range(2, count + 2):
            kv = KeyValue(key=b"k", create_revision=2, mod_revision=main, version=main, value=value)
            yield row_key(revision_of(main)), kv.SerializeToString()

    install(files, environments, str(source), [(KEY, rows())])
    tracemalloc.start()
    try:
        BuildImage.of(str(source), path, PRODUCTION).run(files, environments)
        InstallImage(path, str(target), 0, PRODUCTION.image_commit_entries).run(files, environments)
        assert tracemalloc.get_traced_memory()[1] < count * len(value) / 5
    finally:
        tracemalloc.stop()
    with open_view(files, environments, str(target)) as view:
        assert view.count(KEY) == count
