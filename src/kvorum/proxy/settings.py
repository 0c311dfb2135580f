"""What the flags of the gRPC proxy decide, and the limits that none of them changes."""

from dataclasses import dataclass
from math import inf
from typing import Final

from kvorum.client.endpoints import Address
from kvorum.edge.upstream import UpstreamTls
from kvorum.rpc.table import METADATA_KEYS, METHODS, TRACE_KEYS

EDGE_METHODS: Final = METHODS
"""The methods that the edge of a proxy is opened with."""
EDGE_METADATA_KEYS: Final = (*METADATA_KEYS, *TRACE_KEYS)
"""The keys of metadata that the edge passes on, and that members get as they came."""

CALLS_PER_TURN: Final = 1000
BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""How much is taken from either side for a turn."""
CALLS_IN_FLIGHT_MAX: Final = 100_000
BYTES_IN_FLIGHT_MAX: Final = 256 * 1024 * 1024
"""Unary calls, and bytes of their requests, that members have not answered. A turn that begins with
more refuses what it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The options of a proxy."""

    endpoints: tuple[Address, ...]
    upstream_tls: UpstreamTls | None = None
    """For members that are spoken to by TLS; without a server name, each one's host counts."""
    sync_seconds: float = inf
    """How often the endpoints are replaced by what the cluster says they are."""
    namespace: bytes = b""
    """What stands before every key at the members, and is not seen by clients."""
    advertise_client_url: str = ""
    """What the list of members names; empty: the list of the cluster is passed on."""
    resolver_prefix: str = ""
    resolver_ttl_seconds: int = 0
    """Where this proxy is registered, and how long that lasts without it; empty: nowhere."""
    host_name: str = ""
    """What it is called in the list of members."""
    send_bytes_max: int = 2**31 - 1
    """The largest request that is passed on."""
    cache_bytes_max: int = 64 * 1024 * 1024
    """What answers to serializable reads may take up; 0: none are kept."""
    is_ordering: bool = False
    """Whether no answer is older than any that was given before, whoever it was given to."""
