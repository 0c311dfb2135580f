"""Check that an archive holds every reported object and restores states the cluster really had.

The checks read the archive with production's restore code, at moments drawn from the seed and once
faults have ended, and compare each restored state with the history of what members applied. A
cluster that was forced from a survivor lacking revisions has another history from that revision
on. A *line* is one such history; all points of one history of an archive must belong to one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvorum.sim.backups.archive_disk import ArchiveDisk
from kvorum.sim.backups.program import Listener, Program
from kvorum.sim.history import History, Row
from kvorum.sim.violation import Violation
from kvorum.storage.backend.buckets import (
    FINISHED_COMPACT_REVISION,
    KEY,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.images import checked_content
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.archive import ArchiveHistory as Recorded
from kvorum.tools.backup.content import merge_log
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.names import SegmentName, SnapshotName, parse_name
from kvorum.tools.backup.points import Point, find_point, read_segment_of
from kvorum.tools.backup.verifying import find_problems
from kvorum.tools.offline.snapshots import HashCheck, open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from kvorum.sim.world import World

STATES = "restored points are states of the cluster"
WHOLE = "every revision between two points can be restored"
KEPT = "verified snapshots stay"
NEWEST = "a restore gives the newest state that was backed up"
VERIFIES = "verify tells what is missing, and nothing else"
_POINTS = 3
"""How many revisions of each history a check restores, besides the newest."""


class State(NamedTuple):
    """A restored store."""

    revision: int
    compacted: int
    rows: list[Row]


class Lines:
    """The histories that a cluster had; the last one is current."""

    __slots__ = ("_ended", "_now")

    def __init__(self, now: History) -> None:
        self._now = now
        self._ended: list[History] = []

    def __len__(self) -> int:
        return len(self._ended) + 1

    @property
    def revision(self) -> int:
        """The current revision of the cluster."""
        return self._now.revision

    def fork(self, revision: int) -> None:
        """Fork the history at a revision: the new line lacks everything after it."""
        self._ended.append(self._now.fork(revision))

    def find_lines(self, fits: Callable[[History], bool]) -> set[int]:
        """Return the numbers of the lines for which `fits` is true."""
        return {number for number, each in enumerate((*self._ended, self._now)) if fits(each)}

    def find_with_rows(self, rows: Sequence[tuple[int, tuple[Row, ...]]]) -> set[int]:
        """Return the numbers of the lines that have these rows at these revisions."""
        return self.find_lines(
            lambda line: all(line.effects.get(number) == found for number, found in rows)
        )

    def find_with_state(self, state: State) -> set[int]:
        """Return the numbers of the lines that were in a state."""

        def fits(line: History) -> bool:
            by_main: dict[int, list[Row]] = {}
            for row in state.rows:
                by_main.setdefault(row[0] >> 32, []).append(row)
            first = max(2, state.compacted + 1)
            return (
                state.revision <= line.revision
                and all(
                    tuple(by_main.get(main, ())) == line.effects.get(main, ())
                    for main in range(first, state.revision + 1)
                )
                and all(
                    main <= state.revision and set(found) <= set(line.effects.get(main, ()))
                    for main, found in by_main.items()
                    if main < first or main > state.revision
                )
                and set(line.needed(state.compacted)) <= set(state.rows)
            )

        return self.find_lines(fits)


class ArchiveChecker(Listener):
    """Records what the programs of one archive reported, and checks that the archive holds it."""

    def __init__(
        self,
        world: World,
        name: str,
        disk: ArchiveDisk,
        lines: Lines,
        *,
        has_log: bool,
        shared: bool,
    ) -> None:
        self.name = name
        self._world = world
        self._disk = disk
        self._lines = lines
        self._random: Random = world.stream(f"keeper {name}")
        self._has_log = has_log
        self._is_shared = shared
        self._taken: SnapshotName | None = None
        # The other snapshots at the time of that report; only a later one may replace it.
        self._others: set[SnapshotName] = set()
        # The newest revision reported for each history, in the order in which histories started.
        self._reported: dict[str, int] = {}
        # The lines that each object fits, by the object's name.
        self._fitting: dict[str, set[int]] = {}
        self.checks = 0
        self.points = 0
        self.snapshots = 0
        self.segments = 0

    # Reports from programs.

    def note_object(self, program: Program, name: str, revision: int, *, is_snapshot: bool) -> None:
        """Record a completed object: its name, and the newest revision in it."""
        del program
        parsed = parse_name(name)
        assert isinstance(parsed, SnapshotName | SegmentName)
        if isinstance(parsed, SnapshotName):
            self._taken = parsed
            self._others = {*Archive(self._disk.store).snapshots} - {parsed}
            self.snapshots += 1
        else:
            self.segments += 1
        # A history counts only after its first snapshot.
        if is_snapshot or parsed.history in self._reported:
            known = self._reported.get(parsed.history, 0)
            self._reported[parsed.history] = max(known, revision)
        self._schedule_check(0.1)

    def note_end(self, program: Program) -> None:
        """Sometimes check the archive after a program ended or was killed."""
        del program
        self._schedule_check(0.3)

    def _schedule_check(self, chance: float) -> None:
        """Sometimes schedule a check; it runs as a later event, never within a program's step."""
        if self._random.random() < chance:
            self._world.after(0.0, self.check)

    def note_fork(self) -> None:
        """Forget which lines objects fit, because there is a new line."""
        self._fitting.clear()

    # Checks of the archive.

    def check(self, *, is_quiet: bool = False, least: int = 0) -> None:
        """Check the archive.

        With `is_quiet`, its log must be complete; it must always reach revision `least`.
        """
        self.checks += 1
        archive = Archive(self._disk.store)
        taken = self._taken
        if taken is not None and not self._has_kept(archive, taken):
            self._raise_violation(KEPT, f"{taken} was reported, and is gone")
        lines = {each.name: self._find_lines_of(archive, each) for each in archive.histories}
        with_snapshots = [each for each in archive.histories if each.snapshots]
        open_ended = [each.name for each in with_snapshots if self._check_whole(archive, each)]
        if with_snapshots:
            self._check_newest(archive, lines, least)
            if self._has_log and is_quiet and with_snapshots[-1].name in open_ended:
                self._raise_violation(
                    WHOLE, f"has {with_snapshots[-1].snapshots[-1]}, and its log ends before that"
                )
        elif taken is not None:
            self._raise_violation(
                NEWEST, f"{taken} was reported, and the archive has no snapshot at all"
            )
        problems = find_problems(archive, lambda _: None)
        if is_quiet and problems and not open_ended:
            self._raise_violation(VERIFIES, f"nothing is missing, and verify tells {problems}")

    def _has_kept(self, archive: Archive, taken: SnapshotName) -> bool:
        """Return whether the last reported snapshot, or a later one, is in the archive."""
        if set(archive.snapshots) - self._others:
            return True
        return self._is_shared and any(each > taken for each in archive.snapshots)

    def is_complete(self, least: int) -> bool:
        """Return whether the newest history has a snapshot and reaches revision `least`."""
        archive = Archive(self._disk.store)
        with_snapshots = [each for each in archive.histories if each.snapshots]
        if not with_snapshots:
            return False
        newest = with_snapshots[-1].snapshots[-1]
        first = with_snapshots[-1].snapshots[0] if self._has_log else newest
        return with_snapshots[-1].reach(first) >= max(least, newest.revision)

    def _raise_violation(self, guarantee: str, text: str) -> None:
        raise Violation(guarantee, f"{self.name} {text}")

    def _find_lines_of(self, archive: Archive, history: Recorded) -> set[int]:
        """Return the lines to which a history may belong; raise Violation if there is none."""
        found = set(range(len(self._lines)))
        before = ""
        names: list[SnapshotName | SegmentName] = [*history.snapshots, *history.segments]
        for name in sorted(names, key=lambda each: each[1]):
            fitting = self._fits(archive, name)
            if not self._has_log and fitting:
                # Without a log, each snapshot stands alone; the last one is the newest.
                found = fitting
                continue
            if not fitting & found:
                self._raise_violation(
                    STATES, f"{name} does not continue the cluster that {before or name} is of"
                )
            found &= fitting
            before = str(name)
        return found

    def _fits(self, archive: Archive, name: SnapshotName | SegmentName) -> set[int]:
        """Return the lines that an object fits."""
        key = str(name)
        if key not in self._fitting:
            try:
                if isinstance(name, SnapshotName):
                    fits = self._lines.find_with_state(
                        self._restore(archive, Point(name[1], name, []))
                    )
                else:
                    fits = self._lines.find_with_rows(
                        [
                            (
                                each.number,
                                tuple((parse_row_key(row), value) for row, value in each.rows),
                            )
                            for each in read_segment_of(archive.store, name).revisions
                        ]
                    )
            except ArchiveError as error:
                raise Violation(
                    STATES, f"{self.name} has an object that counts: {error}"
                ) from error
            self._fitting[key] = fits
        return self._fitting[key]

    def _check_whole(self, archive: Archive, history: Recorded) -> bool:
        """Require that the log has no gap; return whether it ends before the last snapshot.

        The log ends earlier until its next flush, or for good if the history was not continued.
        """
        first = end = history.snapshots[0].revision
        for segment in sorted(history.segments, key=lambda each: each.first):
            if segment.first > end + 1 and self._has_log:
                self._raise_violation(
                    WHOLE,
                    f"has {segment}, and nothing of revisions {end + 1} to {segment.first - 1}",
                )
            end = max(end, segment.last)
        known = [end, *(each.revision for each in history.snapshots)]
        if end > first:
            known += [self._random.randint(first, end) for _ in range(_POINTS - 1)]
        for revision in self._random.sample(known, min(_POINTS, len(known))):
            self._check_point(archive, history, revision)
        return history.snapshots[-1].revision > end

    def _check_point(self, archive: Archive, history: Recorded, revision: int) -> None:
        """Restore a revision of a history as production does."""
        # Several histories may have this revision, and `find_point` prefers the newest history.
        only = Archive(archive.store)
        only.histories = [each for each in only.histories if each.name == history.name]
        told: list[str] = []
        try:
            point = find_point(only, revision, None, told.append)
        except ArchiveError as error:
            raise Violation(WHOLE, f"{self.name} cannot restore {revision}: {error}") from error
        self._check_restored(archive, point, told)

    def _check_restored(self, archive: Archive, point: Point, told: list[str]) -> None:
        self.points += 1
        if told:
            self._raise_violation(STATES, f"has damage: {told}")
        if not self._lines.find_with_state(self._restore(archive, point)):
            self._raise_violation(
                STATES, f"restores revision {point.revision} as it never was: {point}"
            )

    def _check_newest(self, archive: Archive, lines: dict[str, set[int]], least: int) -> None:
        told: list[str] = []
        point = find_point(archive, None, None, told.append)
        history = point.snapshot.history
        self._check_restored(archive, point, told)
        if self._reported:
            newest = next(reversed(self._reported))
            # Two programs that share an archive may start histories at about the same time.
            is_older = history in self._reported and history != newest and not self._is_shared
            is_behind = point.revision < self._reported[newest]
            if is_older or (is_behind and (history == newest or self._is_shared)):
                self._raise_violation(
                    NEWEST,
                    f"restores {history} up to {point.revision}, and {newest} was reported up to "
                    f"{self._reported[newest]}",
                )
        if least and (point.revision < least or len(self._lines) - 1 not in lines[history]):
            self._raise_violation(
                NEWEST, f"restores {history} up to {point.revision}; the store was at {least}"
            )

    def _restore(self, archive: Archive, point: Point) -> State:
        """Return the store at a point."""
        rows: list[Row] = []
        meta: dict[bytes, bytes] = {}
        with (
            archive.store.local(str(point.snapshot)) as (files, path),
            open_snapshot(files, path, HashCheck.REQUIRED) as image,
        ):
            for bucket, entries in merge_log(checked_content(image), archive.store, point):
                if bucket == KEY:
                    rows = [(parse_row_key(name), value) for name, value in entries]
                elif bucket == META:
                    meta = dict(entries)
                else:
                    for _ in entries:
                        pass
        compacted = -1
        for name in (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION):
            if name in meta:
                compacted = max(compacted, parse_row_key(meta[name]) >> 32)
        return State(point.revision, compacted, rows)
