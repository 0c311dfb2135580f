"""The options of a server that are not its member's, and how they follow from the flags."""

from dataclasses import dataclass

from kvorum.settings.config import GRPC_OVERHEAD_BYTES, Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The options."""

    operations_max: int
    """How many operations a transaction may have."""
    slow_apply_seconds: float
    slow_request_seconds: float
    advance_ticks: bool
    """Whether most of the first election timeout is skipped once other members are reached."""
    cors: tuple[str, ...]
    host_whitelist: tuple[str, ...]
    serves_json: bool
    """Whether RPCs are served as JSON below `/v3/`."""
    message_bytes_max: int
    """The largest message of a call, as it is set for gRPC."""
    certificates_count: bool
    """Whether a client's certificate says who it is, while authentication is enabled."""
    stops_for_defragmentation: bool
    """Whether gRPC's health service says that nothing is served while the database is
    defragmented."""


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
        certificates_count=config.client_cert_auth,
        stops_for_defragmentation=config.gates["StopGRPCServiceOnDefrag"],
    )
