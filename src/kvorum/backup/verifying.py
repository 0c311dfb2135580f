"""All of an archive, read: what is damaged, and what is missing."""

from collections.abc import Callable

from kvorum.backup.archive import Archive, History, read_watched
from kvorum.backup.errors import ArchiveError
from kvorum.backup.names import MANIFEST_ENDING, SnapshotName, parse_name
from kvorum.backup.points import check_snapshot, segment_of


def problems_of(archive: Archive, progress: Callable[[int], None]) -> list[str]:
    """Read everything that counts and return what is wrong; `progress` is told of the bytes."""
    found = [
        f"{name.removesuffix(MANIFEST_ENDING)} is missing, but its manifest is there"
        for name in archive.sizes
        if isinstance(parse_name(name.removesuffix(MANIFEST_ENDING)), SnapshotName)
        and name.removesuffix(MANIFEST_ENDING) not in archive.sizes
    ]
    for history in archive.histories:
        found += _damaged(archive, history, progress)
        found += _missing(archive, history)
    return found


def _damaged(archive: Archive, history: History, progress: Callable[[int], None]) -> list[str]:
    found: list[str] = []
    for snapshot in history.snapshots:
        try:
            check_snapshot(archive.store, snapshot)
        except ArchiveError as error:
            found.append(str(error))
        progress(archive.sizes[str(snapshot)])
    for segment in history.segments:
        try:
            segment_of(archive.store, segment)
        except ArchiveError as error:
            found.append(str(error))
        progress(archive.sizes[str(segment)])
    return found


def _missing(archive: Archive, history: History) -> list[str]:
    if not history.snapshots:
        return []
    found: list[str] = []
    linked = {each for start in history.snapshots for each in history.chain(start.revision)}
    reach = max(map(history.reach, history.snapshots))
    first = history.snapshots[0].revision
    for segment in history.segments:
        is_spare = any(each.first <= segment.first and segment.last <= each.last for each in linked)
        if segment.last > first and not is_spare:
            found.append(f"{segment} follows changes that are missing")
    for name in history.watched:
        try:
            watched = read_watched(archive.store, name)
        except ArchiveError as error:
            found.append(str(error))
            continue
        if watched.revision > reach:
            found.append(
                f"the log of history {history.name} ends at revision {reach}, but it was recorded "
                f"up to {watched.revision}"
            )
    return found
