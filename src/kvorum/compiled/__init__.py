"""The compiled core: mypyc builds the hot modules as one extension from these same sources.

The Python sources run wherever the extension is missing, was built from other sources, or is not
wanted. KVORUM_COMPILED decides: `0` runs the sources, `1` makes a missing or stale extension an
error, and if it is unset, the extension runs if it fits the sources. The extension is in a
directory named by the hash of its sources, so a stale one is never found.

Nothing is hashed or loaded before one of these modules is imported. A program that only uses the
client imports none of them.
"""

from __future__ import annotations

import os
import sys

# Defined here, so that short-lived programs need not import typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MODULES = (
    "kvorum.api.codec",
    "kvorum.api.histograms",
    "kvorum.api.limits",
    "kvorum.api.requests",
    "kvorum.api.responses",
    "kvorum.state.auth.ranges",
    "kvorum.state.auth.store",
    "kvorum.storage.backend.backend",
    "kvorum.storage.backend.batch",
    "kvorum.storage.backend.bbolt.reading",
    "kvorum.storage.backend.bbolt.writing",
    "kvorum.storage.backend.cache",
    "kvorum.storage.backend.encoding",
    "kvorum.storage.backend.images",
    "kvorum.storage.backend.transfer",
    "kvorum.storage.backend.view",
    "kvorum.server.http.assembly",
    "kvorum.server.http.bodies",
    "kvorum.server.http.calls",
    "kvorum.server.http.decoding",
    "kvorum.server.http.encoding",
    "kvorum.server.http.http",
    "kvorum.server.http.json_values",
    "kvorum.server.http.literals",
    "kvorum.server.http.metadata",
    "kvorum.state.lease.lessor",
    "kvorum.state.apply.alarms",
    "kvorum.member.apply",
    "kvorum.member.message_checks",
    "kvorum.state.apply.callers",
    "kvorum.state.apply.compares",
    "kvorum.member.duties",
    "kvorum.state.apply.execution",
    "kvorum.member.counters",
    "kvorum.member.flushing",
    "kvorum.member.identities",
    "kvorum.member.logwriter",
    "kvorum.member.longreads",
    "kvorum.member.member",
    "kvorum.member.outbox",
    "kvorum.state.apply.permissions",
    "kvorum.member.procedures",
    "kvorum.member.proposals",
    "kvorum.state.apply.ranges",
    "kvorum.member.reads",
    "kvorum.member.replica",
    "kvorum.state.apply.requests",
    "kvorum.member.serving",
    "kvorum.member.procedure_driver",
    "kvorum.member.succession",
    "kvorum.state.apply.state",
    "kvorum.state.apply.transactions",
    "kvorum.state.mvcc.history",
    "kvorum.state.mvcc.index",
    "kvorum.state.mvcc.keyvalue",
    "kvorum.state.mvcc.ranges",
    "kvorum.state.mvcc.restore",
    "kvorum.state.mvcc.sortedkeys",
    "kvorum.state.mvcc.store",
    "kvorum.state.mvcc.transaction",
    "kvorum.state.mvcc.key_changes",
    "kvorum.state.mvcc.watch.batch",
    "kvorum.state.mvcc.watch.counters",
    "kvorum.state.mvcc.watch.hub",
    "kvorum.state.mvcc.watch.matching",
    "kvorum.state.mvcc.watch.stream",
    "kvorum.state.mvcc.watch.watcher",
    "kvorum.server.peer.cluster.peering",
    "kvorum.server.peer.transport.addresses",
    "kvorum.server.peer.transport.counters",
    "kvorum.server.peer.transport.frames",
    "kvorum.server.peer.transport.peer",
    "kvorum.server.peer.transport.pipeline",
    "kvorum.server.peer.transport.shared",
    "kvorum.server.peer.transport.streams",
    "kvorum.server.peer.transport.transport",
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
    "kvorum.server.rpc.admission",
    "kvorum.server.rpc.checks",
    "kvorum.server.rpc.keepalives",
    "kvorum.server.rpc.kv",
    "kvorum.server.rpc.services",
    "kvorum.server.shutdown",
    "kvorum.server.inflight",
    "kvorum.server.jobs",
    "kvorum.server.server",
    "kvorum.server.telemetry.access",
    "kvorum.server.telemetry.counting",
    "kvorum.server.telemetry.milestones",
    "kvorum.storage.wal.framing",
    "kvorum.storage.wal.log",
)
"""The compiled modules. Code outside must not replace their functions or derive from their classes.
Their annotations are checked at run time, so a cast must be true."""

_NAMES = frozenset(MODULES)


def core_wanted() -> str:
    """Return the value of KVORUM_COMPILED: `0`, `1`, or empty."""
    named = os.environ.get("KVORUM_COMPILED", "")
    if named not in ("", "0", "1"):
        raise ImportError(f"KVORUM_COMPILED is {named!r}; expected '0' or '1'")
    return named


class _Finder:
    """Finds the listed modules in the extension, once the first of them is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a listed module; None if the sources run."""
        if fullname not in _NAMES:
            return None
        # The import lock of this module keeps threads from loading the extension twice.
        from kvorum.compiled.loading import CORE

        return None if CORE is None else CORE.find_spec(fullname, path, target)


def install() -> None:
    """From now on load the listed modules from the extension, if the compiled core is to run."""
    if core_wanted() != "0":
        sys.meta_path.insert(0, _Finder())
