"""The network's Python face: the native one where it is built, the pure-Python one otherwise."""

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvorum.edge.interface import (
    CIPHER_SUITES,
    COUNTERS,
    INCIDENTS,
    Edge,
    Event,
    EventKind,
    Headers,
    Incident,
    Limits,
    ListenerKind,
    Request,
    Serves,
    TlsSettings,
)
from kvorum.edge.upstream import Upstream, UpstreamSettings

if TYPE_CHECKING:
    from kvorum.backend.native import NativeRows
    from kvorum.edge import _native
    from kvorum.wal.skimming import Skim

__all__ = [
    "CIPHER_SUITES",
    "COUNTERS",
    "INCIDENTS",
    "Edge",
    "Event",
    "EventKind",
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

RUST = Path(__file__).parents[3] / "rust"


@cache
def source_hash(rust: Path) -> str:
    """Hash the sources of the extension the way `rust/build.rs` does, once for a process."""
    names = ["Cargo.lock", "Cargo.toml", "build.rs"]
    names += [str(path.relative_to(rust)) for path in (rust / "src").rglob("*.rs")]
    digest = hashlib.sha256()
    for name in sorted(names, key=lambda name: Path(name).parts):
        digest.update(name.encode() + b"\0" + (rust / name).read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _hash_here(rust: Path) -> str:
    """Hash the sources of this checkout, once: a process may open many edges."""
    return source_hash(rust)


def edge_name() -> str:
    """Return which edge serves here, `native` or `python`; KVORUM_EDGE forces one.

    Raises ImportError where the native edge is wanted but missing, or does not fit the
    sources of the checkout it is in.
    """
    wanted = os.environ.get("KVORUM_EDGE", "")
    if wanted not in ("", "native", "python"):
        raise ImportError(f"KVORUM_EDGE is {wanted!r}; expected 'native' or 'python'")
    if wanted == "python":
        return "python"
    if find_spec("kvorum.edge._native") is None:
        if wanted == "native":
            raise ImportError("KVORUM_EDGE is 'native', but the extension is not built; see README")
        return "python"
    from kvorum.edge import _native

    if (RUST / "Cargo.toml").exists() and _hash_here(RUST) != _native.SOURCE_HASH:
        raise ImportError(
            f"{_native.__file__} was built from other sources than {RUST}; run 'make setup', "
            "or set KVORUM_EDGE=python"
        )
    return "native"


WriteKeyValues = Callable[[bytes, int, int, int], tuple[bytes, int]]
"""Given bytes of a message, writes the values of a field of `mvccpb.KeyValue`s as JSON.

Takes an offset, where the message ends, and the field's tag. Writes canonical values, with commas
between them, and stops before any other; returns the text and where it stopped."""


def native_rows() -> "NativeRows | None":
    """Return the compiled functions over rows of the database; None where the pure edge serves."""
    if edge_name() != "native":
        return None
    from kvorum.edge import _native

    return _native


def native_skim() -> "Skim | None":
    """Return the compiled function that passes records of the log; None where there is none."""
    if edge_name() != "native":
        return None
    from kvorum.edge import _native

    return _native.skim_records


def native_key_values() -> WriteKeyValues | None:
    """Return the compiled function that writes keys as JSON; None where the pure edge serves."""
    if edge_name() != "native":
        return None
    from kvorum.edge import _native

    return _native.key_values_json


def open_edge(
    methods: Sequence[tuple[str, bool]],
    metadata_keys: Sequence[str] = (),
    limits: Limits | None = None,
    http_headers: Sequence[str] = (),
) -> Edge:
    """Open an edge that serves these RPCs, given as (path, is streaming).

    A method's number is its place in the sequence. Metadata of other keys than the given
    ones is not reported, nor are other headers of HTTP requests. The name of a header may end in a
    star: `x-*` stands for every header that begins with `x-`.
    """
    limits = limits or Limits()
    if edge_name() == "native":
        from kvorum.edge._native import NativeEdge

        edge = NativeEdge(methods, metadata_keys, limits, http_headers)
        _open.add(edge)
        return edge
    from kvorum.edge.pure import PureEdge

    return PureEdge(methods, metadata_keys, limits, http_headers)


def make_upstream(settings: UpstreamSettings | None = None, edge: Edge | None = None) -> Upstream:
    """Make the calling side, which has no connection yet.

    With an edge, which must be open and is to be stopped first, the two may share a thread, and
    calls be passed on by `Upstream.relay`.
    """
    settings = settings or UpstreamSettings()
    if edge_name() == "native":
        from kvorum.edge import _native

        native = edge if isinstance(edge, _native.NativeEdge) else None
        upstream = _native.Upstream(settings, native)
        _open.add(upstream)
        return upstream
    from kvorum.edge.pure.upstream import PureUpstream

    return PureUpstream(settings)


_open: "weakref.WeakSet[_native.NativeEdge | _native.Upstream]" = weakref.WeakSet()
"""Those that may have sockets, which a fork leaves to the parent."""
_forking = threading.local()


def _before_fork() -> None:
    # The same ones are told afterwards, whatever other threads do meanwhile.
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
