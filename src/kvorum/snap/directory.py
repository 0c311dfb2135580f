"""The `.snap` files of a member: writing one, and finding the one to start from."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvorum.files import Files
from kvorum.files.interface import read_file, write_file
from kvorum.raft.messages import Snapshot
from kvorum.snap.format import SnapError, decode, encode, file_name, parse_name


@dataclass(slots=True, frozen=True)
class WriteSnap:
    """A job: make a snapshot durable. Its record goes into the log after this is done."""

    directory: str
    snapshot: Snapshot

    def run(self, files: Files) -> None:
        """Write the file under its name, whole or not at all."""
        name = file_name(self.snapshot.term, self.snapshot.index)
        write_file(files, f"{self.directory}/{name}", encode(self.snapshot))


@dataclass(slots=True, frozen=True)
class Broken:
    """A file that could not be read and was renamed."""

    path: str
    problem: str


def load_newest(
    files: Files, directory: str, valid: Collection[tuple[int, int]]
) -> tuple[Snapshot | None, list[Broken]]:
    """Return the newest snapshot that is whole and valid, and the files that were not whole.

    `valid` holds index and term of the snapshots that the log has a record of. A bad file that
    is newer than the one returned is renamed to end in `.broken`.
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
    """Return the newest snapshot that is whole, whether or not it counts; nothing is changed."""
    found = (snapshot for _, snapshot in _newest_first(files, directory))
    return next((each for each in found if not isinstance(each, SnapError)), None)


def _newest_first(files: Files, directory: str) -> Iterator[tuple[str, Snapshot | SnapError]]:
    """Yield the path of each snapshot, and what is in it, or why that cannot be read."""
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
    """A job for the start: remove unfinished files that a power cut left."""

    directory: str

    def run(self, files: Files) -> list[str]:
        """Return the names that were removed."""
        names = leftovers(files, self.directory)
        for name in names:
            files.unlink(f"{self.directory}/{name}")
        return names
