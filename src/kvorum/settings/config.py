"""What the server is told: the values of all flags as one object, checked against each other.

Checks come in etcd's order with etcd's words where etcd has the check. Times are seconds here,
whatever the flag's unit was.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast

from kvorum.net.security import Security, is_secure, read_security
from kvorum.net.urls import Url, is_ip, split_host_port, url
from kvorum.settings import values
from kvorum.settings.flags import DEFAULTS, FLAGS
from kvorum.settings.values import SECOND

DEFAULT_QUOTA_BYTES = 2 * 1024 * 1024 * 1024
SUGGESTED_QUOTA_BYTES_MAX = 8 * 1024 * 1024 * 1024
REQUEST_BYTES_SUGGESTED_MAX = 10 * 1024 * 1024
GRPC_OVERHEAD_BYTES = 512 * 1024
"""What a gRPC message may have above the largest request."""
ELECTION_MILLISECONDS_MAX = 50_000
PEER_SECONDS_MIN = 5.0
"""Streams between members are not given up sooner; their heartbeats come every 5/3 seconds."""


class ConfigError(Exception):
    """Flags that cannot be followed; the process ends with exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the process needs to know; never changed after the start."""

    name: str
    data_directory: str
    wal_directory: str
    """Empty: inside the data directory."""
    snapshot_entries: int
    catch_up_entries: int
    snapshots_max: int
    wals_max: int
    heartbeat_seconds: float
    election_ticks: int
    advance_ticks: bool
    listen_peer_urls: tuple[Url, ...]
    listen_client_urls: tuple[Url, ...]
    listen_metrics_urls: tuple[Url, ...]
    advertise_peer_urls: tuple[Url, ...]
    advertise_client_urls: tuple[Url, ...]
    initial_cluster: str
    initial_cluster_state: str
    initial_cluster_token: str
    quota_bytes: int
    """Negative: no quota."""
    batch_seconds: float
    batch_writes_max: int
    txn_operations_max: int
    request_bytes_max: int
    streams_max: int
    client_ping_seconds_min: float
    keepalive_seconds: float
    keepalive_timeout_seconds: float
    client_security: Security
    peer_security: Security
    peer_read_seconds: float
    """How long a stream of another member may be silent."""
    peer_write_seconds: float
    """How long another member may leave a stream unread."""
    pre_vote: bool
    strict_reconfig_check: bool
    learners_max: int
    force_new_cluster: bool
    unsafe_no_fsync: bool
    compaction_mode: str
    compaction_retention: int
    """Nanoseconds or revisions; 0: no auto compaction."""
    compaction_batch_revisions: int
    compaction_sleep_seconds: float
    progress_notify_seconds: float
    corrupt_check_seconds: float
    compact_hash_check_seconds: float
    """0 unless the gate is open."""
    slow_apply_seconds: float
    slow_request_seconds: float
    gates: Mapping[str, bool]
    cors: tuple[str, ...]
    host_whitelist: tuple[str, ...]
    profiling: bool
    extensive_metrics: bool
    logger: str
    log_outputs: tuple[str, ...]
    log_level: str
    log_format: str
    """`json`, `console`, or empty for json unless the output is a terminal."""

    @property
    def peer_local_address(self) -> str:
        """Return the address that other members are dialed from; empty: whichever fits."""
        if self.gates["SetMemberLocalAddr"]:
            for url in self.advertise_peer_urls:
                with suppress(ValueError):
                    address = ip_address(url.hostname)
                    if not address.is_loopback and not address.is_unspecified:
                        return str(address)
        return ""

    @property
    def request_seconds_max(self) -> float:
        """How long a request may take: five seconds and two election timeouts."""
        return 5.0 + 2 * self.heartbeat_seconds * self.election_ticks


def make_config(given: Mapping[str, object]) -> Config:
    """Return the configuration for the flags that were given; raise ConfigError."""
    flags: dict[str, Any] = {**DEFAULTS, **given}
    _refuse_missing(given)
    _substitute_defaults(flags, given)
    _check(flags, given)
    heartbeat = flags["heartbeat-interval"]
    return Config(
        name=flags["name"],
        data_directory=flags["data-dir"] or f"{flags['name']}.etcd",
        wal_directory=flags["wal-dir"],
        snapshot_entries=flags["snapshot-count"] or 10_000,
        catch_up_entries=flags["snapshot-catchup-entries"] or 5_000,
        snapshots_max=flags["max-snapshots"],
        wals_max=flags["max-wals"],
        heartbeat_seconds=heartbeat / 1000,
        election_ticks=flags["election-timeout"] // heartbeat,
        advance_ticks=flags["initial-election-tick-advance"],
        listen_peer_urls=flags["listen-peer-urls"],
        listen_client_urls=flags["listen-client-urls"],
        listen_metrics_urls=flags["listen-metrics-urls"],
        advertise_peer_urls=flags["initial-advertise-peer-urls"],
        advertise_client_urls=flags["advertise-client-urls"],
        initial_cluster=flags["initial-cluster"],
        initial_cluster_state=flags["initial-cluster-state"],
        initial_cluster_token=flags["initial-cluster-token"],
        quota_bytes=flags["quota-backend-bytes"] or DEFAULT_QUOTA_BYTES,
        batch_seconds=_seconds(flags["backend-batch-interval"]) or 0.1,
        batch_writes_max=flags["backend-batch-limit"] or 10_000,
        txn_operations_max=flags["max-txn-ops"],
        request_bytes_max=flags["max-request-bytes"],
        streams_max=flags["max-concurrent-streams"],
        client_ping_seconds_min=_seconds(flags["grpc-keepalive-min-time"]),
        keepalive_seconds=_seconds(flags["grpc-keepalive-interval"]),
        keepalive_timeout_seconds=_seconds(flags["grpc-keepalive-timeout"]),
        client_security=_security(flags, ""),
        peer_security=_security(flags, "peer-"),
        peer_read_seconds=max(_seconds(flags["raft-read-timeout"]), PEER_SECONDS_MIN),
        peer_write_seconds=max(_seconds(flags["raft-write-timeout"]), PEER_SECONDS_MIN),
        pre_vote=flags["pre-vote"],
        strict_reconfig_check=flags["strict-reconfig-check"],
        learners_max=flags["max-learners"],
        force_new_cluster=flags["force-new-cluster"],
        unsafe_no_fsync=flags["unsafe-no-fsync"],
        compaction_mode=flags["auto-compaction-mode"],
        compaction_retention=_retention(
            flags["auto-compaction-mode"], flags["auto-compaction-retention"]
        ),
        compaction_batch_revisions=flags["compaction-batch-limit"] or 1_000,
        compaction_sleep_seconds=_seconds(flags["compaction-sleep-interval"]) or 0.01,
        progress_notify_seconds=_seconds(flags["watch-progress-notify-interval"]) or 600.0,
        corrupt_check_seconds=_seconds(flags["corrupt-check-time"]),
        compact_hash_check_seconds=(
            _seconds(flags["compact-hash-check-time"])
            if dict(flags["feature-gates"])["CompactHashCheck"]
            else 0.0
        ),
        slow_apply_seconds=_seconds(flags["warning-apply-duration"]),
        slow_request_seconds=_seconds(flags["warning-unary-request-duration"]) or 0.3,
        gates=dict(flags["feature-gates"]),
        cors=flags["cors"],
        host_whitelist=flags["host-whitelist"],
        profiling=flags["enable-pprof"] or flags["log-level"] == "debug",
        extensive_metrics=flags["metrics"] == "extensive",
        logger=flags["logger"],
        log_outputs=flags["log-outputs"],
        log_level=flags["log-level"],
        log_format=flags["log-format"] if "log-format" in given else "",
    )


def suggestions(config: Config, given: Mapping[str, object]) -> list[tuple[str, dict[str, Any]]]:
    """Return what to warn an operator of who used these flags, as messages and fields."""
    found: list[tuple[str, dict[str, Any]]] = []
    found.extend(
        (f"--{name} is deprecated and will be decommissioned in v3.8.", {})
        for name in ("max-snapshots", "v2-deprecation")
        if name in given
    )
    if not given.get("data-dir"):
        found.append(("'data-dir' was empty; using default", {"data_dir": config.data_directory}))
    if config.name == "default":
        found.append(
            ("it isn't recommended to use default name, please set a value for --name", {})
        )
    if config.quota_bytes > SUGGESTED_QUOTA_BYTES_MAX:
        found.append(
            (
                "quota exceeds the suggested maximum",
                {"quota_bytes": config.quota_bytes, "suggested": SUGGESTED_QUOTA_BYTES_MAX},
            )
        )
    if config.request_bytes_max > REQUEST_BYTES_SUGGESTED_MAX:
        found.append(
            (
                "exceeded recommended request limit",
                {
                    "max_request_bytes": config.request_bytes_max,
                    "recommended_request_bytes": REQUEST_BYTES_SUGGESTED_MAX,
                },
            )
        )
    found.extend(
        (f"--{name} was raised to its least value", {"least": "5s"})
        for name in ("raft-read-timeout", "raft-write-timeout")
        if name in given and cast(int, given[name]) < PEER_SECONDS_MIN * SECOND
    )
    if config.gates["SetMemberLocalAddr"] and not config.peer_local_address:
        urls = list(map(str, config.advertise_peer_urls))
        found.append(
            ("no address to dial other members from", {"initial_advertise_peer_urls": urls})
        )
    found.extend(_security_suggestions(config))
    if config.unsafe_no_fsync:
        found.append(("fsync is off: a power cut loses acknowledged data", {}))
    return found


def _security_suggestions(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    for side, prefix, security, urls in (
        ("client", "", config.client_security, config.listen_client_urls),
        ("peer", "peer-", config.peer_security, config.listen_peer_urls),
    ):
        for one in urls:
            if is_secure(one):
                continue
            if security.cert_file or security.key_file:
                yield (
                    "scheme is HTTP while key and cert files are present; "
                    "ignoring key and cert files",
                    {f"{side}_url": str(one)},
                )
            if security.client_cert_auth:
                yield (
                    f"scheme is HTTP while --{prefix}client-cert-auth is enabled; "
                    "ignoring client cert auth for this URL",
                    {f"{side}_url": str(one)},
                )
        if security.auto and not security.uses_own:
            yield f"ignoring {side} auto TLS since certs given", {}
        is_asked = security.client_cert_auth or security.trusted_ca_file
        if security.uses_own and is_asked and any(map(is_secure, urls)):
            yield (
                f"--{prefix}client-cert-auth and --{prefix}trusted-ca-file are ignored with "
                f"--{prefix}auto-tls: whoever connects is let in, with or without a certificate. "
                f"Give --{prefix}cert-file and --{prefix}key-file to have certificates checked",
                {f"{side}_urls": list(map(str, urls))},
            )
    if config.client_security.weak_cipher_suites:
        yield (
            "cipher suites that are weak are not offered",
            {"left_out": config.client_security.weak_cipher_suites},
        )


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / SECOND


def _refuse_missing(given: Mapping[str, object]) -> None:
    for flag in FLAGS:
        if flag.missing and given.get(flag.name, DEFAULTS[flag.name]) != DEFAULTS[flag.name]:
            raise ConfigError(
                f"--{flag.name}: {flag.missing} is not supported by this version; "
                f"leave the flag out, or at its default {flag.default!r}"
            )


def _substitute_defaults(flags: dict[str, Any], given: Mapping[str, object]) -> None:
    """Fill in what etcd derives from other flags: a host for 0.0.0.0, a cluster from the name."""
    for listen, advertise in (
        ("listen-peer-urls", "initial-advertise-peer-urls"),
        ("listen-client-urls", "advertise-client-urls"),
    ):
        if listen == "listen-client-urls" and listen in given and advertise not in given:
            continue
        if flags[advertise] == DEFAULTS[advertise] and flags[listen]:
            first = flags[listen][0]
            if first.hostname == "0.0.0.0":  # noqa: S104
                host = default_host()
                if host is not None:
                    port = split_host_port(first.host)[1]
                    flags[advertise] = (url(f"{first.scheme}://{host}:{port}"),)
    is_default = flags["initial-cluster"] == DEFAULTS["initial-cluster"]
    if flags["name"] != DEFAULTS["name"] and is_default:
        name = flags["name"]
        own = flags["initial-advertise-peer-urls"]
        flags["initial-cluster"] = ",".join(f"{name}={one}" for one in own)


def default_host() -> str | None:
    """Return the address that packets to the default route carry; None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only looks up the route.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host: str = probe.getsockname()[0]
        return host


def _check(flags: Mapping[str, Any], given: Mapping[str, object]) -> None:
    for name in ("listen-peer-urls", "listen-client-urls", "listen-metrics-urls"):
        for one in flags[name]:
            _check_bind(one)
    sockets = ' in the format "host:port", "unix:/path/to/socket" or "unixs:/path/to/socket"'
    for name, form in (
        ("initial-advertise-peer-urls", ' "host:port"'),
        ("advertise-client-urls", sockets),
    ):
        for one in flags[name]:
            if one.scheme.startswith("http") and not one.hostname:
                raise ConfigError(f'--{name} "{one}" must be{form} (unexpected empty host ({one}))')
    heartbeat, election = flags["heartbeat-interval"], flags["election-timeout"]
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
    if "listen-client-urls" in given and "advertise-client-urls" not in given:
        raise ConfigError(
            "--advertise-client-urls is required when --listen-client-urls is set explicitly"
        )
    if flags["auto-compaction-mode"] not in ("periodic", "revision"):
        raise ConfigError(f'unknown auto-compaction-mode "{flags["auto-compaction-mode"]}"')
    if flags["compact-hash-check-time"] <= 0:
        raise ConfigError("--compact-hash-check-time must be >0 (set to 0s)")
    gates = dict(flags["feature-gates"])
    if gates["LeaseCheckpointPersist"] and not gates["LeaseCheckpoint"]:
        raise ConfigError("feature gate LeaseCheckpointPersist needs LeaseCheckpoint")
    security = _security(flags, "peer-")
    for one in flags["listen-peer-urls"]:
        if is_secure(one) and not (security.has_certificate or security.uses_own):
            raise ConfigError(
                f"cannot listen on TLS for {one}: KeyFile and CertFile are not presented "
                "(--peer-cert-file, --peer-key-file, or --peer-auto-tls)"
            )
    security = _security(flags, "")
    for name, kind in (("listen-client-urls", "client"), ("listen-metrics-urls", "metrics")):
        for one in flags[name]:
            if is_secure(one) and not (security.has_certificate or security.uses_own):
                raise ConfigError(
                    "TLS key/cert (--cert-file, --key-file) must be provided for "
                    f"{kind} url {one} with HTTPS scheme"
                )


def _security(flags: Mapping[str, Any], prefix: str) -> Security:
    try:
        return read_security(flags, prefix)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_bind(one: Url) -> None:
    if one.scheme.startswith("unix"):
        return
    if one.hostname != "localhost" and not is_ip(one.hostname):
        raise ConfigError(f"expected IP in URL for binding ({one})")


def _retention(mode: str, text: str) -> int:
    """Return how much history is kept: nanoseconds for a time, else revisions."""
    number = int(text) if text.isascii() and text.isdigit() else None
    if mode == "revision":
        if number is None:
            raise ConfigError(
                f'error parsing CompactionRetention: strconv.Atoi: parsing "{text}": invalid syntax'
            )
        return number
    if number is not None:
        return number * 3600 * SECOND
    try:
        return max(0, values.duration(text))
    except ValueError as error:
        raise ConfigError(f"error parsing CompactionRetention: {error}") from None
