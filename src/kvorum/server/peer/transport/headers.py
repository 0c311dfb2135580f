"""The headers by which peers identify themselves, and the checks that refuse requests.

A refusal has exactly etcd's text, because etcd members act upon it. Comparisons ignore the patch
version; a missing version counts as 2.0.0.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvorum.network.edge.interface import Headers
from kvorum.state.membership.urls import UrlError, checked_urls

MESSAGE_STREAM: Final = "/raft/stream/message"
APPEND_STREAM: Final = "/raft/stream/msgapp"
PIPELINE: Final = "/raft"
SNAPSHOT: Final = "/raft/snapshot"
COPY: Final = "/raft/snapshot/copy"
"""The path for a snapshot whose database is a copy of the sender's own file. Etcd and older
versions of Kvorum do not serve it: a member that one of them has replaced answers 404, and gets
etcd's format next."""
PROBING: Final = "/raft/probing"

PROTOBUF: Final = "application/protobuf"
OCTETS: Final = "application/octet-stream"

READ_HEADERS: Final = (
    "x-server-from",
    "x-server-version",
    "x-min-cluster-version",
    "x-etcd-cluster-id",
    "x-raft-to",
    "x-peerurls",
    "x-kvorum-copies",
    "authorization",
    "x-kvorum-user",
)
"""The request headers that peers use; the edge passes no others."""

_OLDEST: Final = (2, 0)
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})([-+][0-9A-Za-z.+-]+)?", re.ASCII)
_ID: Final = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Identity:
    """How a node identifies itself to others."""

    local_id: int
    cluster_id: int
    peer_urls: tuple[str, ...]
    server_version: str
    min_cluster_version: str = "3.0.0"
    copy_format: str = ""
    """The database format that the node accepts besides etcd's; empty if there is none."""


class Refusal(NamedTuple):
    """An answer other than success."""

    status: int
    text: str
    allow: str = ""
    """For 405: the allowed methods."""

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that go with the text."""
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        headers.append(("X-Content-Type-Options", "nosniff"))
        return [*headers, ("Allow", self.allow)] if self.allow else headers

    def body(self) -> bytes:
        """Return the text as a line."""
        return self.text.encode() + b"\n"


NOT_FOUND: Final = Refusal(404, "404 page not found")
INCOMPATIBLE_VERSION: Final = Refusal(412, "incompatible version")
CLUSTER_MISMATCH: Final = Refusal(412, "cluster ID mismatch")
WRONG_RECEIVER: Final = Refusal(412, "to field mismatch")
INVALID_PATH: Final = Refusal(404, "invalid path")
INVALID_SENDER: Final = Refusal(404, "invalid from")
SENDER_UNKNOWN: Final = Refusal(404, "error sender not found")
SENDER_REMOVED: Final = Refusal(410, "removed member")
UNREADABLE: Final = Refusal(400, "error unmarshalling raft message")
UNACCEPTABLE: Final = Refusal(500, "error processing raft message")
WRONG_TYPE: Final = Refusal(400, "wrong raft message type")
TOO_LARGE: Final = Refusal(413, "request body too large")
BUSY: Final = Refusal(503, "too many requests are being received, try again later")


def wrong_method(allowed: str) -> Refusal:
    """Return the refusal of any method but one."""
    return Refusal(405, "Method Not Allowed", allowed)


def parse_id(text: str) -> int | None:
    """Return the id of a node; None if it is invalid."""
    return int(text, 16) if _ID.fullmatch(text) else None


def parse_level(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version; (2, 0) if it is missing, None if it is invalid."""
    if not text:
        return _OLDEST
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def parse_urls(text: str) -> tuple[str, ...] | None:
    """Return the addresses in a peer's headers; None if one of them is invalid."""
    try:
        return checked_urls(text.split(","))
    except UrlError:
        return None


def request_headers(identity: Identity) -> list[tuple[str, str]]:
    """Return the headers of all requests of the transport except probes."""
    copies = [("X-Kvorum-Copies", identity.copy_format)] if identity.copy_format else []
    return [
        *copies,
        ("X-Server-From", f"{identity.local_id:x}"),
        ("X-Server-Version", identity.server_version),
        ("X-Min-Cluster-Version", identity.min_cluster_version),
        ("X-Etcd-Cluster-ID", f"{identity.cluster_id:x}"),
        ("X-PeerURLs", ",".join(identity.peer_urls)),
    ]


def check_sender(identity: Identity, headers: dict[str, str]) -> Refusal | None:
    """Return the refusal for an incompatible or foreign sender; header names are lower-case."""
    server = parse_level(headers.get("x-server-version", ""))
    minimum = parse_level(headers.get("x-min-cluster-version", ""))
    if not is_compatible(identity, server, minimum):
        return INCOMPATIBLE_VERSION
    if headers.get("x-etcd-cluster-id", "") != f"{identity.cluster_id:x}":
        return CLUSTER_MISMATCH
    return None


def is_compatible(
    identity: Identity, server: tuple[int, int] | None, minimum: tuple[int, int] | None
) -> bool:
    """Return whether a peer of these versions is compatible with this node."""
    own_server = parse_level(identity.server_version)
    own_minimum = parse_level(identity.min_cluster_version)
    assert own_server is not None and own_minimum is not None, identity
    if server is None or minimum is None:
        return False
    return server >= own_minimum and minimum <= own_server


def mismatch_hint(own: int, foreign: str) -> str:
    """Return advice for an operator whose nodes belong to different clusters."""
    return (
        f"it is of cluster {foreign[:16] or '(none)'}, this node of {own:x}: were both started "
        "with the same --initial-cluster-token and --initial-cluster?"
    )


def header(headers: Headers, name: str) -> str:
    """Return the first value of a header with lower-case name; empty if it is missing."""
    for each, value in headers:
        if each == name:
            return value
    return ""


def joined(headers: Headers) -> dict[str, str]:
    """Return the headers by name; the first of repeated headers counts."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name, value)
    return found
