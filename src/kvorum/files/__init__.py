"""The seam between the core and files: the interface and its two implementations.

`kvorum.files.real` is the machine's own file system and the only module here that may access it;
deterministic packages never import it. `kvorum.files.memory` is a disk for tests and simulation,
which reports every call, fails on request and loses power.
"""

from kvorum.files.interface import Files, Opening
from kvorum.files.purge import Purge

__all__ = ["Files", "Opening", "Purge"]
