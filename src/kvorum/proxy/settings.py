"""The gRPC proxy's options, and its limits that no flag changes."""

from dataclasses import dataclass
from math import inf
from typing import Final

from kvorum.client.endpoints import Address
from kvorum.network.edge.upstream import UpstreamTls
from kvorum.server.rpc.table import METADATA_KEYS, METHODS, TRACE_KEYS

EDGE_METHODS: Final = METHODS
"""The methods with which a proxy opens its edge."""
EDGE_METADATA_KEYS: Final = (*METADATA_KEYS, *TRACE_KEYS)
"""The metadata keys that the proxy receives from clients and forwards unchanged to members."""

CALLS_PER_TURN: Final = 1000
BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""Calls and bytes that a turn takes from either side."""
CALLS_IN_FLIGHT_MAX: Final = 100_000
BYTES_IN_FLIGHT_MAX: Final = 256 * 1024 * 1024
"""Unary calls, and bytes of their requests, that members have not answered. A turn that starts at
either limit refuses its new unary calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The options of a proxy."""

    endpoints: tuple[Address, ...]
    upstream_tls: UpstreamTls | None = None
    """For connections to members over TLS; without a server name, each certificate must be for the
    member's host."""
    sync_seconds: float = inf
    """Interval at which the proxy replaces its endpoints by those in the cluster's member list."""
    namespace: bytes = b""
    """The prefix of every key at the members, which clients do not see."""
    advertise_client_url: str = ""
    """The URL that MemberList returns; empty: MemberList is forwarded to the cluster."""
    resolver_prefix: str = ""
    resolver_ttl_seconds: int = 0
    """The prefix of this proxy's registration key, and the TTL of its lease; empty: no
    registration."""
    host_name: str = ""
    """The proxy's name in the list of members."""
    send_bytes_max: int = 2**31 - 1
    """The largest request that the proxy forwards."""
    cache_bytes_max: int = 64 * 1024 * 1024
    """The memory for cached answers to serializable reads; 0: no cache."""
    is_ordering: bool = False
    """Whether reads never return an older revision than an earlier answer to any client."""
