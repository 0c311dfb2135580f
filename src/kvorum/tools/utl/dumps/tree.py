"""`dump` and the commands below it, with the flags of etcd's dump tools."""

from kvorum.tools.cli.commands import Command, Flag

_INDEX_MAX = (1 << 64) - 1
ENTRY_TYPES = (
    "ConfigChange",
    "Normal",
    "Request",
    "InternalRaftRequest",
    "IRRRange",
    "IRRPut",
    "IRRDeleteRange",
    "IRRTxn",
    "IRRCompaction",
    "IRRLeaseGrant",
    "IRRLeaseRevoke",
    "IRRLeaseCheckpoint",
)


def _run(name: str) -> str:
    return f"kvorum.tools.utl.dumps.running:{name}"


ITERATE_FLAGS = (
    Flag("decode", "bool", "Decode entries instead of showing the stored bytes"),
    Flag("limit", "uint", "Maximum number of entries; 0: all"),
)
WAL_FLAGS = (
    Flag("end-index", "uint", "Show only entries before this index", _INDEX_MAX),
    Flag(
        "entry-type",
        "string",
        f"Show only entries of these types, separated by commas: {', '.join(ENTRY_TYPES)}",
        "Normal,ConfigChange",
        words=ENTRY_TYPES,
    ),
    Flag("raw", "bool", "Show every record as stored in the files"),
    Flag("start-index", "uint", "First entry to show, regardless of snapshots"),
    Flag(
        "start-snap", "string", "Start after the snapshot with this file name instead of the newest"
    ),
    Flag(
        "stream-decoder", "string", "Command that answers each line of hex digits with STATUS|TEXT"
    ),
    Flag("wal-dir", "string", "Write-ahead log if elsewhere, a directory"),
)
METRICS_FLAGS = (
    Flag("addr", "string", "URL of the metrics, such as http://127.0.0.1:2379/metrics"),
    Flag("cacert", "string", "CA certificates for servers' certificates, a file"),
    Flag("cert", "string", "Client certificate to present to servers, a file"),
    Flag("insecure-skip-tls-verify", "bool", "Accept any certificate of a server; for tests only"),
    Flag("key", "string", "Private key of the client certificate, a file"),
)
_DATABASE = "<data dir or db file>"

DUMP = Command(
    "dump",
    "Shows the content of databases, logs and snapshots, and the metrics of a member",
    # An abbreviation of an etcdutl command keeps its meaning.
    is_exact=True,
    children=(
        Command(
            "db",
            "A database, or a snapshot of one",
            children=(
                Command("list-bucket", "Lists the buckets", _run("list_bucket"), _DATABASE),
                Command(
                    "iterate-bucket",
                    "Shows the entries of a bucket in descending order of keys",
                    _run("iterate_bucket"),
                    f"{_DATABASE} <bucket>",
                    ITERATE_FLAGS,
                ),
                Command(
                    "scan-keys",
                    "Shows rows from a revision on, page by page, even in a damaged database",
                    _run("scan_keys"),
                    f"{_DATABASE} <start revision>",
                ),
                Command(
                    "hash",
                    "Shows the hash that the Hash call returns",
                    _run("hash_database"),
                    _DATABASE,
                ),
            ),
        ),
        Command(
            "wal",
            "The write-ahead log of a member",
            _run("wal"),
            "<data dir>",
            WAL_FLAGS,
            is_single_dashed=True,
        ),
        Command("snap", "The .snap files of a member", _run("snap"), "<data dir or file>"),
        Command(
            "metrics",
            "The metrics of a running member, without their values",
            _run("metrics"),
            flags=METRICS_FLAGS,
            is_single_dashed=True,
        ),
    ),
)
"""The `dump` commands of `kvorumutl`."""
