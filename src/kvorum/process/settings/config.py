"""The configuration: a field for each flag that has an effect, with the flag's row.

Values are in the units of the fields' names, as given or by default; properties hold values derived
from one or several flags. `checks.make_config` makes a configuration and checks that its flags fit
together.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from ipaddress import ip_address

from kvorum.api.durations import SECOND, duration
from kvorum.network.urls import Url
from kvorum.process.settings.gates import GATES
from kvorum.process.settings.rows import (
    AUTH,
    BACKUP,
    BOOL,
    CLUSTERING,
    DEFAULT,
    FEATURE_GATES,
    INT,
    LOGGING,
    MEMBER,
    METADATA,
    MONITORING,
    ORIGINS,
    SECONDS,
    SECURITY,
    STATES,
    STRING,
    STRINGS,
    TRACING,
    TUNING,
    UINT,
    UINT32,
    UNSAFE,
    URLS,
    FlagRow,
    flag,
)
from kvorum.process.settings.tls import SecurityConfig

GRPC_OVERHEAD_BYTES = 512 * 1024
"""Bytes by which a gRPC message may exceed the largest request."""
_CLIENT_URL = "http://localhost:2379"
_PEER_URL = "http://localhost:2380"


class ConfigError(Exception):
    """Flags that cannot be used; the process ends with exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SecurityConfig):
    """All options of the process; immutable after the start."""

    name: str = flag(
        "name", STRING, "default", MEMBER, "Name of this member, unique in its cluster."
    )
    data_directory: str = flag(
        "data-dir", STRING, "", MEMBER, "Directory for all data; empty: <name>.etcd."
    )
    wal_directory: str = flag(
        "wal-dir", STRING, "", MEMBER, "Directory for the write-ahead log, if not in data-dir."
    )
    snapshot_entries: int = flag(
        "snapshot-count",
        UINT,
        "10000",
        MEMBER,
        "Applied entries between two raft snapshots.",
        zero=DEFAULT,
    )
    catch_up_entries: int = flag(
        "snapshot-catchup-entries",
        UINT,
        "5000",
        MEMBER,
        "Entries before a snapshot to keep in memory for lagging members.",
        zero=DEFAULT,
    )
    snapshots_max: int = flag(
        "max-snapshots", UINT, "5", MEMBER, "Snapshot files to keep; 0: all. Deprecated."
    )
    wals_max: int = flag(
        "max-wals", UINT, "5", MEMBER, "Segments of the write-ahead log to keep; 0: all."
    )
    heartbeat_milliseconds: int = flag(
        "heartbeat-interval", UINT, "100", MEMBER, "Milliseconds between two heartbeats."
    )
    election_milliseconds: int = flag(
        "election-timeout",
        UINT,
        "1000",
        MEMBER,
        "Milliseconds without a leader until a member starts an election; at least 5 heartbeats.",
    )
    advance_ticks: bool = flag(
        "initial-election-tick-advance",
        BOOL,
        "true",
        MEMBER,
        "Skip most of the first election timeout at the start.",
    )
    listen_peer_urls: tuple[Url, ...] = flag(
        "listen-peer-urls", URLS, _PEER_URL, MEMBER, "URLs to listen on for other members."
    )
    listen_client_urls: tuple[Url, ...] = flag(
        "listen-client-urls", URLS, _CLIENT_URL, MEMBER, "URLs to listen on for clients."
    )
    listen_client_http_urls: tuple[Url, ...] = flag(
        "listen-client-http-urls",
        URLS,
        "",
        MEMBER,
        "URLs to listen on for HTTP only; listen-client-urls then serve only gRPC.",
    )
    serves_json: bool = flag(
        "enable-grpc-gateway", BOOL, "true", MEMBER, "Serve the JSON gateway under /v3/."
    )
    reuse_port: bool = flag(
        "socket-reuse-port",
        BOOL,
        "false",
        MEMBER,
        "Listen with SO_REUSEPORT; other processes that also set it may listen on the same ports.",
    )
    reuse_address: bool = flag(
        "socket-reuse-address",
        BOOL,
        "false",
        MEMBER,
        "Listen with SO_REUSEADDR (always set on Linux): a port is free as soon as its "
        "server has ended.",
    )
    quota_bytes: int = flag(
        "quota-backend-bytes",
        INT,
        "0",
        MEMBER,
        "Size of the database, in bytes, that raises the NOSPACE alarm; 0: 2 GiB, negative: "
        "no limit.",
        zero="2147483648",
    )
    defragment_mebibytes: int = flag(
        "bootstrap-defrag-threshold-megabytes",
        UINT,
        "0",
        MEMBER,
        "Defragment the database at the start if its file has at least this many MiB of free "
        "pages; 0: never.",
    )
    memory_lock: bool = flag(
        "memory-mlock",
        BOOL,
        "false",
        MEMBER,
        "Lock the database file into memory at the start and as it grows; see RLIMIT_MEMLOCK.",
    )
    batch_seconds: float = flag(
        "backend-batch-interval",
        SECONDS,
        "0s",
        MEMBER,
        "Maximum time between two database commits; 0: 100ms.",
        zero="100ms",
    )
    batch_writes_max: int = flag(
        "backend-batch-limit",
        INT,
        "0",
        MEMBER,
        "Maximum number of writes between two database commits; 0: 10000.",
        zero="10000",
    )
    txn_operations_max: int = flag(
        "max-txn-ops", UINT, "128", MEMBER, "Maximum number of operations in a transaction."
    )
    request_bytes_max: int = flag(
        "max-request-bytes", UINT, "1572864", MEMBER, "Maximum size of a request, in bytes."
    )
    streams_max: int = flag(
        "max-concurrent-streams",
        UINT32,
        "4294967295",
        MEMBER,
        "Maximum number of streams on one client connection.",
    )
    client_ping_seconds_min: float = flag(
        "grpc-keepalive-min-time",
        SECONDS,
        "5s",
        MEMBER,
        "Minimum time between two pings from a client.",
    )
    keepalive_seconds: float = flag(
        "grpc-keepalive-interval",
        SECONDS,
        "2h",
        MEMBER,
        "Idle time after which the server pings a client; 0: never.",
    )
    keepalive_timeout_seconds: float = flag(
        "grpc-keepalive-timeout",
        SECONDS,
        "20s",
        MEMBER,
        "Time a client has to answer a ping; 0: the server sends no pings.",
    )
    peer_read_seconds: float = flag(
        "raft-read-timeout",
        SECONDS,
        "5s",
        MEMBER,
        "Maximum silence on a stream from another member; at least 5s.",
    )
    peer_write_seconds: float = flag(
        "raft-write-timeout",
        SECONDS,
        "5s",
        MEMBER,
        "Maximum time another member may leave a stream unread; at least 5s.",
    )
    feature_gates: tuple[tuple[str, bool], ...] = flag(
        "feature-gates",
        FEATURE_GATES,
        "",
        MEMBER,
        "Feature gates to set: Name=true,Other=false; kvorum --help lists all gates.",
    )
    advertise_peer_urls: tuple[Url, ...] = flag(
        "initial-advertise-peer-urls",
        URLS,
        _PEER_URL,
        CLUSTERING,
        "Peer URLs that this member advertises to the other members.",
    )
    initial_cluster: str = flag(
        "initial-cluster",
        STRING,
        f"default={_PEER_URL}",
        CLUSTERING,
        "Members of a new cluster: name=url,name=url.",
    )
    initial_cluster_state: str = flag(
        "initial-cluster-state",
        STATES,
        "new",
        CLUSTERING,
        "'new' for a new cluster, 'existing' to join one.",
    )
    initial_cluster_token: str = flag(
        "initial-cluster-token",
        STRING,
        "etcd-cluster",
        CLUSTERING,
        "Token that distinguishes clusters created with the same URLs.",
    )
    discovery_token: str = flag(
        "discovery-token",
        STRING,
        "",
        CLUSTERING,
        "Token of a new cluster at the discovery service; also its initial-cluster-token.",
    )
    discovery_endpoints: tuple[str, ...] = flag(
        "discovery-endpoints",
        STRINGS,
        "",
        CLUSTERING,
        "Servers of the discovery service (any etcd or Kvorum), each as host:port or URL.",
    )
    discovery_dial_seconds: float = flag(
        "discovery-dial-timeout", SECONDS, "2s", CLUSTERING, "Discovery connection timeout."
    )
    discovery_request_seconds: float = flag(
        "discovery-request-timeout", SECONDS, "5s", CLUSTERING, "Discovery request timeout."
    )
    discovery_ping_seconds: float = flag(
        "discovery-keepalive-time",
        SECONDS,
        "2s",
        CLUSTERING,
        "Idle time before this member pings a discovery server; at least 10s.",
    )
    discovery_ping_timeout_seconds: float = flag(
        "discovery-keepalive-timeout", SECONDS, "6s", CLUSTERING, "Discovery ping timeout."
    )
    discovery_insecure: bool = flag(
        "discovery-insecure-transport",
        BOOL,
        "true",
        CLUSTERING,
        "Connect to discovery servers without TLS, unless a URL is https or a TLS option "
        "below is set.",
    )
    discovery_trusts_anyone: bool = flag(
        "discovery-insecure-skip-tls-verify",
        BOOL,
        "false",
        CLUSTERING,
        "Use TLS, but accept any certificate of a discovery server; for tests only.",
    )
    discovery_cert_file: str = flag(
        "discovery-cert", STRING, "", CLUSTERING, "Certificate file for the discovery service."
    )
    discovery_key_file: str = flag(
        "discovery-key", STRING, "", CLUSTERING, "Private key file of the discovery certificate."
    )
    discovery_ca_file: str = flag(
        "discovery-cacert", STRING, "", CLUSTERING, "CA file for discovery servers' certificates."
    )
    discovery_user: str = flag(
        "discovery-user", STRING, "", CLUSTERING, "User at the discovery service: name[:password]."
    )
    discovery_password: str = flag(
        "discovery-password", STRING, "", CLUSTERING, "Password, if discovery-user has none."
    )
    discovery_auth_token: str = flag(
        "discovery-auth-token",
        STRING,
        "",
        CLUSTERING,
        "Auth token for the discovery service, in place of user and password.",
        only_in_file=True,
    )
    discovery_server_name: str = flag(
        "discovery-server-name",
        STRING,
        "",
        CLUSTERING,
        "Name in the discovery servers' certificates, if it is not their host name.",
        only_in_file=True,
    )
    discovery_request_bytes_max: int = flag(
        "discovery-max-request-bytes",
        INT,
        "0",
        CLUSTERING,
        "Maximum size of a request to a discovery server, in bytes; 0: 2 MiB.",
        zero="2097152",
        only_in_file=True,
    )
    discovery_answer_bytes_max: int = flag(
        "discovery-max-recv-bytes",
        INT,
        "0",
        CLUSTERING,
        "Maximum size of a discovery server's response, in bytes; 0: 4 MiB.",
        zero="4194304",
        only_in_file=True,
    )
    discovery_domain: str = flag(
        "discovery-srv", STRING, "", CLUSTERING, "DNS domain whose SRV records name the members."
    )
    discovery_service: str = flag(
        "discovery-srv-name",
        STRING,
        "",
        CLUSTERING,
        "Suffix of the SRV service names: _etcd-server-<name> and _etcd-server-ssl-<name>.",
    )
    advertise_client_urls: tuple[Url, ...] = flag(
        "advertise-client-urls",
        URLS,
        _CLIENT_URL,
        CLUSTERING,
        "Client URLs that this member advertises to clients.",
    )
    strict_reconfig_check: bool = flag(
        "strict-reconfig-check",
        BOOL,
        "true",
        CLUSTERING,
        "Refuse membership changes that would endanger the quorum.",
    )
    pre_vote: bool = flag(
        "pre-vote", BOOL, "true", CLUSTERING, "Run a pre-vote to avoid disturbing a leader."
    )
    learners_max: int = flag(
        "max-learners", INT, "1", CLUSTERING, "Maximum number of learners in the cluster."
    )
    compaction_mode: str = flag(
        "auto-compaction-mode",
        STRING,
        "periodic",
        CLUSTERING,
        "'periodic': the retention is a time; 'revision': it is a number of revisions.",
    )
    compaction_retention_text: str = flag(
        "auto-compaction-retention",
        STRING,
        "0",
        CLUSTERING,
        "History to keep: a time such as 5m, hours such as 12, or a number of revisions; 0: "
        "no auto compaction.",
    )
    cors: tuple[str, ...] = flag(
        "cors", ORIGINS, "*", SECURITY, "Origins from which browsers may call; *: any."
    )
    host_whitelist: tuple[str, ...] = flag(
        "host-whitelist", STRINGS, "*", SECURITY, "Host names that HTTP requests may use; *: any."
    )
    auth_token: str = flag(
        "auth-token",
        STRING,
        "simple",
        AUTH,
        "Token type: 'simple', or signed: "
        "'jwt,sign-method=RS256,pub-key=<file>,priv-key=<file>,ttl=5m'.",
    )
    token_ttl_seconds: int = flag(
        "auth-token-ttl",
        UINT,
        "300",
        AUTH,
        "Seconds a simple token stays valid after its last use.",
        zero=DEFAULT,
    )
    bcrypt_cost: int = flag(
        "bcrypt-cost",
        UINT,
        "10",
        AUTH,
        "bcrypt cost of password hashes, 4 to 31; each step doubles the hashing time.",
    )
    pprof: bool = flag(
        "enable-pprof",
        BOOL,
        "false",
        MONITORING,
        "Serve stacks and profiles under /debug/pprof/ at the client URLs.",
    )
    metrics: str = flag(
        "metrics",
        STRING,
        "basic",
        MONITORING,
        "'basic', or 'extensive' to add a histogram of each RPC's duration.",
    )
    listen_metrics_urls: tuple[Url, ...] = flag(
        "listen-metrics-urls", URLS, "", MONITORING, "URLs that serve metrics and health only."
    )
    slow_apply_seconds: float = flag(
        "warning-apply-duration",
        SECONDS,
        "100ms",
        MONITORING,
        "Log a warning if applying an entry takes longer.",
    )
    slow_request_seconds: float = flag(
        "warning-unary-request-duration",
        SECONDS,
        "300ms",
        MONITORING,
        "Log a warning if a unary request takes longer.",
        zero=DEFAULT,
    )
    logger: str = flag("logger", STRING, "zap", LOGGING, "Logger; only 'zap' is accepted.")
    log_outputs: tuple[str, ...] = flag(
        "log-outputs",
        STRINGS,
        "default",
        LOGGING,
        "Log destinations: 'default' (stderr), 'stderr', 'stdout', 'systemd/journal' or file "
        "paths.",
    )
    log_level: str = flag(
        "log-level", STRING, "info", LOGGING, "Log level: debug, info, warn, error, panic or fatal."
    )
    log_format: str = flag(
        "log-format",
        STRING,
        "json",
        LOGGING,
        "Log format: 'json' or 'console'; if unset, a terminal gets readable lines.",
    )
    log_rotation: bool = flag(
        "enable-log-rotation",
        BOOL,
        "false",
        LOGGING,
        "Rotate the log file; log-outputs must contain exactly one file.",
    )
    log_rotation_text: str = flag(
        "log-rotation-config-json",
        STRING,
        '{"maxsize":100,"maxage":0,"maxbackups":0,"localtime":false,"compress":false}',
        LOGGING,
        "Rotation rules. maxsize: rotate at this many MiB (0: 100); maxage and maxbackups: "
        "delete old files after this many days, or beyond this number (0: keep all); "
        "localtime: name old files by local time; compress: compress old files.",
    )
    access_log: str = flag(
        "access-log",
        STRING,
        "",
        LOGGING,
        "Destination of one line per call: a file (the server rotates it), 'stderr' or "
        "'stdout'. Not in etcd.",
    )
    access_log_one_in: int = flag(
        "access-log-sample", UINT, "1", LOGGING, "Log one in this many calls.", zero=DEFAULT
    )
    access_log_prefix: str = flag(
        "access-log-prefix",
        STRING,
        "",
        LOGGING,
        "Log only calls about keys with this prefix to the access log; empty: all calls.",
    )
    tracing: bool = flag(
        "enable-distributed-tracing",
        BOOL,
        "false",
        TRACING,
        "Send request spans to a collector, by OTLP over gRPC; requires kvorum[tracing].",
    )
    tracing_address: str = flag(
        "distributed-tracing-address", STRING, "localhost:4317", TRACING, "Collector's host:port."
    )
    tracing_service: str = flag(
        "distributed-tracing-service-name", STRING, "etcd", TRACING, "Service name in traces."
    )
    tracing_instance: str = flag(
        "distributed-tracing-instance-id",
        STRING,
        "",
        TRACING,
        "Instance id of this member in traces, unique among all members; empty: none.",
    )
    tracing_rate: int = flag(
        "distributed-tracing-sampling-rate",
        INT,
        "0",
        TRACING,
        "Requests to trace per million, if the client made no sampling decision; 0: none.",
    )
    backup_to: str = flag(
        "backup-to",
        STRING,
        "",
        BACKUP,
        "Archive in which the leader keeps backups: a directory that all members can reach, "
        "or s3://bucket/prefix; empty: no backups. Not in etcd.",
    )
    backup_every_seconds: float = flag(
        "backup-every", SECONDS, "1h", BACKUP, "Time between two backup snapshots."
    )
    backup_keep: int = flag(
        "backup-keep", UINT, "24", BACKUP, "Snapshots to keep, and all changes since the oldest."
    )
    backup_log_seconds: float = flag(
        "backup-log-interval",
        SECONDS,
        "10s",
        BACKUP,
        "Maximum delay until a change is in the backup archive.",
    )
    corrupt_check_seconds: float = flag(
        "corrupt-check-time",
        SECONDS,
        "0s",
        TUNING,
        "Time between two comparisons of all members' data; 0: never.",
    )
    compact_hash_check_seconds: float = flag(
        "compact-hash-check-time",
        SECONDS,
        "1m0s",
        TUNING,
        "Time between two comparisons of the members' compaction hashes; a difference raises "
        "the CORRUPT alarm. --feature-gates=CompactHashCheck=false disables the check.",
    )
    downgrade_check_seconds: float = flag(
        "downgrade-check-time",
        SECONDS,
        "5s",
        TUNING,
        "Time between two checks whether all members have finished a downgrade; 0: never.",
    )
    compaction_batch_revisions: int = flag(
        "compaction-batch-limit",
        INT,
        "0",
        TUNING,
        "Number of revisions to remove in one step of a compaction; 0: 1000.",
        zero="1000",
    )
    compaction_sleep_seconds: float = flag(
        "compaction-sleep-interval",
        SECONDS,
        "0s",
        TUNING,
        "Pause between two steps of a compaction; 0: 10ms.",
        zero="10ms",
    )
    progress_notify_seconds: float = flag(
        "watch-progress-notify-interval",
        SECONDS,
        "0s",
        TUNING,
        "Time between two progress notifications of a watch; 0: 10m.",
        zero="10m",
    )
    force_new_cluster: bool = flag(
        "force-new-cluster",
        BOOL,
        "false",
        UNSAFE,
        "Start as the only member of a new cluster, with the existing data.",
    )
    unsafe_no_fsync: bool = flag(
        "unsafe-no-fsync", BOOL, "false", UNSAFE, "Never sync to disk; a power loss loses data."
    )
    ephemeral: bool = flag(
        "ephemeral",
        BOOL,
        "false",
        UNSAFE,
        "For tests: listen on free ports, print them as a line of JSON, and keep no data "
        "after standard input or the process ends. Not in etcd.",
    )

    # Values derived from several flags, or needed in another form.

    @property
    def heartbeat_seconds(self) -> float:
        """The time between two heartbeats, which is Raft's tick."""
        return self.heartbeat_milliseconds / 1000

    @property
    def election_ticks(self) -> int:
        """The election timeout in heartbeats."""
        return self.election_milliseconds // self.heartbeat_milliseconds

    @property
    def uses_discovery(self) -> bool:
        """Whether a discovery service provides the initial members."""
        return any(self.discovery_endpoints)

    @property
    def gates(self) -> Mapping[str, bool]:
        """Whether each feature gate is enabled, by name."""
        return {name: gate.default for name, gate in GATES.items()} | dict(self.feature_gates)

    @property
    def peer_local_address(self) -> str:
        """The local address for connections to other members; empty: the system's choice."""
        if self.gates["SetMemberLocalAddr"]:
            for url in self.advertise_peer_urls:
                with suppress(ValueError):
                    address = ip_address(url.hostname)
                    if not address.is_loopback and not address.is_unspecified:
                        return str(address)
        return ""

    @property
    def compaction_retention(self) -> int:
        """The history that auto compaction keeps, in nanoseconds or revisions; 0: all of it.

        As with etcd, a duration in revision mode counts as its number of nanoseconds.
        """
        text = self.compaction_retention_text or "0"
        if text.isascii() and text.removeprefix("+").isdigit():
            return int(text) if self.compaction_mode == "revision" else int(text) * 3600 * SECOND
        try:
            return max(0, duration(text))
        except ValueError as error:
            raise ConfigError(f"error parsing CompactionRetention: {error}") from None

    @property
    def profiling(self) -> bool:
        """Whether the server serves stacks and profiles."""
        return self.pprof or self.log_level == "debug"

    @property
    def extensive_metrics(self) -> bool:
        """Whether the server measures the duration of each RPC."""
        return self.metrics == "extensive"


ROWS: Mapping[str, FlagRow] = {each.name: each.metadata[METADATA] for each in fields(Config)}
"""The flag that fills each field."""
