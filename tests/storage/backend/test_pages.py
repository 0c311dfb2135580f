"""The check of a database's pages: sound files pass, and what passes can be trusted."""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.network.edge import native_rows
from kvorum.storage.backend import BackendError, CorruptionError, open_backend, open_view
from kvorum.storage.backend.buckets import BUCKETS, KEY, LEASE
from kvorum.storage.backend.encoding import revision_of, row_key, seal_value
from kvorum.storage.backend.environment import writing
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.backend.pages import PageError, check_pages, read_commits
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.backend.transfer import dump
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles
from tests.storage.backend.mutations import PAGE_BYTES, mutated

NATIVE = native_rows()
CHECKS: list[NativeRows | None] = [None] if NATIVE is None else [None, NATIVE]
MAP_BYTES = 1 << 30
MUTATIONS = 200


def verdicts(path: Path) -> list[str]:
    """Return what each check says of a file; nothing of a whole one."""
    files, found = RealFiles(), []
    descriptor = files.open(str(path), Opening.READ)
    for native in CHECKS:
        try:
            check_pages(files, descriptor, read_commits(files, descriptor)[-1], native)
            found.append("")
        except PageError as error:
            found.append(str(error))
    files.close(descriptor)
    return found


# Values that fit into a leaf, that just do not, and that take several pages.
SIZES = st.sampled_from([0, 1, 30, 300, 1900, 2050, 4070, 4100, 9000])
NAMES = st.integers(0, 400).map(lambda number: b"n%03d" % number * (1 + number % 7 * 20))
CHANGE = (
    st.tuples(st.just("put"), NAMES, SIZES)
    | st.tuples(st.just("put"), NAMES, SIZES)
    | st.tuples(st.just("delete"), NAMES, SIZES)
    | st.tuples(st.just("rows"), st.integers(1, 120), SIZES)
    | st.tuples(st.just("compact"), st.integers(1, 200), SIZES)
    | st.tuples(st.just("many"), st.integers(0, 300), SIZES)
    | st.tuples(st.just("few"), st.integers(0, 300), SIZES)
)
HISTORY = st.lists(st.lists(CHANGE, min_size=1, max_size=4), min_size=1, max_size=25)


@settings(deadline=None, max_examples=25)
@given(HISTORY)
def test_whatever_was_committed_is_whole(commits: list[list[tuple[str, object, int]]]) -> None:
    """A false alarm would keep a member from starting: none, at any commit of any history."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "backend.1")
        environment = LmdbEnvironments().open(str(path), MAP_BYTES)
        first = last = 0
        try:
            for changes in commits:
                with writing(environment) as transaction:
                    for what, how, size in changes:
                        if what == "rows":
                            assert isinstance(how, int)
                            keys = [row_key(revision_of(last + at)) for at in range(how)]
                            transaction.append(KEY, [(key, b"v" * size) for key in keys])
                            last += how
                        elif what == "compact":
                            assert isinstance(how, int)
                            end = min(first + how, last)
                            transaction.delete(
                                KEY, [row_key(revision_of(at)) for at in range(first, end)]
                            )
                            first = end
                        elif what in ("many", "few"):
                            assert isinstance(how, int)
                            names = [b"m%05d" % at for at in range(how)]
                            if what == "many":
                                transaction.put(LEASE, [(name, b"x" * size) for name in names])
                            else:
                                transaction.delete(LEASE, names)
                        else:
                            assert isinstance(how, bytes)
                            if what == "put":
                                transaction.put(LEASE, [(how, b"x" * size)])
                                # Replaced within the commit: its pages may stay as many.
                                transaction.put(LEASE, [(how, b"y" * (size // 2))])
                            else:
                                transaction.delete(LEASE, [how])
                assert verdicts(path) == [""] * len(CHECKS)
        finally:
            environment.close()


@contextmanager
def database(directory: Path) -> Iterator[Path]:
    """Make a database with several levels, long values and free pages."""
    backend = open_backend(RealFiles(), LmdbEnvironments(), str(directory))
    environment = backend._environment
    chance = random.Random(1)
    last = 0
    for number in range(6):
        with writing(environment) as transaction:
            rows = []
            for _ in range(120):
                key = row_key(revision_of(last))
                value = chance.randbytes(chance.choice((9, 300, 1000, 7000)))
                rows.append((key, seal_value(key, value)))
                last += 1
            transaction.append(KEY, rows)
            names = [b"name %04d" % (chance.randrange(1000)) * 5 for _ in range(200)]
            transaction.put(LEASE, [(name, seal_value(name, b"%d" % number)) for name in names])
            transaction.delete(KEY, [key for key, _ in rows[::3]])
    backend.close()
    yield directory / "backend.1"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with database(tmp_path_factory.mktemp("sound")) as path:
        return path.read_bytes()


def everything(directory: Path) -> list[object]:
    with open_view(RealFiles(), LmdbEnvironments(), str(directory)) as view:
        return [(bucket, list(entries)) for bucket, entries in dump(view)]


def placed(directory: Path, content: bytes) -> Path:
    """Put a file where the database of a member is."""
    (directory / "CURRENT").write_bytes(b"kvorum backend format 1\nbackend.1\n")
    path = directory / "backend.1"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_refused_or_makes_no_difference(tmp_path: Path, sound: bytes, seed: int) -> None:
    """Both checks say the same; what they let pass is read without an end of the process."""
    placed(tmp_path, sound)
    # An older commit counts if the newest one's number was damaged; a start brings it up to date.
    older = bytearray(sound)
    metas = [int.from_bytes(sound[at : at + 8], "little") for at in (144, PAGE_BYTES + 144)]
    older_at = 144 + PAGE_BYTES * (metas[1] < metas[0])
    older[older_at : older_at + 8] = (max(metas) + 1).to_bytes(8, "little")
    expected = [everything(tmp_path), everything_of(tmp_path, bytes(older))]
    chance = random.Random(seed)
    refused = 0
    for _ in range(MUTATIONS // 4):
        what, content = mutated(sound, chance)
        path = placed(tmp_path, content)
        found = verdicts(path)
        assert len(set(found)) == 1, (what, found)
        if found[0]:
            refused += 1
            with pytest.raises(CorruptionError, match=r"backend\.1: .*remove the member from"):
                open_backend(RealFiles(), LmdbEnvironments(NATIVE), str(tmp_path))
        # What passes may hold a value with a wrong checksum, which reads refuse.
        with suppress(BackendError):
            assert everything(tmp_path) in expected, what
    assert refused > MUTATIONS // 16


def everything_of(directory: Path, content: bytes) -> list[object]:
    placed(directory, content)
    return everything(directory)


def test_each_length_is_refused_or_whole(tmp_path: Path, sound: bytes) -> None:
    """An empty file would else become a new database, and a short one end the process."""
    for length in (0, 1, 151, 4096, 4096 + 151, 8192, len(sound) // 2, len(sound) - 4096 * 30):
        path = placed(tmp_path, sound[:length])
        assert all(verdicts(path)) and len(set(verdicts(path))) == 1
        with pytest.raises(CorruptionError, match=r"backend\.1: checking its pages: "):
            open_backend(RealFiles(), LmdbEnvironments(), str(tmp_path))
        with pytest.raises(CorruptionError, match=r"backend\.1: checking its pages: "):
            everything(tmp_path)
        assert path.read_bytes() == sound[:length]


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_with_another_name_is_not_made_anew(
    tmp_path: Path, sound: bytes, bucket: bytes
) -> None:
    """LMDB would find no bucket of the name, and make an empty one."""
    content = bytearray(sound)
    # The last word of a name in the list of buckets, before its record of 48 bytes.
    found = [at for at in range(len(sound)) if sound.startswith(bucket + b"\0" * 6, at)]
    for at in found:
        content[at] ^= 1
    assert found
    path = placed(tmp_path, bytes(content))
    assert all(verdicts(path))


WRITER = """
import itertools, sys
from kvorum.storage.backend import open_backend
from kvorum.storage.backend.buckets import LEASE
from kvorum.storage.backend.encoding import seal_value
from kvorum.storage.backend.environment import writing
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
backend = open_backend(RealFiles(), LmdbEnvironments(syncs=False), sys.argv[1])
for number in itertools.count():
    with writing(backend._environment) as transaction:
        name = b"writer %d" % (number % 300)
        transaction.put(LEASE, [(name, seal_value(name, b"x" * (number % 5000)))])
    if number == 10:
        print("begun", flush=True)
"""


def test_a_database_is_checked_beside_a_member_that_writes(tmp_path: Path) -> None:
    """Pages that the member frees and uses again meanwhile are no damage."""
    with database(tmp_path):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
            for native in CHECKS * 10:
                with open_view(RealFiles(), LmdbEnvironments(native), str(tmp_path)) as view:
                    assert view.items(LEASE)
            assert writer.poll() is None
        finally:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()


def test_the_verifier_of_lmdb_finds_no_more(tmp_path: Path, sound: bytes) -> None:
    """Newer versions of the binding have one; it is no part of what members run."""
    verifier = pytest.importorskip("lmdb.verify")
    chance = random.Random(7)
    agreed = 0
    for _ in range(100):
        what, content = mutated(sound, chance)
        path = placed(tmp_path, content)
        try:
            told = verifier.verify(str(path), subdir=False)
        except verifier.VerifyError as error:
            told = [str(error)]
        # Pages that belong to nothing hurt nobody.
        told = [each for each in told if "neither reachable nor" not in str(each)]
        (found,) = set(verdicts(path))
        assert found or not told, (what, told)
        agreed += bool(told)
    assert agreed
