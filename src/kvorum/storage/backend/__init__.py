"""The database of a member: LMDB behind a buffer that is flushed off the loop.

`Backend` offers the packages above rows by revision, entries by bucket and name, and the protocol
that flushes both to the disk together with the consistent index. Buckets, names and encodings are
etcd's. `kvorum.storage.backend.real` implements the seam `Environments` with LMDB, and
`kvorum.storage.backend.memory` in memory for tests and simulation.
"""

from kvorum.storage.backend.backend import Backend, BufferLimits
from kvorum.storage.backend.defragment import CopyChanges, CopyDatabase, RemoveDatabase
from kvorum.storage.backend.environment import Environment, Environments, Sizes
from kvorum.storage.backend.errors import BackendError, CorruptionError
from kvorum.storage.backend.flush import CommitFlush, StageFlush
from kvorum.storage.backend.opening import open_backend, open_view, rewrite
from kvorum.storage.backend.transfer import dump, install
from kvorum.storage.backend.view import View

__all__ = [
    "Backend",
    "BackendError",
    "BufferLimits",
    "CommitFlush",
    "CopyChanges",
    "CopyDatabase",
    "CorruptionError",
    "Environment",
    "Environments",
    "RemoveDatabase",
    "Sizes",
    "StageFlush",
    "View",
    "dump",
    "install",
    "open_backend",
    "open_view",
    "rewrite",
]
