"""Find the snapshot and the segments from which an archive can restore a revision or a time.

A point is made from the newest snapshot at or before it, and the log after that snapshot. If one of
these is damaged, an older snapshot with more of the log replaces it, and the caller gets a message.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from kvorum.tools.backup.archive import Archive, ArchiveHistory, read_manifest, read_recorded_period
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.images import examine
from kvorum.tools.backup.moments import parse_stamp, text_of
from kvorum.tools.backup.names import SegmentName, SnapshotName
from kvorum.tools.backup.segments import ArchiveSegment, read_segment
from kvorum.tools.backup.stores import ArchiveStore, read_whole


class Point(NamedTuple):
    """A state of the store, and the objects that restore it, all read and undamaged."""

    revision: int
    snapshot: SnapshotName
    segments: list[SegmentName]


class Span(NamedTuple):
    """Revisions that an archive can restore: from a snapshot to the last revision of the log."""

    history: str
    first: int
    last: int
    since: float
    until: float


def read_segment_of(store: ArchiveStore, name: SegmentName) -> ArchiveSegment:
    """Read a segment; raise ArchiveError if it is damaged or does not match its name."""
    segment = read_segment(str(name), read_whole(store, str(name)))
    numbers = [each.number for each in segment.revisions]
    if segment.history != name.history or (numbers[0], numbers[-1]) != (name.first, name.last):
        raise ArchiveError(f"{name} is damaged: it has the revisions of another segment")
    return segment


def spans_of(archive: Archive) -> list[Span]:
    """Return what an archive can restore if nothing is damaged, the newest span last."""
    spans: list[Span] = []
    for history in archive.histories:
        for snapshot in history.snapshots:
            if spans and spans[-1].history == history.name and snapshot.revision <= spans[-1].last:
                continue
            chain = history.chain(snapshot.revision)
            since = parse_stamp(snapshot.stamp)
            until = parse_stamp(chain[-1].stamp) if chain else since
            last = chain[-1].last if chain else snapshot.revision
            until = max([until, *_watched_until(archive, history, last)])
            spans.append(Span(history.name, snapshot.revision, last, since, until))
    return spans


def _watched_until(archive: Archive, history: ArchiveHistory, revision: int) -> Iterator[float]:
    for name in history.watched:
        with suppress(ArchiveError):
            watched = read_recorded_period(archive.store, name)
            if watched.revision == revision:
                yield watched.until


def coverage_text(archive: Archive) -> str:
    """Describe in words what an archive can restore."""
    spans = spans_of(archive)
    if not spans:
        return "it has no snapshot that counts"
    texts = [
        f"revisions {each.first} to {each.last} ({text_of(each.since)} to {text_of(each.until)})"
        for each in spans
    ]
    return f"it has {', '.join(texts)}"


def find_point(
    archive: Archive,
    revision: int | None,
    moment: float | None,
    warn: Callable[[str], None],
) -> Point:
    """Return the point of a revision, of a time, or the newest one; raise ArchiveError if none.

    The function reads all objects of the point. `warn` receives a message for each damaged object
    that the point avoids.
    """
    histories = [each for each in reversed(archive.histories) if each.snapshots]
    if moment is not None:
        history, revision = _find_revision_at(archive, histories, moment)
        return _find_exact(archive, history, revision, warn)
    for history in histories:
        reaches = [history.reach(each) for each in history.snapshots]
        if revision is None:
            return _find_newest(archive, history, max(reaches), warn)
        if any(
            each.revision <= revision <= reach
            for each, reach in zip(history.snapshots, reaches, strict=True)
        ):
            return _find_exact(archive, history, revision, warn)
    what = "nothing" if revision is None else f"revision {revision}"
    raise ArchiveError(f"{archive.store} cannot restore {what}: {coverage_text(archive)}")


def _find_newest(
    archive: Archive, history: ArchiveHistory, revision: int, warn: Callable[[str], None]
) -> Point:
    """Return the newest point that can be restored, even if the newest objects are damaged."""
    finder = _PointFinder(archive, history, warn)
    while (point := finder.find(revision)) is None:
        older = finder.next_lower(revision)
        if older is None:
            raise ArchiveError(
                f"{archive.store}: nothing of history {history.name} can be restored"
            )
        warn(f"revision {revision} cannot be restored; {older} is the newest that can")
        revision = older
    return point


def _find_exact(
    archive: Archive, history: ArchiveHistory, revision: int, warn: Callable[[str], None]
) -> Point:
    point = _PointFinder(archive, history, warn).find(revision)
    if point is None:
        raise ArchiveError(
            f"{archive.store} cannot restore revision {revision}: objects that it needs are damaged"
        )
    return point


class _PointFinder:
    """Finds points of a history, and remembers damaged objects."""

    def __init__(
        self, archive: Archive, history: ArchiveHistory, warn: Callable[[str], None]
    ) -> None:
        self._store = archive.store
        self._history = history
        self._warn = warn
        self._bad_segments: list[SegmentName] = []
        self._good_segments: set[SegmentName] = set()
        self._snapshots: dict[SnapshotName, bool] = {}

    def find(self, revision: int) -> Point | None:
        """Return the point of a revision, or None if it cannot be restored."""
        for snapshot in reversed(self._history.snapshots):
            if snapshot.revision <= revision and self._is_whole(snapshot):
                segments = self._segments(snapshot, revision)
                if segments is not None:
                    return Point(revision, snapshot, segments)
        return None

    def next_lower(self, revision: int) -> int | None:
        """Return the next lower revision that may be restorable, given the damage known by now."""
        found = [
            (chain[-1].last if chain else snapshot.revision)
            for snapshot in self._history.snapshots
            if self._snapshots.get(snapshot, True)
            for chain in [self._history.chain(snapshot.revision, self._bad_segments)]
        ]
        return max((each for each in found if each < revision), default=None)

    def _is_whole(self, snapshot: SnapshotName) -> bool:
        if snapshot not in self._snapshots:
            try:
                check_snapshot(self._store, snapshot)
                self._snapshots[snapshot] = True
            except ArchiveError as error:
                self._warn(f"a snapshot is left out: {error}")
                self._snapshots[snapshot] = False
        return self._snapshots[snapshot]

    def _segments(self, snapshot: SnapshotName, revision: int) -> list[SegmentName] | None:
        while True:
            chain = self._history.chain(snapshot.revision, self._bad_segments)
            needed = [each for each in chain if each.first <= revision]
            if (needed[-1].last if needed else snapshot.revision) < revision:
                return None
            if all(map(self._is_good, needed)):
                return needed

    def _is_good(self, name: SegmentName) -> bool:
        if name not in self._good_segments:
            try:
                read_segment_of(self._store, name)
            except ArchiveError as error:
                self._warn(f"a part of the log is left out: {error}")
                self._bad_segments.append(name)
                return False
            self._good_segments.add(name)
        return True


def check_snapshot(store: ArchiveStore, snapshot: SnapshotName) -> None:
    """Read a whole snapshot; raise ArchiveError if it does not match its manifest."""
    manifest = read_manifest(store, snapshot)
    with store.local(str(snapshot)) as (files, path):
        if examine(files, path, str(snapshot)).facts != manifest.facts:
            raise ArchiveError(f"{snapshot} is not what its manifest says")


def _find_revision_at(
    archive: Archive, histories: list[ArchiveHistory], moment: float
) -> tuple[ArchiveHistory, int]:
    """Return the revision that the store had at a time, and its history."""
    for history in histories:
        taken = {parse_stamp(each.stamp): each.revision for each in history.snapshots}
        if moment in taken:
            return history, taken[moment]
        found = _find_last_received(archive, history, moment)
        if found is not None and found >= history.snapshots[0].revision:
            return history, found
    raise ArchiveError(
        f"{archive.store} does not show what the store was at {text_of(moment)}, as no backup "
        f"listened then: {coverage_text(archive)}"
    )


def _find_last_received(archive: Archive, history: ArchiveHistory, moment: float) -> int | None:
    """Return the newest revision received by a time; None if no backup was watching then."""
    segments = sorted(history.segments, key=lambda each: each.stamp)
    before = [each.last for each in segments if parse_stamp(each.stamp) <= moment]
    snapshots = [each.revision for each in history.snapshots if parse_stamp(each.stamp) <= moment]
    revision = max([*before, *snapshots], default=0)
    has_listened = False
    for name in segments[len(before) :]:
        with suppress(ArchiveError):
            segment = read_segment_of(archive.store, name)
            known = [each.number for each in segment.revisions if each.known <= moment]
            revision = max([revision, *known])
            has_listened = segment.since is not None and segment.since <= moment
            if has_listened or not known:
                break
    if not has_listened:
        for each in history.watched:
            with suppress(ArchiveError):
                watched = read_recorded_period(archive.store, each)
                has_listened = has_listened or watched.since <= moment <= watched.until
    has_listened = has_listened or any(parse_stamp(each.stamp) == moment for each in segments)
    return revision if has_listened else None
