"""Choose the edge implementation: the Rust extension if it is built, pure Python otherwise."""

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvorum.network.edge.interface import (
    CIPHER_SUITES,
    COUNTERS,
    INCIDENTS,
    Edge,
    EdgeEventKind,
    Event,
    Headers,
    Incident,
    Limits,
    ListenerKind,
    Request,
    Serves,
    TlsSettings,
)
from kvorum.network.edge.upstream import Upstream, UpstreamSettings

if TYPE_CHECKING:
    from kvorum.network.edge import _native
    from kvorum.storage.backend.native import NativeRows
    from kvorum.storage.wal.skimming import Skim

__all__ = [
    "CIPHER_SUITES",
    "COUNTERS",
    "INCIDENTS",
    "Edge",
    "EdgeEventKind",
    "Event",
    "Headers",
    "Incident",
    "Limits",
    "ListenerKind",
    "Request",
    "Serves",
    "TlsSettings",
    "Upstream",
    "UpstreamSettings",
    "edge_name",
    "make_upstream",
    "native_key_values",
    "native_rows",
    "native_skim",
    "open_edge",
]

RUST = Path(__file__).parents[4] / "rust"


@cache
def source_hash(rust: Path) -> str:
    """Return the hash of the extension's sources, computed as in `rust/build.rs`."""
    names = ["Cargo.lock", "Cargo.toml", "build.rs", "storage/Cargo.toml"]
    for directory in ("src", "storage/src"):
        names += [str(path.relative_to(rust)) for path in (rust / directory).rglob("*.rs")]
    digest = hashlib.sha256()
    for name in sorted(names, key=lambda name: Path(name).parts):
        digest.update(name.encode() + b"\0" + (rust / name).read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _hash_here(rust: Path) -> str:
    """Return the hash of this checkout's sources; cached, as a process may open many edges."""
    return source_hash(rust)


def edge_name() -> str:
    """Return the edge in use, `native` or `python`; the variable KVORUM_EDGE forces one.

    Raises ImportError if the native edge is forced but not built, or was built from other sources
    than those of its checkout.
    """
    wanted = os.environ.get("KVORUM_EDGE", "")
    if wanted not in ("", "native", "python"):
        raise ImportError(f"KVORUM_EDGE is {wanted!r}; expected 'native' or 'python'")
    if wanted == "python":
        return "python"
    if find_spec("kvorum.network.edge._native") is None:
        if wanted == "native":
            raise ImportError("KVORUM_EDGE is 'native', but the extension is not built; see README")
        return "python"
    from kvorum.network.edge import _native

    if (RUST / "Cargo.toml").exists() and _hash_here(RUST) != _native.SOURCE_HASH:
        raise ImportError(
            f"{_native.__file__} was built from other sources than {RUST}; run 'make setup', "
            "or set KVORUM_EDGE=python"
        )
    return "native"


WriteKeyValues = Callable[[bytes, int, int, int], tuple[bytes, int]]
"""Writes the values of a repeated `mvccpb.KeyValue` field of an encoded message as JSON.

Arguments: the message, the offset to start at, the offset where the message ends, the field's tag.
The function writes canonically encoded values, separated by commas, and stops before the first
other one. It returns the text and the offset where it stopped."""


def native_rows() -> "NativeRows | None":
    """Return the native functions over database rows; None with the pure-Python edge."""
    if edge_name() != "native":
        return None
    from kvorum.network.edge import _native

    return _native


def native_skim() -> "Skim | None":
    """Return the native function that skips checked log records; None with the pure-Python edge."""
    if edge_name() != "native":
        return None
    from kvorum.network.edge import _native

    return _native.skim_records


def native_key_values() -> WriteKeyValues | None:
    """Return the native function that writes keys as JSON; None with the pure-Python edge."""
    if edge_name() != "native":
        return None
    from kvorum.network.edge import _native

    return _native.key_values_json


def open_edge(
    methods: Sequence[tuple[str, bool]],
    metadata_keys: Sequence[str] = (),
    limits: Limits | None = None,
    http_headers: Sequence[str] = (),
) -> Edge:
    """Open an edge that serves these RPCs, given as (path, is streaming).

    A method's number is its index in the sequence. The edge reports only the metadata keys and HTTP
    headers named here. A header name may end in a star: `x-*` stands for every header that begins
    with `x-`.
    """
    limits = limits or Limits()
    if edge_name() == "native":
        from kvorum.network.edge._native import NativeEdge

        edge = NativeEdge(methods, metadata_keys, limits, http_headers)
        _open.add(edge)
        return edge
    from kvorum.network.edge.pure import PureEdge

    return PureEdge(methods, metadata_keys, limits, http_headers)


def make_upstream(settings: UpstreamSettings | None = None, edge: Edge | None = None) -> Upstream:
    """Make an upstream, which calls other servers; it has no connection yet.

    Given an edge, which must be open and must be stopped before the upstream, the two may share a
    thread, and `Upstream.relay` may forward the edge's calls.
    """
    settings = settings or UpstreamSettings()
    if edge_name() == "native":
        from kvorum.network.edge import _native

        native = edge if isinstance(edge, _native.NativeEdge) else None
        upstream = _native.Upstream(settings, native)
        _open.add(upstream)
        return upstream
    from kvorum.network.edge.pure.upstream import PureUpstream

    return PureUpstream(settings)


_open: "weakref.WeakSet[_native.NativeEdge | _native.Upstream]" = weakref.WeakSet()
"""Native edges and upstreams that may have sockets; after a fork these belong to the parent."""
_forking = threading.local()


def _before_fork() -> None:
    # Other threads may change `_open` during the fork; the handlers below need the same objects.
    _forking.edges = list(_open)
    for edge in _forking.edges:
        edge.before_fork()


def _after_fork_in_parent() -> None:
    for edge in _forking.edges:
        edge.after_fork_in_parent()
    _forking.edges = []


def _after_fork_in_child() -> None:
    for edge in _forking.edges:
        edge.after_fork_in_child()
    _forking.edges = []


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
