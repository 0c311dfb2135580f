"""The content of an archive, derived from object names, and the rotation of old objects.

A snapshot counts once its manifest is there, which is written after the whole snapshot was read
back. Rotation deletes the manifest first, so that half a snapshot never counts.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.images import SnapshotFacts
from kvorum.tools.backup.moments import parse_text, text_of
from kvorum.tools.backup.names import (
    MANIFEST_ENDING,
    SegmentName,
    SnapshotName,
    WatchedName,
    parse_name,
)
from kvorum.tools.backup.stores import ArchiveStore, read_whole

FORMAT = 1


class Manifest(NamedTuple):
    """The verified facts of a snapshot."""

    cluster_id: int
    taken: float
    version: str
    """The version of the storage; empty before etcd 3.6."""
    facts: SnapshotFacts
    has_log: bool | None = None
    """Whether the history's log reaches the snapshot if its run recorded one; None: unknown."""

    def encode(self) -> bytes:
        """Return the content of the manifest's object."""
        document = {
            "kvorum_backup_snapshot": FORMAT,
            "cluster_id": f"{self.cluster_id:x}",
            "time": text_of(self.taken),
            "version": self.version,
            "log": self.has_log,
            **self.facts._asdict(),
        }
        return json.dumps(document, indent=2).encode() + b"\n"


def read_manifest(store: ArchiveStore, snapshot: SnapshotName) -> Manifest:
    """Read the manifest of a snapshot; raise ArchiveError if it is damaged."""
    name = f"{snapshot}{MANIFEST_ENDING}"
    try:
        document = json.loads(read_whole(store, name))
        if document["kvorum_backup_snapshot"] != FORMAT:
            raise ArchiveError(f"{name} has a format that this version does not know")
        facts = SnapshotFacts(
            document["size"], document["sha256"], document["revision"], document["rows_digest"]
        )
        return Manifest(
            int(document["cluster_id"], 16),
            parse_text(document["time"]),
            document["version"],
            facts,
            document.get("log"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{name} is damaged: {error!r}") from error


class RecordedPeriod(NamedTuple):
    """The period for which one run has received every change of a history without delay."""

    since: float
    until: float
    revision: int

    def encode(self) -> bytes:
        """Return the content of the object."""
        document = {
            "since": text_of(self.since),
            "until": text_of(self.until),
            "revision": self.revision,
        }
        return json.dumps(document).encode() + b"\n"


def read_recorded_period(store: ArchiveStore, name: WatchedName) -> RecordedPeriod:
    """Read the period that a run has recorded; raise ArchiveError if the object is damaged."""
    try:
        document = json.loads(read_whole(store, str(name)))
        since, until = parse_text(document["since"]), parse_text(document["until"])
        return RecordedPeriod(since, until, document["revision"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{name} is damaged: {error!r}") from error


@dataclass(slots=True)
class ArchiveHistory:
    """The objects of one history, each kind in order."""

    name: str
    snapshots: list[SnapshotName] = field(default_factory=list)
    """The snapshots that count."""
    unverified: list[SnapshotName] = field(default_factory=list)
    """Snapshots without a manifest: an attempt that is under way, or was killed."""
    segments: list[SegmentName] = field(default_factory=list)
    watched: list[WatchedName] = field(default_factory=list)

    def chain(self, revision: int, without: Sequence[SegmentName] = ()) -> list[SegmentName]:
        """Return the fewest segments that continue from a revision until the first gap.

        Two programs may have recorded the same revisions, so segments may overlap.
        """
        found: list[SegmentName] = []
        at = 0
        while True:
            best: SegmentName | None = None
            while at < len(self.segments) and self.segments[at].first <= revision + 1:
                each = self.segments[at]
                if each.last > (best.last if best else revision) and each not in without:
                    best = each
                at += 1
            if best is None:
                return found
            found.append(best)
            revision = best.last

    def reach(self, snapshot: SnapshotName) -> int:
        """Return the newest revision that a snapshot and the log can restore."""
        chain = self.chain(snapshot.revision)
        return chain[-1].last if chain else snapshot.revision


class Archive:
    """The histories of an archive, the newest last."""

    def __init__(self, store: ArchiveStore) -> None:
        self.store = store
        self.sizes = store.sizes()
        found: dict[str, ArchiveHistory] = {}
        for name in self.sizes:
            parsed = parse_name(name)
            if parsed is None:
                continue
            history = found.setdefault(parsed.history, ArchiveHistory(parsed.history))
            if isinstance(parsed, SegmentName):
                history.segments.append(parsed)
            elif isinstance(parsed, WatchedName):
                history.watched.append(parsed)
            elif f"{name}{MANIFEST_ENDING}" in self.sizes:
                history.snapshots.append(parsed)
            else:
                history.unverified.append(parsed)
        self.histories = [found[name] for name in sorted(found)]
        self.orphans = [
            name
            for name in self.sizes
            if isinstance(parse_name(name.removesuffix(MANIFEST_ENDING)), SnapshotName)
            and name.removesuffix(MANIFEST_ENDING) not in self.sizes
        ]
        """Manifests whose snapshots are missing."""

    @property
    def snapshots(self) -> list[SnapshotName]:
        """All snapshots that count, the newest last."""
        return [each for history in self.histories for each in history.snapshots]

    def find_superfluous(
        self, keep: int, current: str = "", taken: SnapshotName | None = None
    ) -> Iterator[str]:
        """Yield the objects that the newest `keep` snapshots do not need, in a safe order.

        The snapshot just taken and the current history's last one always stay. The log of the
        current history stays, too, because that history will get a snapshot.
        """
        # Of two snapshots of one revision, the one just taken is newer, whatever the clock says.
        snapshots = sorted(
            self.snapshots, key=lambda each: (each.history, each.revision, each == taken)
        )
        last = [each for each in snapshots if each.history == current][-1:]
        wanted = {*snapshots[-keep:], *last, *([taken] if taken else ())}
        kept = [each for each in snapshots if each in wanted]
        if not kept:
            return
        yield from self.orphans
        oldest = {each.history: each for each in reversed(kept)}
        for history in self.histories:
            for snapshot in history.snapshots:
                if snapshot not in kept:
                    yield f"{snapshot}{MANIFEST_ENDING}"
                    yield str(snapshot)
            # A newer attempt may be under way, and an older one may just have begun to count.
            for each in history.unverified:
                if str(each) < str(kept[0]):
                    yield from (f"{each}{MANIFEST_ENDING}", str(each))
            base = oldest.get(history.name)
            if base is not None:
                yield from (str(each) for each in history.segments if each.last <= base.revision)
            elif history.name != current and history.name < kept[0].history:
                yield from map(str, (*history.segments, *history.watched))


def rotate(
    store: ArchiveStore, keep: int, current: str = "", taken: SnapshotName | None = None
) -> list[str]:
    """Remove superfluous objects; return their names."""
    removed = list(Archive(store).find_superfluous(keep, current, taken))
    for name in removed:
        store.delete(name)
    return removed
