"""The database of a member: LMDB behind a buffer that is flushed off the loop.

`Backend` is the whole of it for the rooms above: rows by revision, entries by bucket and name, and
the protocol that brings both to the disk together with the consistent index. Buckets, names and
encodings are etcd's. `kvorum.backend.real` is LMDB and `kvorum.backend.memory` its twin for tests
and simulation; both stand behind the seam `Environments`.
"""

from kvorum.backend.backend import Backend, Limits
from kvorum.backend.environment import Environment, Environments, Sizes
from kvorum.backend.errors import BackendError, CorruptionError
from kvorum.backend.flush import CommitFlush, StageFlush
from kvorum.backend.opening import open_backend
from kvorum.backend.view import View

__all__ = [
    "Backend",
    "BackendError",
    "CommitFlush",
    "CorruptionError",
    "Environment",
    "Environments",
    "Limits",
    "Sizes",
    "StageFlush",
    "View",
    "open_backend",
]
