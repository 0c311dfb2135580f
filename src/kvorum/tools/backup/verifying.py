"""Verify a whole archive: find damaged and missing parts."""

import time
from collections.abc import Callable
from contextlib import suppress

from kvorum.tools.backup.archive import Archive, ArchiveHistory, read_manifest, read_recorded_period
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.moments import AHEAD_SECONDS_MAX, stamp_of
from kvorum.tools.backup.names import MANIFEST_ENDING, SnapshotName
from kvorum.tools.backup.points import check_snapshot, read_segment_of


def find_problems(archive: Archive, progress: Callable[[int], None]) -> list[str]:
    """Read all objects that count; return the problems. `progress` receives sizes in bytes."""
    found = [
        f"{name.removesuffix(MANIFEST_ENDING)} is missing, but its manifest is there"
        for name in archive.orphans
    ]
    for history in archive.histories:
        found += _find_damaged(archive, history, progress)
        found += _find_missing(archive, history)
    return found + _find_misordered(archive)


def _find_damaged(
    archive: Archive, history: ArchiveHistory, progress: Callable[[int], None]
) -> list[str]:
    found: list[str] = []
    for snapshot in history.snapshots:
        try:
            check_snapshot(archive.store, snapshot)
        except ArchiveError as error:
            found.append(str(error))
        progress(archive.sizes[str(snapshot)])
    for segment in history.segments:
        try:
            read_segment_of(archive.store, segment)
        except ArchiveError as error:
            found.append(str(error))
        progress(archive.sizes[str(segment)])
    return found


def _find_missing(archive: Archive, history: ArchiveHistory) -> list[str]:
    """Return the gaps of a history after its first snapshot, which nothing can restore."""
    if not history.snapshots:
        return []
    found: list[str] = []
    reach = history.snapshots[0].revision
    for snapshot in history.snapshots:
        if snapshot.revision > reach + 1 and _has_log(archive, history, snapshot):
            found.append(f"history {history.name} {_lacks(reach + 1, snapshot.revision - 1)}")
        if snapshot.revision > reach or snapshot == history.snapshots[0]:
            reach = max(reach, history.reach(snapshot))
    found += [
        f"{segment} follows changes that are missing: "
        f"the history {_lacks(reach + 1, segment.first - 1)}"
        for segment in history.segments
        if segment.last > reach
    ]
    for name in history.watched:
        try:
            watched = read_recorded_period(archive.store, name)
        except ArchiveError as error:
            found.append(str(error))
            continue
        if watched.revision > reach:
            found.append(
                f"the log of history {history.name} ends at revision {reach}, but it was recorded "
                f"up to {watched.revision}"
            )
    return found


def _lacks(first: int, last: int) -> str:
    return f"lacks revisions {first} to {last}, which cannot be restored"


def _has_log(archive: Archive, history: ArchiveHistory, snapshot: SnapshotName) -> bool:
    """Return whether the log was meant to reach a snapshot; older versions did not record this."""
    with suppress(ArchiveError):
        has_log = read_manifest(archive.store, snapshot).has_log
        if has_log is not None:
            return has_log
    return bool(history.segments or history.watched)


def _find_misordered(archive: Archive) -> list[str]:
    """Return reasons why the newest history by name may not be the newest one.

    Versions that did not record whether a snapshot has a log named histories by the clock alone.
    """
    recorded = [each for each in archive.histories if each.snapshots]
    if not recorded:
        return []
    *others, newest = recorded
    with suppress(ArchiveError):
        if read_manifest(archive.store, newest.snapshots[-1]).has_log is not None:
            return []
    stamps = [each.stamp for each in newest.snapshots] + [each.stamp for each in newest.segments]
    last = max(stamps)
    if last > stamp_of(time.time() + AHEAD_SECONDS_MAX):
        found = f"it has objects of {last}, which is in the future"
    elif later := [
        each.name for each in others if max(snapshot.stamp for snapshot in each.snapshots) > last
    ]:
        found = f"history {later[-1]} has a later snapshot"
    else:
        return []
    return [
        f"history {newest.name} is named as the newest one, but {found}: a clock was wrong, and a "
        "restore without a point may give an older state; name a revision or a time"
    ]
