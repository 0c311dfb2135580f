"""Every flag of the server, in one table, and Go's way of reading a command line.

A flag that etcd has and this server cannot honour yet is in the table too: its default is
accepted, another value is refused by saying what is missing. `parse_arguments` knows nothing
of the environment or of what values mean together; see `environment` and `config`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvorum.settings import values
from kvorum.settings.gates import GATES, gates


class FlagError(Exception):
    """A command line that cannot be parsed; the process ends with exit code 2."""


class Kind(NamedTuple):
    """A sort of value: how its text is parsed, and how it is written in the help."""

    name: str
    parse: Callable[[str], object]


class Flag(NamedTuple):
    """One flag. `missing` names the feature that a value other than the default would need."""

    name: str
    kind: Kind
    default: str
    section: str
    help: str
    missing: str = ""


def _duration(text: str) -> int:
    try:
        return values.duration(text)
    except ValueError:
        raise ValueError("parse error") from None


BOOL = Kind("bool", values.boolean)
UINT = Kind("uint", lambda text: values.integer(text, 0, 2**64 - 1))
UINT32 = Kind("uint32", lambda text: values.integer(text, 0, 2**32 - 1))
INT = Kind("int", lambda text: values.integer(text, -(2**63), 2**63 - 1))
DURATION = Kind("duration", _duration)
STRING = Kind("string", str)
STRINGS = Kind("list", values.strings)
URLS = Kind("urls", values.urls)
ORIGINS = Kind("origins", values.urls_or_star)
FEATURE_GATES = Kind("gates", gates)

MEMBER = "Member"
CLUSTERING = "Clustering"
SECURITY = "Security"
AUTH = "Auth"
MONITORING = "Profiling and Monitoring"
LOGGING = "Logging"
TUNING = "Behaviour"
TRACING = "Distributed tracing"
UNSAFE = "Unsafe"

_DISCOVERY = "discovery"
_AUTH = "authentication"
_TRACING = "distributed tracing"
_CLIENT_URL = "http://localhost:2379"
_PEER_URL = "http://localhost:2380"

_STATES = Kind("string", values.one_of("new", "existing"))
_FALLBACKS = Kind("string", values.one_of("exit", "proxy"))
_DEPRECATIONS = Kind(
    "string",
    values.one_of("write-only", "write-only-skip-check", "write-only-drop-data", "gone"),
)

FLAGS: tuple[Flag, ...] = (
    Flag("name", STRING, "default", MEMBER, "Name of this member, unique in its cluster."),
    Flag("data-dir", STRING, "", MEMBER, "Directory for everything; empty: <name>.etcd."),
    Flag("wal-dir", STRING, "", MEMBER, "Directory for the write-ahead log, if not in data-dir."),
    Flag("snapshot-count", UINT, "10000", MEMBER, "Applied entries between two raft snapshots."),
    Flag(
        "snapshot-catchup-entries",
        UINT,
        "5000",
        MEMBER,
        "Entries kept in memory behind a snapshot for members that lag.",
    ),
    Flag("max-snapshots", UINT, "5", MEMBER, "Snapshot files to keep; 0: all. Deprecated."),
    Flag("max-wals", UINT, "5", MEMBER, "Segments of the write-ahead log to keep; 0: all."),
    Flag("heartbeat-interval", UINT, "100", MEMBER, "Milliseconds between two heartbeats."),
    Flag(
        "election-timeout",
        UINT,
        "1000",
        MEMBER,
        "Milliseconds without a leader until an election; at least 5 heartbeats.",
    ),
    Flag(
        "initial-election-tick-advance",
        BOOL,
        "true",
        MEMBER,
        "At the start, skip most of the first election timeout.",
    ),
    Flag("listen-peer-urls", URLS, _PEER_URL, MEMBER, "Where to listen for other members."),
    Flag("listen-client-urls", URLS, _CLIENT_URL, MEMBER, "Where to listen for clients."),
    Flag(
        "listen-client-http-urls",
        URLS,
        "",
        MEMBER,
        "Where to listen for HTTP alone.",
        "listeners for HTTP alone",
    ),
    Flag(
        "quota-backend-bytes",
        INT,
        "0",
        MEMBER,
        "Size of the database that raises the NOSPACE alarm; 0: 2 GiB, negative: none.",
    ),
    Flag(
        "backend-bbolt-freelist-type",
        STRING,
        "",
        MEMBER,
        "Accepted for etcd's sake; this server's database has no such list.",
    ),
    Flag(
        "backend-batch-interval",
        DURATION,
        "0s",
        MEMBER,
        "Longest time between two commits of the database; 0: 100ms.",
    ),
    Flag(
        "backend-batch-limit",
        INT,
        "0",
        MEMBER,
        "Most writes between two commits of the database; 0: 10000.",
    ),
    Flag(
        "bootstrap-defrag-threshold-megabytes",
        UINT,
        "0",
        MEMBER,
        "Defragment at the start if that frees so much; 0: never.",
        "defragmentation at the start",
    ),
    Flag(
        "memory-mlock",
        BOOL,
        "false",
        MEMBER,
        "Lock the database into memory.",
        "locking the database into memory",
    ),
    Flag("max-txn-ops", UINT, "128", MEMBER, "Most operations in one transaction."),
    Flag("max-request-bytes", UINT, "1572864", MEMBER, "Largest request, in bytes."),
    Flag(
        "max-concurrent-streams",
        UINT32,
        "4294967295",
        MEMBER,
        "Streams a client may open on one connection.",
    ),
    Flag(
        "grpc-keepalive-min-time",
        DURATION,
        "5s",
        MEMBER,
        "Shortest time between two pings of a client.",
    ),
    Flag(
        "grpc-keepalive-interval",
        DURATION,
        "2h",
        MEMBER,
        "Time between two pings to an idle client; 0: none.",
    ),
    Flag(
        "grpc-keepalive-timeout",
        DURATION,
        "20s",
        MEMBER,
        "Time a client has to answer a ping; 0: as long as it likes.",
    ),
    Flag("socket-reuse-port", BOOL, "false", MEMBER, "Listen with SO_REUSEPORT.", "socket options"),
    Flag(
        "socket-reuse-address",
        BOOL,
        "false",
        MEMBER,
        "Listen with SO_REUSEADDR.",
        "socket options",
    ),
    Flag(
        "raft-read-timeout",
        DURATION,
        "5s",
        MEMBER,
        "Longest silence on a stream from another member; at least 5s.",
    ),
    Flag(
        "raft-write-timeout",
        DURATION,
        "5s",
        MEMBER,
        "How long another member may leave a stream unread; at least 5s.",
    ),
    Flag("enable-grpc-gateway", BOOL, "true", MEMBER, "Serve the JSON gateway under /v3/."),
    Flag(
        "feature-gates",
        FEATURE_GATES,
        "",
        MEMBER,
        "Features to switch: Name=true,Other=false. On unless switched off: "
        + ", ".join(name for name, gate in GATES.items() if gate.default)
        + ".",
    ),
    Flag(
        "initial-advertise-peer-urls",
        URLS,
        _PEER_URL,
        CLUSTERING,
        "This member's peer URLs, as told to the others.",
    ),
    Flag(
        "initial-cluster",
        STRING,
        f"default={_PEER_URL}",
        CLUSTERING,
        "The members of a new cluster: name=url,name=url.",
    ),
    Flag(
        "initial-cluster-state",
        _STATES,
        "new",
        CLUSTERING,
        "'new' for a new cluster, 'existing' to join one.",
    ),
    Flag(
        "initial-cluster-token",
        STRING,
        "etcd-cluster",
        CLUSTERING,
        "Tells clusters apart that were made from equal URLs.",
    ),
    Flag(
        "advertise-client-urls",
        URLS,
        _CLIENT_URL,
        CLUSTERING,
        "This member's client URLs, as told to clients.",
    ),
    Flag("discovery-token", STRING, "", CLUSTERING, "Token of a discovery.", _DISCOVERY),
    Flag("discovery-endpoints", STRING, "", CLUSTERING, "Servers of a discovery.", _DISCOVERY),
    Flag("discovery-dial-timeout", DURATION, "2s", CLUSTERING, "Time to connect.", _DISCOVERY),
    Flag("discovery-request-timeout", DURATION, "5s", CLUSTERING, "Time to answer.", _DISCOVERY),
    Flag("discovery-keepalive-time", DURATION, "2s", CLUSTERING, "Time to ping.", _DISCOVERY),
    Flag(
        "discovery-keepalive-timeout",
        DURATION,
        "6s",
        CLUSTERING,
        "Time to answer a ping.",
        _DISCOVERY,
    ),
    Flag("discovery-insecure-transport", BOOL, "true", CLUSTERING, "Without TLS.", _DISCOVERY),
    Flag(
        "discovery-insecure-skip-tls-verify",
        BOOL,
        "false",
        CLUSTERING,
        "Trust any certificate.",
        _DISCOVERY,
    ),
    Flag("discovery-cert", STRING, "", CLUSTERING, "Own certificate.", _DISCOVERY),
    Flag("discovery-key", STRING, "", CLUSTERING, "Key of it.", _DISCOVERY),
    Flag("discovery-cacert", STRING, "", CLUSTERING, "Trusted authority.", _DISCOVERY),
    Flag("discovery-user", STRING, "", CLUSTERING, "User name.", _DISCOVERY),
    Flag("discovery-password", STRING, "", CLUSTERING, "Password.", _DISCOVERY),
    Flag("discovery-fallback", _FALLBACKS, "exit", CLUSTERING, "If it fails.", _DISCOVERY),
    Flag("discovery-srv", STRING, "", CLUSTERING, "DNS domain to ask for members.", _DISCOVERY),
    Flag("discovery-srv-name", STRING, "", CLUSTERING, "Suffix of the service name.", _DISCOVERY),
    Flag(
        "strict-reconfig-check",
        BOOL,
        "true",
        CLUSTERING,
        "Refuse changes of membership that would endanger the quorum.",
    ),
    Flag("pre-vote", BOOL, "true", CLUSTERING, "Ask before disturbing a leader by an election."),
    Flag("max-learners", INT, "1", CLUSTERING, "Most learners in the cluster."),
    Flag(
        "auto-compaction-mode",
        STRING,
        "periodic",
        CLUSTERING,
        "'periodic': retention is a time; 'revision': a number of revisions.",
    ),
    Flag(
        "auto-compaction-retention",
        STRING,
        "0",
        CLUSTERING,
        "History to keep: 5m, 12 (hours), or revisions; 0: no auto compaction.",
    ),
    Flag(
        "v2-deprecation",
        _DEPRECATIONS,
        "write-only",
        CLUSTERING,
        "Accepted for etcd's sake; there never was a v2 store here. Deprecated.",
    ),
    Flag(
        "cert-file",
        STRING,
        "",
        SECURITY,
        "Certificate shown to clients; read again when it changes.",
    ),
    Flag("key-file", STRING, "", SECURITY, "Key of it."),
    Flag("client-cert-file", STRING, "", SECURITY, "Certificate to be a client with."),
    Flag("client-key-file", STRING, "", SECURITY, "Key of it."),
    Flag("client-cert-auth", BOOL, "false", SECURITY, "Demand certificates of clients."),
    Flag(
        "trusted-ca-file",
        STRING,
        "",
        SECURITY,
        "Authorities of clients' certificates, which it demands.",
    ),
    Flag("client-crl-file", STRING, "", SECURITY, "Revocation list of clients' certificates."),
    Flag(
        "client-cert-allowed-hostname",
        STRINGS,
        "",
        SECURITY,
        "Host names that clients' certificates may be for.",
    ),
    Flag("auto-tls", BOOL, "false", SECURITY, "Make a certificate for clients."),
    Flag("peer-cert-file", STRING, "", SECURITY, "Certificate for members."),
    Flag("peer-key-file", STRING, "", SECURITY, "Key of it."),
    Flag("peer-client-cert-file", STRING, "", SECURITY, "Certificate to dial with."),
    Flag("peer-client-key-file", STRING, "", SECURITY, "Key of it."),
    Flag("peer-client-cert-auth", BOOL, "false", SECURITY, "Demand members' certificates."),
    Flag("peer-trusted-ca-file", STRING, "", SECURITY, "Authority for members."),
    Flag("peer-crl-file", STRING, "", SECURITY, "Revoked members' certificates."),
    Flag("peer-cert-allowed-cn", STRINGS, "", SECURITY, "Common names of members."),
    Flag("peer-cert-allowed-hostname", STRINGS, "", SECURITY, "Names of members."),
    Flag("peer-skip-client-san-verification", BOOL, "false", SECURITY, "Trust any address."),
    Flag("peer-auto-tls", BOOL, "false", SECURITY, "Make a certificate for members."),
    Flag("self-signed-cert-validity", UINT, "1", SECURITY, "Years such certificates last."),
    Flag("cipher-suites", STRINGS, "", SECURITY, "Suites of TLS 1.2, by Go's names."),
    Flag("tls-min-version", STRING, "TLS1.2", SECURITY, "Lowest version of TLS: TLS1.2 or TLS1.3."),
    Flag(
        "tls-max-version",
        STRING,
        "",
        SECURITY,
        "Highest version of TLS; empty: the highest there is.",
    ),
    Flag("cors", ORIGINS, "*", SECURITY, "Origins that browsers may call from; *: any."),
    Flag(
        "host-whitelist", STRINGS, "*", SECURITY, "Host names that HTTP requests may use; *: any."
    ),
    Flag("auth-token", STRING, "simple", AUTH, "Sort of tokens: 'simple' or 'jwt,...'.", _AUTH),
    Flag("auth-token-ttl", UINT, "300", AUTH, "Seconds a simple token lasts.", _AUTH),
    Flag("bcrypt-cost", UINT, "10", AUTH, "Cost of a password's hash.", _AUTH),
    Flag(
        "enable-pprof",
        BOOL,
        "false",
        MONITORING,
        "Serve stacks and profiles under /debug/pprof/ at the client URLs.",
    ),
    Flag(
        "metrics",
        STRING,
        "basic",
        MONITORING,
        "'basic', or 'extensive' for a histogram of each RPC's duration.",
    ),
    Flag(
        "listen-metrics-urls",
        URLS,
        "",
        MONITORING,
        "Where to serve metrics and health alone.",
    ),
    Flag(
        "warning-apply-duration",
        DURATION,
        "100ms",
        MONITORING,
        "Warn of an entry that takes longer to apply.",
    ),
    Flag(
        "warning-unary-request-duration",
        DURATION,
        "300ms",
        MONITORING,
        "Warn of a unary request that takes longer.",
    ),
    Flag("logger", STRING, "zap", LOGGING, "Shape of the log; only 'zap'."),
    Flag(
        "log-outputs",
        STRINGS,
        "default",
        LOGGING,
        "'default' (stderr), 'stderr', 'stdout' or paths.",
    ),
    Flag("log-level", STRING, "info", LOGGING, "debug, info, warn, error, panic or fatal."),
    Flag(
        "log-format",
        STRING,
        "json",
        LOGGING,
        "'json' or 'console'; if not given, a terminal gets readable lines.",
    ),
    Flag("enable-log-rotation", BOOL, "false", LOGGING, "Rotate the log file.", "log rotation"),
    Flag(
        "log-rotation-config-json",
        STRING,
        '{"maxsize":100,"maxage":0,"maxbackups":0,"localtime":false,"compress":false}',
        LOGGING,
        "How it is rotated.",
        "log rotation",
    ),
    Flag(
        "corrupt-check-time",
        DURATION,
        "0s",
        TUNING,
        "Time between two comparisons of all members; 0: none.",
    ),
    Flag(
        "compact-hash-check-time",
        DURATION,
        "1m0s",
        TUNING,
        "Time between two comparisons of the hashes that compactions leave at members; one that "
        "differs raises the alarm CORRUPT. --feature-gates=CompactHashCheck=false: none.",
    ),
    Flag(
        "compaction-batch-limit",
        INT,
        "0",
        TUNING,
        "Revisions removed in one step of a compaction; 0: 1000.",
    ),
    Flag(
        "compaction-sleep-interval",
        DURATION,
        "0s",
        TUNING,
        "Pause between two steps of a compaction; 0: 10ms.",
    ),
    Flag(
        "watch-progress-notify-interval",
        DURATION,
        "0s",
        TUNING,
        "Time between two progress notifications of a watch; 0: 10m.",
    ),
    Flag(
        "downgrade-check-time",
        DURATION,
        "5s",
        TUNING,
        "Time between two looks at a downgrade under way.",
    ),
    Flag("enable-distributed-tracing", BOOL, "false", TRACING, "Send spans of requests.", _TRACING),
    Flag("distributed-tracing-address", STRING, "localhost:4317", TRACING, "Where to.", _TRACING),
    Flag("distributed-tracing-service-name", STRING, "etcd", TRACING, "As which.", _TRACING),
    Flag("distributed-tracing-instance-id", STRING, "", TRACING, "As whom.", _TRACING),
    Flag("distributed-tracing-sampling-rate", INT, "0", TRACING, "Spans in a million.", _TRACING),
    Flag(
        "force-new-cluster",
        BOOL,
        "false",
        UNSAFE,
        "Start as the only member of a new cluster, with this directory's data.",
    ),
    Flag("unsafe-no-fsync", BOOL, "false", UNSAFE, "Never sync; a power cut loses data."),
    Flag(
        "config-file", STRING, "", MEMBER, "File to take all of this from.", "configuration files"
    ),
    Flag("version", BOOL, "false", MEMBER, "Show the version and exit."),
)

BY_NAME: Mapping[str, Flag] = {flag.name: flag for flag in FLAGS}
DEFAULTS: Mapping[str, object] = {flag.name: flag.kind.parse(flag.default) for flag in FLAGS}

IGNORED = frozenset(
    {"cluster-active-size", "cluster-remove-delay", "cluster-sync-interval", "config", "force"}
    | {"max-result-buffer", "max-retry-attempts", "peer-heartbeat-interval", "retry-interval"}
    | {"peer-election-timeout", "snapshot", "v", "vv", "test.coverprofile", "test.outputdir"}
)
"""Flags of long ago: accepted like booleans, without effect."""

REMOVED = {
    "discovery": "the v2 discovery was removed from etcd 3.7",
    "discovery-proxy": "the v2 discovery was removed from etcd 3.7",
    "enable-v2": "the v2 API was removed from etcd 3.6",
    "proxy": "the v2 proxy was removed from etcd 3.6",
}
"""Flags of older versions that scripts still use, and what became of them."""


def parse_arguments(arguments: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Return the values of the flags that were given, and the arguments that are no flags.

    As with Go, everything after the first such argument is one too.
    """
    given: dict[str, object] = {}
    place = 0
    while place < len(arguments):
        argument = arguments[place]
        if len(argument) < 2 or not argument.startswith("-"):
            break
        place += 1
        if argument == "--":
            break
        text = argument[2:] if argument.startswith("--") else argument[1:]
        name, equals, value = text.partition("=")
        if not name or name.startswith("-"):
            raise FlagError(f"bad flag syntax: {argument}")
        if name in ("h", "help"):
            given["help"] = True
            break
        if name in IGNORED:
            continue
        flag = find(name)
        if not equals:
            if flag.kind is BOOL:
                value = "true"
            elif place < len(arguments):
                value = arguments[place]
                place += 1
            else:
                raise FlagError(f"flag needs an argument: -{name}")
        given[name] = parse_value(flag, value)
    return given, list(arguments[place:])


def find(name: str) -> Flag:
    """Return a flag by its name; raise FlagError if there is none."""
    flag = BY_NAME.get(name)
    if flag is not None:
        return flag
    message = f"flag provided but not defined: -{name}"
    plain = name.removeprefix("experimental-")
    if name in REMOVED:
        message += f" ({REMOVED[name]})"
    elif plain != name:
        message += " (etcd 3.7 has no experimental flags any more"
        message += f"; use --{plain})" if plain in BY_NAME else ", see --feature-gates)"
    raise FlagError(message)


def parse_value(flag: Flag, text: str) -> object:
    """Return a flag's value from its text; raise FlagError with etcd's words."""
    try:
        value = flag.kind.parse(text)
    except ValueError as error:
        if flag.kind is BOOL:
            message = f'invalid boolean value "{text}" for -{flag.name}: {error}'
        else:
            message = f'invalid value "{text}" for flag -{flag.name}: {error}'
        raise FlagError(message) from None
    return value
