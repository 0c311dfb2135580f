"""Snapshot files: they stand for the log up to an index, so that it may be shortened.

A `.snap` is small and says which members there were at an index; the key-value state is in the
backend. A `.snap.db` is a whole database that came from a leader. A snapshot counts when its
record is in the log, and that is written when its file is durable: file first, record second.
"""

from kvorum.snap.database import ReceivedDatabase, ReleaseDatabases, database_index, database_path
from kvorum.snap.directory import (
    Broken,
    RemoveLeftovers,
    WriteSnap,
    leftovers,
    load_newest,
    newest_whole,
)
from kvorum.snap.format import SnapError, decode, encode, file_name

__all__ = [
    "Broken",
    "ReceivedDatabase",
    "ReleaseDatabases",
    "RemoveLeftovers",
    "SnapError",
    "WriteSnap",
    "database_index",
    "database_path",
    "decode",
    "encode",
    "file_name",
    "leftovers",
    "load_newest",
    "newest_whole",
]
