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
        "data-dir", STRING, "", MEMBER, "Directory for everything; empty: <name>.etcd."
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
        "Entries kept in memory behind a snapshot for members that lag.",
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
        "Milliseconds without a leader until an election; at least 5 heartbeats.",
    )
    advance_ticks: bool = flag(
        "initial-election-tick-advance",
        BOOL,
        "true",
        MEMBER,
        "At the start, skip most of the first election timeout.",
    )
    listen_peer_urls: tuple[Url, ...] = flag(
        "listen-peer-urls", URLS, _PEER_URL, MEMBER, "Where to listen for other members."
    )
    listen_client_urls: tuple[Url, ...] = flag(
        "listen-client-urls", URLS, _CLIENT_URL, MEMBER, "Where to listen for clients."
    )
    listen_client_http_urls: tuple[Url, ...] = flag(
        "listen-client-http-urls",
        URLS,
        "",
        MEMBER,
        "Where to listen for HTTP alone; listen-client-urls then serve gRPC alone.",
    )
    serves_json: bool = flag(
        "enable-grpc-gateway", BOOL, "true", MEMBER, "Serve the JSON gateway under /v3/."
    )
    reuse_port: bool = flag(
        "socket-reuse-port",
        BOOL,
        "false",
        MEMBER,
        "Listen with SO_REUSEPORT: other processes that do so may listen at the same ports.",
    )
    reuse_address: bool = flag(
        "socket-reuse-address",
        BOOL,
        "false",
        MEMBER,
        "Listen with SO_REUSEADDR, which is always set on Linux: a port is free as soon as its "
        "server has ended.",
    )
    quota_bytes: int = flag(
        "quota-backend-bytes",
        INT,
        "0",
        MEMBER,
        "Size of the database that raises the NOSPACE alarm; 0: 2 GiB, negative: none.",
        zero="2147483648",
    )
    defragment_mebibytes: int = flag(
        "bootstrap-defrag-threshold-megabytes",
        UINT,
        "0",
        MEMBER,
        "Defragment the database at the start if so many MiB of its file are free pages; 0: never.",
    )
    memory_lock: bool = flag(
        "memory-mlock",
        BOOL,
        "false",
        MEMBER,
        "Lock the database file into memory, now and as it grows; see RLIMIT_MEMLOCK.",
    )
    batch_seconds: float = flag(
        "backend-batch-interval",
        SECONDS,
        "0s",
        MEMBER,
        "Longest time between two commits of the database; 0: 100ms.",
        zero="100ms",
    )
    batch_writes_max: int = flag(
        "backend-batch-limit",
        INT,
        "0",
        MEMBER,
        "Most writes between two commits of the database; 0: 10000.",
        zero="10000",
    )
    txn_operations_max: int = flag(
        "max-txn-ops", UINT, "128", MEMBER, "Most operations in one transaction."
    )
    request_bytes_max: int = flag(
        "max-request-bytes", UINT, "1572864", MEMBER, "Largest request, in bytes."
    )
    streams_max: int = flag(
        "max-concurrent-streams",
        UINT32,
        "4294967295",
        MEMBER,
        "Streams a client may open on one connection.",
    )
    client_ping_seconds_min: float = flag(
        "grpc-keepalive-min-time",
        SECONDS,
        "5s",
        MEMBER,
        "Shortest time between two pings of a client.",
    )
    keepalive_seconds: float = flag(
        "grpc-keepalive-interval",
        SECONDS,
        "2h",
        MEMBER,
        "Time between two pings to an idle client; 0: none.",
    )
    keepalive_timeout_seconds: float = flag(
        "grpc-keepalive-timeout",
        SECONDS,
        "20s",
        MEMBER,
        "Time a client has to answer a ping; 0: as long as it likes.",
    )
    peer_read_seconds: float = flag(
        "raft-read-timeout",
        SECONDS,
        "5s",
        MEMBER,
        "Longest silence on a stream from another member; at least 5s.",
    )
    peer_write_seconds: float = flag(
        "raft-write-timeout",
        SECONDS,
        "5s",
        MEMBER,
        "How long another member may leave a stream unread; at least 5s.",
    )
    feature_gates: tuple[tuple[str, bool], ...] = flag(
        "feature-gates",
        FEATURE_GATES,
        "",
        MEMBER,
        "Features to switch: Name=true,Other=false. They are listed below.",
    )
    advertise_peer_urls: tuple[Url, ...] = flag(
        "initial-advertise-peer-urls",
        URLS,
        _PEER_URL,
        CLUSTERING,
        "This member's peer URLs, as told to the others.",
    )
    initial_cluster: str = flag(
        "initial-cluster",
        STRING,
        f"default={_PEER_URL}",
        CLUSTERING,
        "The members of a new cluster: name=url,name=url.",
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
        "Tells clusters apart that were made from equal URLs.",
    )
    discovery_token: str = flag(
        "discovery-token",
        STRING,
        "",
        CLUSTERING,
        "Token of a new cluster at a discovery service; also the cluster's token.",
    )
    discovery_endpoints: tuple[str, ...] = flag(
        "discovery-endpoints",
        STRINGS,
        "",
        CLUSTERING,
        "Servers of a discovery service: any etcd or Kvorum, host:port or URL.",
    )
    discovery_dial_seconds: float = flag(
        "discovery-dial-timeout", SECONDS, "2s", CLUSTERING, "Time to connect to such a server."
    )
    discovery_request_seconds: float = flag(
        "discovery-request-timeout", SECONDS, "5s", CLUSTERING, "Time for it to answer."
    )
    discovery_ping_seconds: float = flag(
        "discovery-keepalive-time",
        SECONDS,
        "2s",
        CLUSTERING,
        "Silence after which it is pinged; at least 10s.",
    )
    discovery_ping_timeout_seconds: float = flag(
        "discovery-keepalive-timeout", SECONDS, "6s", CLUSTERING, "Time for it to answer a ping."
    )
    discovery_insecure: bool = flag(
        "discovery-insecure-transport",
        BOOL,
        "true",
        CLUSTERING,
        "Without TLS, unless an https URL or one of the files below asks for it.",
    )
    discovery_trusts_anyone: bool = flag(
        "discovery-insecure-skip-tls-verify",
        BOOL,
        "false",
        CLUSTERING,
        "With TLS, but trusting any certificate; for tests only.",
    )
    discovery_cert_file: str = flag(
        "discovery-cert", STRING, "", CLUSTERING, "Certificate shown to the discovery service."
    )
    discovery_key_file: str = flag("discovery-key", STRING, "", CLUSTERING, "Key of it.")
    discovery_ca_file: str = flag(
        "discovery-cacert", STRING, "", CLUSTERING, "Authorities of the service's certificates."
    )
    discovery_user: str = flag(
        "discovery-user", STRING, "", CLUSTERING, "User at the discovery service: name[:password]."
    )
    discovery_password: str = flag(
        "discovery-password", STRING, "", CLUSTERING, "Password, if not given with the user."
    )
    discovery_auth_token: str = flag(
        "discovery-auth-token",
        STRING,
        "",
        CLUSTERING,
        "Token instead of a user and a password.",
        only_in_file=True,
    )
    discovery_server_name: str = flag(
        "discovery-server-name",
        STRING,
        "",
        CLUSTERING,
        "Name that the service's certificate is for, if not its host's.",
        only_in_file=True,
    )
    discovery_request_bytes_max: int = flag(
        "discovery-max-request-bytes",
        INT,
        "0",
        CLUSTERING,
        "Largest request to the service; 0: 2 MiB.",
        zero="2097152",
        only_in_file=True,
    )
    discovery_answer_bytes_max: int = flag(
        "discovery-max-recv-bytes",
        INT,
        "0",
        CLUSTERING,
        "Largest answer of the service; 0: 4 MiB.",
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
        "Suffix of the records' service: _etcd-server-<name> and _etcd-server-ssl-<name>.",
    )
    advertise_client_urls: tuple[Url, ...] = flag(
        "advertise-client-urls",
        URLS,
        _CLIENT_URL,
        CLUSTERING,
        "This member's client URLs, as told to clients.",
    )
    strict_reconfig_check: bool = flag(
        "strict-reconfig-check",
        BOOL,
        "true",
        CLUSTERING,
        "Refuse changes of membership that would endanger the quorum.",
    )
    pre_vote: bool = flag(
        "pre-vote", BOOL, "true", CLUSTERING, "Ask before disturbing a leader by an election."
    )
    learners_max: int = flag("max-learners", INT, "1", CLUSTERING, "Most learners in the cluster.")
    compaction_mode: str = flag(
        "auto-compaction-mode",
        STRING,
        "periodic",
        CLUSTERING,
        "'periodic': retention is a time; 'revision': a number of revisions.",
    )
    compaction_retention_text: str = flag(
        "auto-compaction-retention",
        STRING,
        "0",
        CLUSTERING,
        "History to keep: 5m, 12 (hours), or revisions; 0: no auto compaction.",
    )
    cors: tuple[str, ...] = flag(
        "cors", ORIGINS, "*", SECURITY, "Origins that browsers may call from; *: any."
    )
    host_whitelist: tuple[str, ...] = flag(
        "host-whitelist", STRINGS, "*", SECURITY, "Host names that HTTP requests may use; *: any."
    )
    auth_token: str = flag(
        "auth-token",
        STRING,
        "simple",
        AUTH,
        "Sort of tokens: 'simple', or signed ones: "
        "'jwt,sign-method=RS256,pub-key=<file>,priv-key=<file>,ttl=5m'.",
    )
    token_ttl_seconds: int = flag(
        "auth-token-ttl",
        UINT,
        "300",
        AUTH,
        "Seconds a simple token lasts after its last use.",
        zero=DEFAULT,
    )
    bcrypt_cost: int = flag(
        "bcrypt-cost",
        UINT,
        "10",
        AUTH,
        "Cost of a password's hash, 4 to 31: each step doubles the time that it takes.",
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
        "'basic', or 'extensive' for a histogram of each RPC's duration.",
    )
    listen_metrics_urls: tuple[Url, ...] = flag(
        "listen-metrics-urls", URLS, "", MONITORING, "Where to serve metrics and health alone."
    )
    slow_apply_seconds: float = flag(
        "warning-apply-duration",
        SECONDS,
        "100ms",
        MONITORING,
        "Warn of an entry that takes longer to apply.",
    )
    slow_request_seconds: float = flag(
        "warning-unary-request-duration",
        SECONDS,
        "300ms",
        MONITORING,
        "Warn of a unary request that takes longer.",
        zero=DEFAULT,
    )
    logger: str = flag("logger", STRING, "zap", LOGGING, "Shape of the log; only 'zap'.")
    log_outputs: tuple[str, ...] = flag(
        "log-outputs",
        STRINGS,
        "default",
        LOGGING,
        "'default' (stderr), 'stderr', 'stdout', 'systemd/journal' or paths.",
    )
    log_level: str = flag(
        "log-level", STRING, "info", LOGGING, "debug, info, warn, error, panic or fatal."
    )
    log_format: str = flag(
        "log-format",
        STRING,
        "json",
        LOGGING,
        "'json' or 'console'; if not given, a terminal gets readable lines.",
    )
    log_rotation: bool = flag(
        "enable-log-rotation",
        BOOL,
        "false",
        LOGGING,
        "Rotate the log's file, of which there must be one among the outputs.",
    )
    log_rotation_text: str = flag(
        "log-rotation-config-json",
        STRING,
        '{"maxsize":100,"maxage":0,"maxbackups":0,"localtime":false,"compress":false}',
        LOGGING,
        "How it is rotated: at so many MiB; old files deleted after so many days, or when there "
        "are more than so many; named by local time; compressed. 0: 100 MiB, all are kept.",
    )
    access_log: str = flag(
        "access-log",
        STRING,
        "",
        LOGGING,
        "File, 'stderr' or 'stdout' for a line about each call; a file is rotated. Not in etcd.",
    )
    access_log_one_in: int = flag(
        "access-log-sample", UINT, "1", LOGGING, "Log one in so many calls there.", zero=DEFAULT
    )
    access_log_prefix: str = flag(
        "access-log-prefix",
        STRING,
        "",
        LOGGING,
        "Log only calls about keys that begin so; empty: all calls.",
    )
    tracing: bool = flag(
        "enable-distributed-tracing",
        BOOL,
        "false",
        TRACING,
        "Send spans of requests to a collector, by OTLP over gRPC; needs kvorum[tracing].",
    )
    tracing_address: str = flag(
        "distributed-tracing-address", STRING, "localhost:4317", TRACING, "host:port of it."
    )
    tracing_service: str = flag(
        "distributed-tracing-service-name", STRING, "etcd", TRACING, "Name of this service there."
    )
    tracing_instance: str = flag(
        "distributed-tracing-instance-id",
        STRING,
        "",
        TRACING,
        "Id of this member there, unlike that of any other; empty: none.",
    )
    tracing_rate: int = flag(
        "distributed-tracing-sampling-rate",
        INT,
        "0",
        TRACING,
        "Traces of a million requests whose clients do not say whether to; 0: none.",
    )
    backup_to: str = flag(
        "backup-to",
        STRING,
        "",
        BACKUP,
        "Archive that the leader keeps backups in: a directory that all members reach, or "
        "s3://bucket/prefix; empty: none. Not in etcd.",
    )
    backup_every_seconds: float = flag(
        "backup-every", SECONDS, "1h", BACKUP, "Time between two snapshots of the backup."
    )
    backup_keep: int = flag(
        "backup-keep", UINT, "24", BACKUP, "Keep so many snapshots, and every change since."
    )
    backup_log_seconds: float = flag(
        "backup-log-interval",
        SECONDS,
        "10s",
        BACKUP,
        "Changes are in the archive after so long at the latest.",
    )
    corrupt_check_seconds: float = flag(
        "corrupt-check-time",
        SECONDS,
        "0s",
        TUNING,
        "Time between two comparisons of all members; 0: none.",
    )
    compact_hash_check_seconds: float = flag(
        "compact-hash-check-time",
        SECONDS,
        "1m0s",
        TUNING,
        "Time between two comparisons of the hashes that compactions leave at members; one that "
        "differs raises the alarm CORRUPT. --feature-gates=CompactHashCheck=false: none.",
    )
    downgrade_check_seconds: float = flag(
        "downgrade-check-time",
        SECONDS,
        "5s",
        TUNING,
        "Time between two looks whether a downgrade has reached all members; 0: none.",
    )
    compaction_batch_revisions: int = flag(
        "compaction-batch-limit",
        INT,
        "0",
        TUNING,
        "Revisions removed in one step of a compaction; 0: 1000.",
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
        "Start as the only member of a new cluster, with this directory's data.",
    )
    unsafe_no_fsync: bool = flag(
        "unsafe-no-fsync", BOOL, "false", UNSAFE, "Never sync; a power cut loses data."
    )
    ephemeral: bool = flag(
        "ephemeral",
        BOOL,
        "false",
        UNSAFE,
        "For tests: free ports, printed as a line of JSON, and nothing is kept when standard input "
        "or the process ends. Not in etcd.",
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
