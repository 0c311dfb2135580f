"""Copies of databases: what is checked before one counts, in Python and compiled alike."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.member.images import InstallImage
from kvorum.network.edge import native_rows
from kvorum.storage.backend import Environments, install, open_backend, open_view
from kvorum.storage.backend.buckets import KEY, LEASE, META
from kvorum.storage.backend.copies import CopyError, Copying, check_copy, is_copy
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.backend.transfer import adopt, dump
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.real import RealFiles

NATIVE = native_rows()
CHECKS: list[NativeRows | None] = [None] if NATIVE is None else [None, NATIVE]

# Values that fit into a leaf, that just do not, and that take several pages.
SIZES = st.sampled_from([0, 1, 300, 1900, 2050, 4070, 4100, 9000])


def content(sizes: list[int], leases: int) -> list[tuple[bytes, list[tuple[bytes, bytes]]]]:
    rows = [(row_key(revision_of(2 + at)), b"v" * size) for at, size in enumerate(sizes)]
    names = [(b"l%04d" % at + b"n" * (at % 5 * 200), b"x" * at) for at in range(leases)]
    return [(KEY, rows), (LEASE, names), (META, [(b"consistent_index", (9).to_bytes(8, "big"))])]


def copied(directory: str, sizes: list[int], leases: int) -> bytes:
    """Return a copy of a database that has free pages, too."""
    files, environments = RealFiles(), LmdbEnvironments()
    install(files, environments, directory, content(sizes, leases))
    copying = Copying(files, environments, directory, PRODUCTION.view_scan_entries)
    copying.write(files, f"{directory}/copy")
    copying.end()
    return read_file(files, f"{directory}/copy")


def verdicts(directory: str, data: bytes) -> list[str]:
    """Return what each check says of a file; nothing of a whole one."""
    path = f"{directory}/checked"
    Path(path).write_bytes(data)
    files, found = RealFiles(), []
    descriptor = files.open(path, Opening.READ)
    for native in CHECKS:
        try:
            check_copy(files, descriptor, native)
            found.append("")
        except CopyError as error:
            found.append(str(error))
    files.close(descriptor)
    return found


def everything(files: Files, environments: Environments, directory: str) -> list[object]:
    with open_view(files, environments, directory) as view:
        return [(bucket, list(entries)) for bucket, entries in dump(view)]


@settings(max_examples=25, deadline=None)
@given(st.lists(SIZES, max_size=60), st.integers(0, 40))
def test_a_copy_is_whole_and_replaces_a_database(sizes: list[int], leases: int) -> None:
    with TemporaryDirectory() as source, TemporaryDirectory() as target:
        data = copied(source, sizes, leases)
        assert verdicts(source, data) == [""] * len(CHECKS)
        files, environments = RealFiles(), LmdbEnvironments()
        assert is_copy(files, f"{source}/copy")
        install(files, environments, target, [(LEASE, [(b"old", b"old")])])
        adopt(files, environments, target, f"{source}/copy")
        assert everything(files, environments, target) == everything(files, environments, source)
        backend = open_backend(files, environments, target)
        backend.close()
        assert read_file(files, f"{source}/copy") == data


DAMAGED = [300] * 700 + [9000, 5, 4100] + [20] * 300


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return copied(str(tmp_path_factory.mktemp("sound")), DAMAGED, 300)


# The heads of pages and nodes are few of their bytes, and decide about everything else.
PLACES = st.integers(0, 4095) | st.integers(0, 63) | st.integers(4000, 4095)
FLIPS = st.tuples(st.integers(0, 1 << 20), PLACES, st.integers(1, 255))


@given(flips=st.lists(FLIPS, min_size=1, max_size=2))
def test_what_is_damaged_is_refused_or_makes_no_difference(
    sound: bytes, flips: list[tuple[int, int, int]]
) -> None:
    """Both checks say the same, and what they let pass holds what it held before."""
    damaged = bytearray(sound)
    for page, place, bits in flips:
        damaged[page % (len(sound) // 4096) * 4096 + place] ^= bits
    with TemporaryDirectory() as directory:
        python, *native = verdicts(directory, bytes(damaged))
        assert native in ([], [python])
        if not python:
            files, environments = RealFiles(), LmdbEnvironments()
            found = []
            for each, file in ((b"sound", sound), (b"damaged", bytes(damaged))):
                backend = Path(directory, each.decode())
                backend.mkdir()
                received = backend / "received"
                received.write_bytes(file)
                adopt(files, environments, str(backend), str(received))
                found.append(everything(files, environments, str(backend)))
            assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 1 << 30))
def test_what_is_cut_off_or_too_long_is_refused(sound: bytes, length: int) -> None:
    length %= len(sound)
    with TemporaryDirectory() as directory:
        for each in (
            sound[:length],
            sound[: length - length % 4096],
            sound + sound[:length] + b"x",
        ):
            found = verdicts(directory, each)
            assert all(found) and len(set(found)) == 1, found


def test_buckets_are_those_of_a_member(tmp_path: Path) -> None:
    data = copied(str(tmp_path), [1], 1)
    renamed = data.replace(b"authRoles", b"authRolfs")
    found = verdicts(str(tmp_path), renamed)
    assert all("buckets are not those" in each for each in found), found


class Killed(BaseException):
    """The end of the process."""


class EndingFiles(RealFiles):
    """Files of a process that ends at a call which changes something, after so many others."""

    __slots__ = ("_left", "has_links")

    def __init__(self, left: int, *, has_links: bool = True) -> None:
        super().__init__()
        self._left = left
        self.has_links = has_links

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def open(self, path: str, opening: Opening) -> int:
        if opening is Opening.CREATE:
            self._count()
        return super().open(path, opening)

    def pwrite(self, descriptor: int, offset: int, data: bytes) -> None:
        self._count()
        super().pwrite(descriptor, offset, data)

    def fdatasync(self, descriptor: int) -> None:
        self._count()
        super().fdatasync(descriptor)

    def link(self, old: str, new: str) -> None:
        self._count()
        if not self.has_links:
            raise OSError(95, "Operation not supported", new)
        super().link(old, new)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_process_that_ends_anywhere_leaves_the_old_database_or_the_new(
    tmp_path: Path, *, has_links: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = copied(str(source), [300] * 50 + [9000], 5)
    old: list[tuple[bytes, list[tuple[bytes, bytes]]]] = [(LEASE, [(b"old", b"old")])]
    for calls in range(100):
        target = tmp_path / f"{calls}"
        target.mkdir()
        received = target / "received"
        received.write_bytes(data)
        install(RealFiles(), LmdbEnvironments(), str(target), old)
        before = everything(RealFiles(), LmdbEnvironments(), str(target))
        work = InstallImage(str(received), str(target), 0, PRODUCTION.image_commit_entries)
        ending = EndingFiles(calls, has_links=has_links)
        try:
            work.run(ending, LmdbEnvironments())
            is_done = True
        except Killed:
            is_done = False
        for descriptor in list(ending._paths):
            ending.close(descriptor)
        files, environments = RealFiles(), LmdbEnvironments()
        # What the next start does.
        open_backend(files, environments, str(target)).close()
        after = everything(files, environments, str(source))
        assert everything(files, environments, str(target)) in (
            [after] if is_done else [before, after]
        )
        assert received.read_bytes() == data
        work.run(files, environments)
        assert everything(files, environments, str(target)) == after
        if is_done:
            assert calls > 5
            return
    raise AssertionError("it never ends")


def test_a_damaged_copy_is_not_installed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    data = bytearray(copied(str(source), [300] * 50, 5))
    data[data.index(b"v" * 300) + 7] ^= 1
    received = target / "received"
    received.write_bytes(data)
    files, environments = RealFiles(), LmdbEnvironments()
    install(files, environments, str(target), [(LEASE, [(b"old", b"old")])])
    before = everything(files, environments, str(target))
    with pytest.raises(CopyError, match="checksum"):
        InstallImage(str(received), str(target), 0, PRODUCTION.image_commit_entries).run(
            files, environments
        )
    assert everything(files, environments, str(target)) == before
