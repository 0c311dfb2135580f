"""The names of an archive's objects. They sort: by history, by kind, by revision.

A *history* is a sequence of revisions without a gap, as one cluster made it: a restored store has
another one, and so has whatever follows changes that nobody recorded. Its snapshots and its log
begin with its name, which begins with the time at which it was begun. The order of histories is
that of their names, so a new name follows all others of the archive, whatever the clock shows.
"""

import re
from typing import NamedTuple

from kvorum.backup.moments import parse_stamp, stamp_of

_HISTORY = r"(?P<history>\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8})"
_STAMP = r"(?P<stamp>\d{8}T\d{6}\.\d{3}Z)"
_SNAPSHOT = re.compile(rf"{_HISTORY}\.snapshot\.(?P<revision>\d{{20}})\.{_STAMP}\.db")
_SEGMENT = re.compile(rf"{_HISTORY}\.log\.(?P<first>\d{{20}})-(?P<last>\d{{20}})\.{_STAMP}\.jsonl")
_WATCHED = re.compile(rf"{_HISTORY}\.watched\.(?P<run>[0-9a-f]{{8}})\.json")

MANIFEST_ENDING = ".json"
"""Behind the name of a snapshot: what was verified of it. Without that a snapshot does not count.
"""


class SnapshotName(NamedTuple):
    """A database in etcd's format, with its checksum."""

    history: str
    revision: int
    stamp: str
    """When it was taken."""

    def __str__(self) -> str:
        return f"{self.history}.snapshot.{self.revision:020}.{self.stamp}.db"


class SegmentName(NamedTuple):
    """The changes of some revisions, each of which is there."""

    history: str
    first: int
    last: int
    stamp: str
    """Until when nothing but these changes was heard of."""

    def __str__(self) -> str:
        return f"{self.history}.log.{self.first:020}-{self.last:020}.{self.stamp}.jsonl"


class WatchedName(NamedTuple):
    """For how long one run of a program has recorded a history; written over and over."""

    history: str
    run: str

    def __str__(self) -> str:
        return f"{self.history}.watched.{self.run}.json"


Name = SnapshotName | SegmentName | WatchedName


def history_name(now: float, newest: str, token: str) -> str:
    """Return the name of a history that begins now, after the newest one of the archive."""
    stamp = stamp_of(now)
    if newest:
        stamp = max(stamp, stamp_of(parse_stamp(newest.partition("-")[0]) + 0.001))
    return f"{stamp}-{token}"


def parse_name(name: str) -> Name | None:
    """Return what a name stands for; None if it is not one of these."""
    if found := _SNAPSHOT.fullmatch(name):
        return SnapshotName(found["history"], int(found["revision"]), found["stamp"])
    if found := _SEGMENT.fullmatch(name):
        return SegmentName(
            found["history"], int(found["first"]), int(found["last"]), found["stamp"]
        )
    if found := _WATCHED.fullmatch(name):
        return WatchedName(found["history"], found["run"])
    return None
