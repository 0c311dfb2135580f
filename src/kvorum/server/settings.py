"""What a server is told beside what its member is, and how it follows from the flags."""

from dataclasses import dataclass

from kvorum.settings.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The options of a server."""

    operations_max: int
    """Operations of one transaction."""
    slow_apply_seconds: float
    slow_request_seconds: float
    advance_ticks: bool
    """Whether most of the first election timeout passes as soon as others are reached."""
    cors: tuple[str, ...]
    host_whitelist: tuple[str, ...]


def server_settings(config: Config) -> ServerSettings:
    """Return what the flags say."""
    return ServerSettings(
        operations_max=config.txn_operations_max,
        slow_apply_seconds=config.slow_apply_seconds,
        slow_request_seconds=config.slow_request_seconds,
        advance_ticks=config.advance_ticks,
        cors=config.cors,
        host_whitelist=config.host_whitelist,
    )
