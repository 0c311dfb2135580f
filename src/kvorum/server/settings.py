"""The options of a server besides those of its member, derived from the flags."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvorum.network.edge import Limits
from kvorum.process.settings.config import GRPC_OVERHEAD_BYTES, Config
from kvorum.server.peer.cluster.peering import PeeringSettings as PeeringSettings
from kvorum.state.membership.documents import MemberDocument as Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The options of a server."""

    operations_max: int
    """How many operations a transaction may have."""
    slow_apply_seconds: float
    slow_request_seconds: float
    advance_ticks: bool
    """Whether to skip most of the first election timeout once another member is reached."""
    cors: tuple[str, ...]
    host_whitelist: tuple[str, ...]
    serves_json: bool
    """Whether to serve RPCs as JSON below `/v3/`."""
    message_bytes_max: int
    """The largest message of a call; gRPC has the same limit."""
    client_cert_identifies_user: bool
    """Whether client certificates identify users while authentication is enabled."""
    stops_for_defragmentation: bool
    """Whether gRPC's health service reports NOT_SERVING during a defragmentation."""
    keeps_nothing: bool = False
    """Whether the member is ephemeral, so that no process reads its files afterwards."""


def server_settings(config: Config) -> ServerSettings:
    """Derive the options from the flags."""
    return ServerSettings(
        operations_max=config.txn_operations_max,
        slow_apply_seconds=config.slow_apply_seconds,
        slow_request_seconds=config.slow_request_seconds,
        advance_ticks=config.advance_ticks,
        cors=config.cors,
        host_whitelist=config.host_whitelist,
        serves_json=config.serves_json,
        message_bytes_max=config.request_bytes_max + GRPC_OVERHEAD_BYTES,
        client_cert_identifies_user=config.client_cert_auth,
        stops_for_defragmentation=config.gates["StopGRPCServiceOnDefrag"],
        keeps_nothing=config.ephemeral,
    )


def edge_limits(config: Config) -> Limits:
    """Derive the limits of clients' connections from the flags."""
    return Limits(
        request_bytes_max=config.request_bytes_max + GRPC_OVERHEAD_BYTES,
        streams_per_connection_max=config.streams_max,
        ping_seconds_min=config.client_ping_seconds_min,
        keepalive_seconds=config.keepalive_seconds,
        keepalive_timeout_seconds=config.keepalive_timeout_seconds,
    )


def peering_settings(config: Config, known: Sequence[Peer]) -> PeeringSettings:
    """Derive the options of peering from the flags; `known` are the members known at the start."""
    return PeeringSettings(
        peer_urls=tuple(map(str, config.advertise_peer_urls)),
        known=known,
        read_seconds_max=config.peer_read_seconds,
        write_seconds_max=config.peer_write_seconds,
    )
