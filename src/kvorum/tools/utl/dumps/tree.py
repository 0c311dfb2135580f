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
    Flag("decode", "bool", "Show what entries mean, not how they are stored"),
    Flag("limit", "uint", "At most so many; 0: all"),
)
WAL_FLAGS = (
    Flag("end-index", "uint", "Only entries below this one", _INDEX_MAX),
    Flag(
        "entry-type",
        "string",
        f"Only entries of these types, with commas: {', '.join(ENTRY_TYPES)}",
        "Normal,ConfigChange",
        words=ENTRY_TYPES,
    ),
    Flag("raw", "bool", "Every record as it lies in the files"),
    Flag("start-index", "uint", "From this entry on, whatever snapshots there are"),
    Flag("start-snap", "string", "Behind the snapshot of this file's name, not the newest"),
    Flag("stream-decoder", "string", "A command that answers lines of hex with STATUS|TEXT"),
    Flag("wal-dir", "string", "The log if elsewhere, a directory"),
)
METRICS_FLAGS = (
    Flag("addr", "string", "URL of the page, such as http://127.0.0.1:2379/metrics"),
    Flag("cacert", "string", "Authorities to trust in servers' certificates, a file"),
    Flag("cert", "string", "Certificate to show to servers, a file"),
    Flag("insecure-skip-tls-verify", "bool", "Accept any certificate of a server: for tests only"),
    Flag("key", "string", "Key of the certificate, a file"),
)
_DATABASE = "<data dir or db file>"

DUMP = Command(
    "dump",
    "Shows what is in databases, logs and snapshots, and which metrics there are",
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
                    "Shows the entries of a bucket, the greatest key first",
                    _run("iterate_bucket"),
                    f"{_DATABASE} <bucket>",
                    ITERATE_FLAGS,
                ),
                Command(
                    "scan-keys",
                    "Shows rows from a revision on, page by page, whatever is damaged",
                    _run("scan_keys"),
                    f"{_DATABASE} <start revision>",
                ),
                Command(
                    "hash", "Shows what the Hash call answers", _run("hash_database"), _DATABASE
                ),
            ),
        ),
        Command(
            "wal",
            "The log of a member",
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
