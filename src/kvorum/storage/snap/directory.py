"""Writes the `.snap` files of a member, and finds the one to start from."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvorum.raft.messages import Snapshot
from kvorum.storage.files import Files
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.snap.format import SnapError, decode, encode, file_name, parse_name


@dataclass(slots=True, frozen=True)
class WriteSnap:
    """A job that makes a snapshot durable; only then may the log get its record."""

    directory: str
    snapshot: Snapshot

    def run(self, files: Files) -> None:
        """Write the file atomically."""
        name = file_name(self.snapshot.term, self.snapshot.index)
        write_file(files, f"{self.directory}/{name}", encode(self.snapshot))


@dataclass(slots=True, frozen=True)
class Broken:
    """A damaged file that was renamed."""

    path: str
    problem: str


def load_newest(
    files: Files, directory: str, valid: Collection[tuple[int, int]]
) -> tuple[Snapshot | None, list[Broken]]:
    """Return the newest snapshot that is whole and valid, and the damaged files.

    `valid` has index and term of the snapshots with a record in the log. Damaged files newer than
    the returned snapshot are renamed to end in `.broken`.
    """
    broken: list[Broken] = []
    for path, snapshot in _newest_first(files, directory):
        if isinstance(snapshot, SnapError):
            files.rename(path, f"{path}.broken")
            broken.append(Broken(f"{path}.broken", str(snapshot)))
        elif (snapshot.index, snapshot.term) in valid:
            return snapshot, broken
    return None, broken


def newest_whole(files: Files, directory: str) -> Snapshot | None:
    """Return the newest whole snapshot, valid or not, without changing any file."""
    found = (snapshot for _, snapshot in _newest_first(files, directory))
    return next((each for each in found if not isinstance(each, SnapError)), None)


def _newest_first(files: Files, directory: str) -> Iterator[tuple[str, Snapshot | SnapError]]:
    """Yield the path of each snapshot file with its content, or with the error of reading it."""
    for name in reversed(files.list(directory)):
        parsed = parse_name(name)
        if parsed is None:
            continue
        path = f"{directory}/{name}"
        try:
            snapshot = decode(path, read_file(files, path))
            if (snapshot.term, snapshot.index) != parsed:
                raise SnapError(path, f"holds index {snapshot.index} of term {snapshot.term}")
        except SnapError as error:
            yield path, error
        else:
            yield path, snapshot


def leftovers(files: Files, directory: str) -> list[str]:
    """Return the names of unfinished files that a power cut left."""
    return [name for name in files.list(directory) if name.startswith(("tmp", "db.tmp."))]


@dataclass(slots=True, frozen=True)
class RemoveLeftovers:
    """A job that removes unfinished files of a power cut; run it at the start."""

    directory: str

    def run(self, files: Files) -> list[str]:
        """Return the removed names."""
        names = leftovers(files, self.directory)
        for name in names:
            files.unlink(f"{self.directory}/{name}")
        return names
