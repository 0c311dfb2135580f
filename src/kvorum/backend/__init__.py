"""The database of a member: LMDB behind a buffer that is flushed off the loop.

`Backend` offers the packages above rows by revision, entries by bucket and name, and the protocol
that flushes both to the disk together with the consistent index. Buckets, names and encodings are
etcd's. `kvorum.backend.real` implements the seam `Environments` with LMDB, and
`kvorum.backend.memory` in memory for tests and simulation.
"""

from kvorum.backend.backend import Backend, Limits
from kvorum.backend.defragment import CatchUp, CopyDatabase, RemoveDatabase
from kvorum.backend.environment import Environment, Environments, Sizes
from kvorum.backend.errors import BackendError, CorruptionError
from kvorum.backend.flush import CommitFlush, StageFlush
from kvorum.backend.opening import open_backend, open_view, rewrite
from kvorum.backend.transfer import dump, install
from kvorum.backend.view import View

__all__ = [
    "Backend",
    "BackendError",
    "CatchUp",
    "CommitFlush",
    "CopyDatabase",
    "CorruptionError",
    "Environment",
    "Environments",
    "Limits",
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
