"""The names of an archive's objects. They sort by history, kind and revision.

A *history* is a sequence of revisions without a gap, made by one cluster. A restored store starts
another history, and so do the changes after a period that no backup recorded. The names of a
history's snapshots and log begin with the history's name, which begins with its start time.
Histories are ordered by name, so a new name sorts after all others of the archive, whatever the
clock shows.
"""

import re
from typing import NamedTuple

from kvorum.tools.backup.moments import parse_stamp, stamp_of

_HISTORY = r"(?P<history>\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8})"
_STAMP = r"(?P<stamp>\d{8}T\d{6}\.\d{3}Z)"
_SNAPSHOT = re.compile(rf"{_HISTORY}\.snapshot\.(?P<revision>\d{{20}})\.{_STAMP}\.db")
_SEGMENT = re.compile(rf"{_HISTORY}\.log\.(?P<first>\d{{20}})-(?P<last>\d{{20}})\.{_STAMP}\.jsonl")
_WATCHED = re.compile(rf"{_HISTORY}\.watched\.(?P<run>[0-9a-f]{{8}})\.json")

MANIFEST_ENDING = ".json"
"""Ends the name of a snapshot's manifest, which holds the verified facts. A snapshot counts only
with it."""


class SnapshotName(NamedTuple):
    """The name of a database file in etcd's format, with its checksum."""

    history: str
    revision: int
    stamp: str
    """The time of the snapshot."""

    def __str__(self) -> str:
        return f"{self.history}.snapshot.{self.revision:020}.{self.stamp}.db"


class SegmentName(NamedTuple):
    """The name of a log segment: the changes of all revisions from `first` to `last`."""

    history: str
    first: int
    last: int
    stamp: str
    """The time of the segment's newest change, as received."""

    def __str__(self) -> str:
        return f"{self.history}.log.{self.first:020}-{self.last:020}.{self.stamp}.jsonl"


class WatchedName(NamedTuple):
    """The name of the period that one run has recorded; the run rewrites the object."""

    history: str
    run: str

    def __str__(self) -> str:
        return f"{self.history}.watched.{self.run}.json"


Name = SnapshotName | SegmentName | WatchedName


def history_name(now: float, newest: str, token: str) -> str:
    """Return the name of a history that starts now; it sorts after the archive's newest one."""
    stamp = stamp_of(now)
    if newest:
        stamp = max(stamp, stamp_of(parse_stamp(newest.partition("-")[0]) + 0.001))
    return f"{stamp}-{token}"


def parse_name(name: str) -> Name | None:
    """Parse the name of an object; return None if it is not one of these."""
    if found := _SNAPSHOT.fullmatch(name):
        return SnapshotName(found["history"], int(found["revision"]), found["stamp"])
    if found := _SEGMENT.fullmatch(name):
        return SegmentName(
            found["history"], int(found["first"]), int(found["last"]), found["stamp"]
        )
    if found := _WATCHED.fullmatch(name):
        return WatchedName(found["history"], found["run"])
    return None
