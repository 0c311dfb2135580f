"""The compiled core: the hot modules as one extension, built by mypyc from these very sources.

The sources run wherever the extension is missing, was built from other sources, or is not wanted.
KVORUM_COMPILED decides: `0` runs the sources, `1` makes a missing or stale extension an error, and
unset, the extension runs if it fits the sources. It is in a directory named by the hash of what it
was built from, so that a stale one is never found.
"""

import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

MODULES = (
    "kvorum.api.codec",
    "kvorum.api.histograms",
    "kvorum.api.requests",
    "kvorum.api.responses",
    "kvorum.auth.ranges",
    "kvorum.auth.store",
    "kvorum.backend.backend",
    "kvorum.backend.batch",
    "kvorum.backend.bbolt.reading",
    "kvorum.backend.bbolt.writing",
    "kvorum.backend.cache",
    "kvorum.backend.encoding",
    "kvorum.backend.images",
    "kvorum.backend.transfer",
    "kvorum.backend.view",
    "kvorum.gateway.assembly",
    "kvorum.gateway.calls",
    "kvorum.gateway.decoding",
    "kvorum.gateway.encoding",
    "kvorum.gateway.http",
    "kvorum.gateway.json_values",
    "kvorum.gateway.literals",
    "kvorum.gateway.metadata",
    "kvorum.lease.lessor",
    "kvorum.member.alarms",
    "kvorum.member.apply",
    "kvorum.member.callers",
    "kvorum.member.duties",
    "kvorum.member.execution",
    "kvorum.member.figures",
    "kvorum.member.flushing",
    "kvorum.member.identities",
    "kvorum.member.logwriter",
    "kvorum.member.longreads",
    "kvorum.member.member",
    "kvorum.member.outbox",
    "kvorum.member.permissions",
    "kvorum.member.procedures",
    "kvorum.member.proposals",
    "kvorum.member.ranges",
    "kvorum.member.reads",
    "kvorum.member.requests",
    "kvorum.member.serving",
    "kvorum.member.stepping",
    "kvorum.member.transactions",
    "kvorum.mvcc.history",
    "kvorum.mvcc.index",
    "kvorum.mvcc.keyvalue",
    "kvorum.mvcc.ranges",
    "kvorum.mvcc.restore",
    "kvorum.mvcc.sortedkeys",
    "kvorum.mvcc.store",
    "kvorum.mvcc.transaction",
    "kvorum.mvcc.watch.figures",
    "kvorum.mvcc.watch.hub",
    "kvorum.peer.cluster.peering",
    "kvorum.peer.transport.addresses",
    "kvorum.peer.transport.figures",
    "kvorum.peer.transport.frames",
    "kvorum.peer.transport.peer",
    "kvorum.peer.transport.pipeline",
    "kvorum.peer.transport.shared",
    "kvorum.peer.transport.streams",
    "kvorum.peer.transport.transport",
    "kvorum.process.loop",
    "kvorum.raft.core",
    "kvorum.raft.entries",
    "kvorum.raft.follower",
    "kvorum.raft.inflights",
    "kvorum.raft.leader",
    "kvorum.raft.log",
    "kvorum.raft.progress",
    "kvorum.raft.quorum",
    "kvorum.raft.rawnode",
    "kvorum.raft.read_only",
    "kvorum.raft.reads",
    "kvorum.raft.replication",
    "kvorum.raft.tracker",
    "kvorum.raft.unstable",
    "kvorum.raft.wire",
    "kvorum.rpc.admission",
    "kvorum.rpc.checks",
    "kvorum.rpc.kv",
    "kvorum.rpc.services",
    "kvorum.server.ending",
    "kvorum.server.inflight",
    "kvorum.server.jobs",
    "kvorum.server.server",
    "kvorum.telemetry.access",
    "kvorum.telemetry.counting",
    "kvorum.telemetry.milestones",
    "kvorum.wal.framing",
    "kvorum.wal.log",
)
"""The compiled modules. Nothing outside may replace their functions or derive from their classes,
and their annotations are checked when they run: a cast must be true."""

LIBRARY = "core__mypyc"
PACKAGE = Path(__file__).parents[1]


def source_hash(package: Path) -> str:
    """Hash every source of the rooms that have compiled modules.

    A compiled module contains constants of the modules it imports, so more than the listed ones
    matter.
    """
    digest = hashlib.sha256()
    for room in sorted({"compiled"} | {name.split(".")[1] for name in MODULES}):
        for path in sorted((package / room).rglob("*.py")):
            name = str(path.relative_to(package))
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


@cache
def library(package: Path) -> Path:
    """Return the path of the extension for these sources, whether it is built or not."""
    return package / "compiled" / source_hash(package) / (LIBRARY + EXTENSION_SUFFIXES[0])


@cache
def core_name() -> str:
    """Return which core runs, `compiled` or `python`; KVORUM_COMPILED forces one.

    Raises ImportError if the compiled core is forced, but there is none for these sources.
    """
    wanted = os.environ.get("KVORUM_COMPILED", "")
    if wanted not in ("", "0", "1"):
        raise ImportError(f"KVORUM_COMPILED is {wanted!r}; expected '0' or '1'")
    if wanted == "0":
        return "python"
    if library(PACKAGE).exists():
        return "compiled"
    if wanted == "1":
        raise ImportError(
            "KVORUM_COMPILED is '1', but no extension is built from these sources; "
            "run 'make setup', or leave it unset"
        )
    return "python"


class _Core(MetaPathFinder, Loader):
    """Finds the listed modules in the extension."""

    def __init__(self, path: Path) -> None:
        loader = ExtensionFileLoader(LIBRARY, str(path))
        spec = spec_from_file_location(LIBRARY, path, loader=loader)
        assert spec is not None
        self._library = module_from_spec(spec)
        loader.exec_module(self._library)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a listed module."""
        del path, target
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, origin=self._library.__file__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Call the module's init function, which the extension hands out in a capsule."""
        name = "init_" + spec.name.replace(".", "___")
        pointer = _capsule_pointer(getattr(self._library, name), f"{LIBRARY}.{name}".encode())
        module: ModuleType = ctypes.PYFUNCTYPE(ctypes.py_object)(pointer)()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: its body ran when it was created."""


def _capsule_pointer(capsule: object, name: bytes) -> int:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    pointer: int = get(capsule, name)
    return pointer


def install() -> None:
    """Load the listed modules from the extension from now on, if the compiled core is to run."""
    if core_name() == "compiled":
        sys.meta_path.insert(0, _Core(library(PACKAGE)))
