"""Makes a checked `Config` from the flags that were given.

Checks come in etcd's order with etcd's words where etcd has the check.
"""

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvorum.auth.passwords import COST_MAX, COST_MIN
from kvorum.net.security import Security, check_security, is_secure
from kvorum.net.urls import Url, is_ip, split_host_port, url
from kvorum.settings.config import ROWS, Config, ConfigError
from kvorum.settings.flags import MISSING

ELECTION_MILLISECONDS_MAX = 50_000
PEER_SECONDS_MIN = 5.0
"""Streams between members are not given up sooner; their heartbeats come every 5/3 seconds."""

BCRYPT_COST = Config().bcrypt_cost
"""Used instead of a cost that bcrypt does not have."""


def is_bcrypt_cost(cost: int) -> bool:
    """Return whether passwords can be hashed at this cost; if not, the default is used."""
    return COST_MIN <= cost <= COST_MAX


def make_config(given: Mapping[str, object], *, is_file: bool = False) -> Config:
    """Return the configuration for the flags that were given, by name; raise ConfigError.

    A file's keys are flags that were given, too, but some defaults depend on where they stand.
    """
    _refuse_missing(given)
    config = _complete(fill(given), given)
    _check(config, given, is_file=is_file)
    return config


def fill(given: Mapping[str, object]) -> Config:
    """Return the configuration with the flags that were given, whether or not they fit."""
    found: dict[str, Any] = {
        field: flag.meaning(given[flag.name]) for field, flag in ROWS.items() if flag.name in given
    }
    return Config(**found)


def _refuse_missing(given: Mapping[str, object]) -> None:
    for flag in MISSING:
        default = flag.kind.parse(flag.default)
        if given.get(flag.name, default) != default:
            raise ConfigError(
                f"--{flag.name}: {flag.missing} is not supported by this version; "
                f"leave the flag out, or at its default {flag.default!r}"
            )


def _complete(config: Config, given: Mapping[str, object]) -> Config:
    """Fill in what etcd derives from other flags, such as a host for 0.0.0.0."""
    default = Config()
    peer_urls, client_urls = config.advertise_peer_urls, config.advertise_client_urls
    if peer_urls == default.advertise_peer_urls:
        peer_urls = _reachable(config.listen_peer_urls) or peer_urls
    if client_urls == default.advertise_client_urls:
        client_urls = _reachable(config.listen_client_urls) or client_urls
    initial_cluster = config.initial_cluster
    if config.name != default.name and initial_cluster == default.initial_cluster:
        initial_cluster = ",".join(f"{config.name}={one}" for one in peer_urls)
    return replace(
        config,
        data_directory=config.data_directory or f"{config.name}.etcd",
        advertise_peer_urls=peer_urls,
        advertise_client_urls=client_urls,
        initial_cluster=initial_cluster,
        peer_read_seconds=max(config.peer_read_seconds, PEER_SECONDS_MIN),
        peer_write_seconds=max(config.peer_write_seconds, PEER_SECONDS_MIN),
        bcrypt_cost=config.bcrypt_cost if is_bcrypt_cost(config.bcrypt_cost) else BCRYPT_COST,
        log_format=config.log_format if "log-format" in given else "",
    )


def _reachable(listened: tuple[Url, ...]) -> tuple[Url, ...]:
    """Return where others reach a member that listens at 0.0.0.0; nothing if it does not."""
    if not listened or listened[0].hostname != "0.0.0.0":  # noqa: S104
        return ()
    host = default_host()
    if host is None:
        return ()
    first = listened[0]
    return (url(f"{first.scheme}://{host}:{split_host_port(first.host)[1]}"),)


def default_host() -> str | None:
    """Return the source address of packets to the default route; None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only looks up the route.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
        return host


def _check(config: Config, given: Mapping[str, object], *, is_file: bool) -> None:
    _check_urls(config)
    if config.initial_cluster_state not in ("new", "existing"):
        raise ConfigError(f'unexpected clusterState "{config.initial_cluster_state}"')
    _check_times(config)
    is_forgotten = "listen-client-urls" in given and "advertise-client-urls" not in given
    if is_forgotten and not is_file:
        raise ConfigError(
            "--advertise-client-urls is required when --listen-client-urls is set explicitly"
        )
    if config.compaction_mode not in ("periodic", "revision"):
        raise ConfigError(f'unknown auto-compaction-mode "{config.compaction_mode}"')
    if config.compact_hash_check_seconds <= 0:
        raise ConfigError("--compact-hash-check-time must be >0 (set to 0s)")
    gates = config.gates
    if gates["LeaseCheckpointPersist"] and not gates["LeaseCheckpoint"]:
        raise ConfigError("feature gate LeaseCheckpointPersist needs LeaseCheckpoint")
    _check_security(config)
    # Raises if it cannot be parsed.
    _ = config.compaction_retention


def _check_urls(config: Config) -> None:
    listened = (
        config.listen_peer_urls,
        config.listen_client_urls,
        config.listen_client_http_urls,
        config.listen_metrics_urls,
    )
    for urls in listened:
        for one in urls:
            _check_bind(one)
    addresses = {one.address for one in config.listen_client_urls}
    for one in config.listen_client_http_urls:
        if one.address in addresses:
            raise ConfigError(
                "cannot bind both --listen-client-urls and --listen-client-http-urls on the same "
                f"url {one}"
            )
    sockets = ' in the format "host:port", "unix:/path/to/socket" or "unixs:/path/to/socket"'
    for name, urls, form in (
        ("initial-advertise-peer-urls", config.advertise_peer_urls, ' "host:port"'),
        ("advertise-client-urls", config.advertise_client_urls, sockets),
    ):
        for one in urls:
            if one.scheme.startswith("http") and not one.hostname:
                raise ConfigError(f'--{name} "{one}" must be{form} (unexpected empty host ({one}))')


def _check_bind(one: Url) -> None:
    if one.scheme.startswith("unix"):
        return
    if one.hostname != "localhost" and not is_ip(one.hostname):
        raise ConfigError(f"expected IP in URL for binding ({one})")


def _check_times(config: Config) -> None:
    heartbeat, election = config.heartbeat_milliseconds, config.election_milliseconds
    if not heartbeat:
        raise ConfigError(f"--heartbeat-interval must be >0 (set to {heartbeat}ms)")
    if not election:
        raise ConfigError(f"--election-timeout must be >0 (set to {election}ms)")
    if 5 * heartbeat > election:
        raise ConfigError(
            f"--election-timeout[{election}ms] should be at least as 5 times as "
            f"--heartbeat-interval[{heartbeat}ms]"
        )
    if election > ELECTION_MILLISECONDS_MAX:
        raise ConfigError(
            f"--election-timeout[{election}ms] is too long, "
            f"and should be set less than {ELECTION_MILLISECONDS_MAX}ms"
        )


def _check_security(config: Config) -> None:
    security = _checked(config.peer_security, "peer-")
    for one in config.listen_peer_urls:
        if is_secure(one) and not (security.has_certificate or security.uses_own):
            raise ConfigError(
                f"cannot listen on TLS for {one}: KeyFile and CertFile are not presented "
                "(--peer-cert-file, --peer-key-file, or --peer-auto-tls)"
            )
    security = _checked(config.client_security, "")
    for kind, urls in (
        ("client", (*config.listen_client_urls, *config.listen_client_http_urls)),
        ("metrics", config.listen_metrics_urls),
    ):
        for one in urls:
            if is_secure(one) and not (security.has_certificate or security.uses_own):
                raise ConfigError(
                    "TLS key/cert (--cert-file, --key-file) must be provided for "
                    f"{kind} url {one} with HTTPS scheme"
                )


def _checked(security: Security, prefix: str) -> Security:
    try:
        check_security(security, prefix)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return security
