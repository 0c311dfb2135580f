"""Makes a checked `Config` from the given flags.

The checks that etcd has come in etcd's order and with etcd's texts.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from kvorum.api.durations import SECOND, duration_text
from kvorum.network.tls.security import Security, check_security, check_versions, is_secure
from kvorum.network.urls import Url, is_ip, split_host_port, url
from kvorum.process.settings.config import ROWS, Config, ConfigError
from kvorum.state.auth.passwords import COST_MAX, COST_MIN

ELECTION_MILLISECONDS_MAX = 50_000
ADVERTISE_FORGOTTEN = (
    "--advertise-client-urls is required when --listen-client-urls is set explicitly"
)
PEER_SECONDS_MIN = 5.0
"""Shortest read and write timeout of streams between members; their heartbeats come every 5/3
seconds."""

SAMPLING_RATE_MAX = 1_000_000
"""The sampling rate at which every request is traced."""

BCRYPT_COST = Config().bcrypt_cost
"""The cost that replaces one outside bcrypt's range."""


def is_bcrypt_cost(cost: int) -> bool:
    """Return whether bcrypt supports this cost."""
    return COST_MIN <= cost <= COST_MAX


def make_config(given: Mapping[str, object]) -> Config:
    """Return the checked configuration for the given flags; raise ConfigError for a mistake."""
    config = settle(given)
    check(config, given)
    return config


def settle(given: Mapping[str, object]) -> Config:
    """Return the configuration with derived values, without checking it."""
    return _complete(fill(given), given)


def check(config: Config, given: Mapping[str, object]) -> None:
    """Raise ConfigError for the first mistake in etcd's order, except those of `LATER_CHECKS`."""
    for one in CHECKS:
        one(config, given)


def mistakes(config: Config, given: Mapping[str, object]) -> Iterator[str]:
    """Return the mistakes in a configuration: the first that each check finds."""
    for one in (*CHECKS, *LATER_CHECKS):
        try:
            one(config, given)
        except ConfigError as error:
            yield str(error)


def fill(given: Mapping[str, object]) -> Config:
    """Return the configuration with only the given flags, without derived values or checks."""
    found: dict[str, Any] = {
        field: flag.meaning(given[flag.name]) for field, flag in ROWS.items() if flag.name in given
    }
    return Config(**found)


def _complete(config: Config, given: Mapping[str, object]) -> Config:
    """Add the values that etcd derives from other flags, such as a host for 0.0.0.0."""
    default = Config()
    peer_urls, client_urls = config.advertise_peer_urls, config.advertise_client_urls
    if peer_urls == default.advertise_peer_urls:
        peer_urls = _reachable(config.listen_peer_urls) or peer_urls
    if client_urls == default.advertise_client_urls:
        client_urls = _reachable(config.listen_client_urls) or client_urls
    initial_cluster = config.initial_cluster
    asks_others = config.discovery_domain or config.discovery_service
    if (asks_others or "discovery-endpoints" in given) and "initial-cluster" not in given:
        initial_cluster = ""
    user, password = config.discovery_user, config.discovery_password
    if not password:
        user, _, password = user.partition(":")
    if config.name != default.name and initial_cluster == default.initial_cluster:
        initial_cluster = ",".join(f"{config.name}={one}" for one in peer_urls)
    return replace(
        config,
        data_directory=config.data_directory or f"{config.name}.etcd",
        advertise_peer_urls=peer_urls,
        advertise_client_urls=client_urls,
        initial_cluster=initial_cluster,
        discovery_user=user,
        discovery_password=password,
        peer_read_seconds=max(config.peer_read_seconds, PEER_SECONDS_MIN),
        peer_write_seconds=max(config.peer_write_seconds, PEER_SECONDS_MIN),
        bcrypt_cost=config.bcrypt_cost if is_bcrypt_cost(config.bcrypt_cost) else BCRYPT_COST,
        log_format=config.log_format if "log-format" in given else "",
    )


def _reachable(listened: tuple[Url, ...]) -> tuple[Url, ...]:
    """Return the URL that reaches a member listening at 0.0.0.0; empty for other addresses."""
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


Given: TypeAlias = Mapping[str, object]


def _check_fallback(_config: Config, given: Given) -> None:
    if given.get("discovery-fallback") == "proxy":
        raise ConfigError(
            'v2 proxy is deprecated, and --discovery-fallback can\'t be configured as "proxy"'
        )


def _check_bound_urls(config: Config, _given: Given) -> None:
    for one in (
        *config.listen_peer_urls,
        *config.listen_client_urls,
        *config.listen_client_http_urls,
        *config.listen_metrics_urls,
    ):
        is_socket = one.scheme.startswith("unix")
        if not is_socket and one.hostname != "localhost" and not is_ip(one.hostname):
            raise ConfigError(f"expected IP in URL for binding ({one})")


def _check_peer_urls(config: Config, _given: Given) -> None:
    _check_hosts("initial-advertise-peer-urls", config.advertise_peer_urls, '"host:port"')


def _check_client_urls(config: Config, _given: Given) -> None:
    form = 'in the format "host:port", "unix:/path/to/socket" or "unixs:/path/to/socket"'
    _check_hosts("advertise-client-urls", config.advertise_client_urls, form)


def _check_hosts(name: str, urls: Sequence[Url], form: str) -> None:
    for one in urls:
        if one.scheme.startswith("http") and not one.hostname:
            together = ",".join(map(str, urls))
            raise ConfigError(
                f'--{name} "{together}" must be {form} (unexpected empty host ({one}))'
            )


def _check_state(config: Config, _given: Given) -> None:
    if config.initial_cluster_state not in ("new", "existing"):
        raise ConfigError(f'unexpected clusterState "{config.initial_cluster_state}"')


def _check_discovery(config: Config, given: Given) -> None:
    has_endpoints = "discovery-endpoints" in given
    if sum(map(bool, (config.initial_cluster, config.discovery_domain, has_endpoints))) > 1:
        raise ConfigError(
            "multiple discovery or bootstrap flags are set. Choose one of "
            '"initial-cluster", "discovery-endpoints" or "discovery-srv"'
        )
    if bool(config.discovery_token) != has_endpoints:
        raise ConfigError("both --discovery-token and --discovery-endpoints must be set")
    if has_endpoints and not all(each.strip() for each in config.discovery_endpoints):
        raise ConfigError("--discovery-endpoints must not contain empty endpoints")


def _check_times(config: Config, _given: Given) -> None:
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


def _check_advertised(_config: Config, given: Given) -> None:
    if "listen-client-urls" in given and "advertise-client-urls" not in given:
        raise ConfigError(ADVERTISE_FORGOTTEN)


def _check_compaction_mode(config: Config, _given: Given) -> None:
    if not config.compaction_mode:
        raise ConfigError("undefined auto-compaction-mode")
    if config.compaction_mode not in ("periodic", "revision"):
        raise ConfigError(f'unknown auto-compaction-mode "{config.compaction_mode}"')


def _check_tracing(config: Config, _given: Given) -> None:
    refusal = ""
    if config.tracing and config.tracing_rate < 0:
        refusal = "must be positive"
    elif config.tracing and config.tracing_rate > SAMPLING_RATE_MAX:
        refusal = f"must be less than {SAMPLING_RATE_MAX}"
    if refusal:
        raise ConfigError(
            f"distributed tracing configurition is not valid: (tracing sampling rate {refusal})"
        )


def _check_gates(config: Config, _given: Given) -> None:
    gates = config.gates
    if gates["LeaseCheckpointPersist"] and not gates["LeaseCheckpoint"]:
        raise ConfigError(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate "
            "LeaseCheckpoint"
        )


def _check_hash_time(config: Config, _given: Given) -> None:
    seconds = config.compact_hash_check_seconds
    if seconds <= 0:
        given = duration_text(round(seconds * SECOND))
        raise ConfigError(f"--compact-hash-check-time must be >0 (set to {given})")


def _check_tls_versions(config: Config, _given: Given) -> None:
    _check_versions(config.client_security)


def _check_ports(config: Config, _given: Given) -> None:
    addresses = {one.address for one in config.listen_client_urls}
    for one in config.listen_client_http_urls:
        if one.address in addresses:
            raise ConfigError(
                "cannot bind both --listen-client-urls and --listen-client-http-urls on the same "
                f"url {one}"
            )


def _check_peer_security(config: Config, _given: Given) -> None:
    security = _checked(config.peer_security, "peer-")
    for one in config.listen_peer_urls:
        if is_secure(one) and not (security.has_certificate or security.uses_own):
            raise ConfigError(
                f"cannot listen on TLS for {one}: KeyFile and CertFile are not presented "
                "(--peer-cert-file, --peer-key-file, or --peer-auto-tls)"
            )


def _check_client_security(config: Config, _given: Given) -> None:
    security = _checked(config.client_security, "")
    has_certificate = security.has_certificate or security.uses_own
    for one in (*config.listen_client_urls, *config.listen_client_http_urls):
        if is_secure(one) and not has_certificate:
            raise ConfigError(
                "TLS key/cert (--cert-file, --key-file) must be provided for "
                f"client url {one} with HTTPS scheme"
            )
    if any(map(is_secure, config.listen_metrics_urls)) and not has_certificate:
        raise ConfigError(
            "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url"
        )


def _check_retention(config: Config, _given: Given) -> None:
    # The property raises ConfigError if the text cannot be parsed.
    _ = config.compaction_retention


CHECKS: tuple[Callable[[Config, Given], None], ...] = (
    _check_fallback,
    _check_bound_urls,
    _check_peer_urls,
    _check_client_urls,
    _check_state,
    _check_discovery,
    _check_times,
    _check_advertised,
    _check_compaction_mode,
    _check_tracing,
    _check_gates,
    _check_hash_time,
    _check_tls_versions,
    _check_peer_security,
    _check_ports,
    _check_client_security,
)
"""The checks in etcd's order. Each raises ConfigError for the first mistake of its kind."""
LATER_CHECKS = (_check_retention,)
"""Checks that etcd makes after it has checked the addresses and the initial cluster."""


def _checked(security: Security, prefix: str) -> Security:
    try:
        check_security(security, prefix)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return security


def _check_versions(security: Security) -> None:
    try:
        check_versions(security)
    except ValueError as error:
        raise ConfigError(str(error)) from None
