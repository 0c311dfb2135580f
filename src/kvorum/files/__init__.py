"""The seam through which the core reaches files: the interface, and two sorts of disks behind it.

`kvorum.files.real` is the machine's own file system and the only module here that may touch it;
the deterministic rooms never import it. `kvorum.files.memory` is a disk for tests and
simulation, which records every call, fails on request and loses power.
"""

from kvorum.files.interface import Files, Opening
from kvorum.files.purge import Purge

__all__ = ["Files", "Opening", "Purge"]
