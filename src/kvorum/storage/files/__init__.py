"""The seam between the core and files: the interface and its two implementations.

`real` is the machine's own file system and the only module here that may access it; deterministic
packages never import it. `memory` is a disk for tests and simulation, which reports every call,
fails on request and loses power.
"""

from kvorum.storage.files.interface import Files, Opening
from kvorum.storage.files.purge import Purge

__all__ = ["Files", "Opening", "Purge"]
