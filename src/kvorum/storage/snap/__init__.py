"""Snapshot files, which replace the log up to an index, so that the log may be shortened.

A `.snap` file is small and has the members at an index; the backend has the key-value state. A
`.snap.db` file is a whole database from a leader. A snapshot is valid once its record is in the
log, and the member writes the record only after the snapshot's file is durable.
"""

from kvorum.storage.snap.database import (
    ReceivedDatabase,
    ReleaseDatabases,
    database_index,
    database_path,
)
from kvorum.storage.snap.directory import (
    Broken,
    RemoveLeftovers,
    WriteSnap,
    leftovers,
    load_newest,
    newest_whole,
)
from kvorum.storage.snap.format import SnapError, decode, encode, file_name

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
