"""The commands of `kvorumutl` and their flags: those of etcdutl 3.7, and our own.

Our own commands cannot be abbreviated, so that every abbreviation of an etcdutl command keeps its
meaning.
"""

from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.utl.dumps.tree import DUMP

SECOND = 1_000_000_000


def _run(module: str) -> str:
    return f"kvorum.tools.utl.{module}:run"


GLOBAL_FLAGS = (
    Flag("timeout", "duration", "Maximum wait for a locked database; 0: forever", 10 * SECOND),
    Flag(
        "write-out",
        "string",
        "Format of the output: fields, json, protobuf, simple, table",
        "simple",
        short="w",
        words=("fields", "json", "protobuf", "simple", "table"),
    ),
)
DATA_DIRECTORY = Flag("data-dir", "string", "Data of the stopped member, a directory")
LOG_DIRECTORY = Flag("wal-dir", "string", "Write-ahead log of the member if elsewhere, a directory")
REVISION = Flag("rev", "int", "Newest revision to hash; 0: the newest in the file")

RESTORE_FLAGS = (
    Flag("bump-revision", "uint", "Number by which to raise the newest revision"),
    Flag("data-dir", "string", "Data of the new member, by default <name>.etcd, a directory"),
    Flag(
        "initial-advertise-peer-urls", "string", "Peer URLs of this member", "http://localhost:2380"
    ),
    Flag(
        "initial-cluster",
        "string",
        "Members of the new cluster: name=url,name=url",
        "default=http://localhost:2380",
    ),
    Flag(
        "initial-cluster-token",
        "string",
        "Token that makes the id of the new cluster unique",
        "etcd-cluster",
    ),
    # The database reserves its own address space; the flag is accepted so that scripts still work.
    Flag("initial-memory-map-size", "uint", "No effect; accepted for compatibility with etcdutl"),
    Flag("mark-compacted", "bool", "Compact up to the raised revision; requires --bump-revision"),
    Flag("name", "string", "Name of this member", "default"),
    Flag("skip-hash-check", "bool", "Do not verify the checksum at the end of the snapshot"),
    Flag("wal-dir", "string", "Write-ahead log of the new member if elsewhere, a directory"),
)
POINT_FLAGS = (
    Flag(
        "bump-revision",
        "uint",
        "Number by which to raise the newest revision; 0: keep the revisions",
        1_000_000_000,
    ),
    *(each for each in RESTORE_FLAGS if each.name not in ("bump-revision", "mark-compacted")),
    Flag("from", "string", "Archive of backups: a directory, or s3://bucket/prefix"),
    Flag(
        "mark-compacted",
        "bool",
        "Compact up to the raised revision; requires --bump-revision",
        True,
    ),
    Flag("to-revision", "int", "Restore the store as of this revision; by default the newest"),
    Flag("to-time", "string", "Restore the store as of this time, such as 2026-11-17T20:15:00Z"),
)
SAVE_FLAGS = (
    Flag("cacert", "string", "CA certificates for servers' certificates, a file"),
    Flag("cert", "string", "Client certificate to present to servers, a file"),
    Flag("endpoints", "strings", "Address of exactly one member", ["127.0.0.1:2379"]),
    Flag("insecure-skip-tls-verify", "bool", "Accept any certificate of a server; for tests only"),
    Flag("key", "string", "Private key of the client certificate, a file"),
    Flag("password", "string", "Password of --user"),
    Flag("user", "string", "User: name or name:password"),
)
MIGRATE_FLAGS = (
    DATA_DIRECTORY,
    Flag("force", "bool", "Set the version even if a check fails; not recommended"),
    Flag("output-dir", "string", "Output in the other server's format, a directory"),
    Flag("output-wal-dir", "string", "Write-ahead log of the output if elsewhere, a directory"),
    Flag("target-version", "string", "Target version X.Y, such as 3.6; at least 3.5"),
    Flag(
        "to-etcd",
        "bool",
        "With --output-dir: convert from Kvorum to etcd instead of from etcd to Kvorum",
    ),
    Flag(
        "wal-dir",
        "string",
        "With --output-dir: write-ahead log of the member if elsewhere, a directory",
    ),
)

ROOT = Command(
    "kvorumutl",
    "Works on the files of stopped members",
    passed_on=GLOBAL_FLAGS,
    children=(
        Command(
            "defrag",
            "Rewrites the database of a stopped member without free pages",
            _run("defragment"),
            flags=(DATA_DIRECTORY,),
        ),
        Command(
            "snapshot",
            "Snapshot files",
            children=(
                Command(
                    "restore",
                    "Creates a data directory from a snapshot",
                    _run("restore"),
                    "<filename> --data-dir {output dir} [options]",
                    RESTORE_FLAGS,
                ),
                Command(
                    "status",
                    "Shows the hash, revision, keys and size of a snapshot file",
                    _run("status"),
                    "<filename>",
                ),
                Command(
                    "save",
                    "Saves a snapshot of a running member to a file",
                    _run("save"),
                    "<filename>",
                    SAVE_FLAGS,
                    is_exact=True,
                ),
                Command(
                    "hashkv",
                    "Hashes the keys of a snapshot file",
                    _run("hashing"),
                    "<filename>",
                    (REVISION,),
                    is_exact=True,
                ),
            ),
        ),
        Command(
            "restore",
            "Creates a data directory from an archive of backups, as of a revision or time",
            _run("points"),
            "--from {archive} --data-dir {output dir} [options]",
            POINT_FLAGS,
            is_exact=True,
        ),
        Command(
            "hashkv",
            "Hashes the keys of a database, a snapshot or a data directory",
            _run("hashing"),
            "<filename>",
            (REVISION,),
        ),
        Command(
            "migrate",
            "Changes the storage version, or moves a member between etcd and Kvorum",
            _run("migration"),
            flags=MIGRATE_FLAGS,
        ),
        DUMP,
        Command(
            "verify",
            "Checks that the files of a stopped member are undamaged and consistent",
            _run("verify"),
            flags=(
                DATA_DIRECTORY,
                Flag("exact-index", "bool", "Require every committed entry to be in the database"),
                LOG_DIRECTORY,
            ),
            is_exact=True,
        ),
        Command(
            "check",
            "Checks of a data directory",
            children=(
                Command(
                    "v2store",
                    "Checks for content of etcd's v2 store",
                    _run("v2_store"),
                    flags=(DATA_DIRECTORY, LOG_DIRECTORY),
                ),
            ),
            is_exact=True,
        ),
        Command(
            "completion",
            "Writes the script that completes commands in a shell",
            "kvorum.tools.cli.completion:completion",
            "[bash|zsh|fish|powershell]",
            words=("bash", "zsh", "fish", "powershell"),
        ),
        Command("version", "Shows the version", "kvorum.tools.cli.about:version"),
        Command(
            "help", "Shows the help of a command", "kvorum.tools.cli.about:show_help", "[command]"
        ),
    ),
)
"""The whole command tree."""
