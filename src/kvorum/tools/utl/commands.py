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
    Flag("timeout", "duration", "How long to wait for a locked database; 0: forever", 10 * SECOND),
    Flag(
        "write-out",
        "string",
        "Format of the output: fields, json, protobuf, simple, table",
        "simple",
        short="w",
        words=("fields", "json", "protobuf", "simple", "table"),
    ),
)
DATA_DIRECTORY = Flag("data-dir", "string", "Of the stopped member, a directory")
LOG_DIRECTORY = Flag("wal-dir", "string", "Of its log if elsewhere, a directory")
REVISION = Flag("rev", "int", "At this revision; 0: the newest")

RESTORE_FLAGS = (
    Flag("bump-revision", "uint", "Raise the newest revision by so much"),
    Flag("data-dir", "string", "What is made, by default <name>.etcd, a directory"),
    Flag("initial-advertise-peer-urls", "string", "Of this member", "http://localhost:2380"),
    Flag("initial-cluster", "string", "All new members", "default=http://localhost:2380"),
    Flag("initial-cluster-token", "string", "Makes the cluster's id its own", "etcd-cluster"),
    # The database reserves its own address space; the flag is accepted so that scripts still work.
    Flag("initial-memory-map-size", "uint", "Accepted; it has no effect"),
    Flag("mark-compacted", "bool", "Compact up to the raised revision; goes with --bump-revision"),
    Flag("name", "string", "Of this member", "default"),
    Flag("skip-hash-check", "bool", "Do without the snapshot's own checksum"),
    Flag("wal-dir", "string", "Where the log goes if elsewhere, a directory"),
)
POINT_FLAGS = (
    Flag(
        "bump-revision",
        "uint",
        "Raise the newest revision by so much; 0: leave revisions as they are",
        1_000_000_000,
    ),
    *(each for each in RESTORE_FLAGS if each.name not in ("bump-revision", "mark-compacted")),
    Flag("from", "string", "The archive: a directory, or s3://bucket/prefix"),
    Flag(
        "mark-compacted",
        "bool",
        "Compact up to the raised revision; goes with --bump-revision",
        True,
    ),
    Flag("to-revision", "int", "As the store was at this revision; by default the newest"),
    Flag("to-time", "string", "As the store was at this time, such as 2026-11-17T20:15:00Z"),
)
SAVE_FLAGS = (
    Flag("cacert", "string", "Authorities to trust in servers' certificates, a file"),
    Flag("cert", "string", "Certificate to show to servers, a file"),
    Flag("endpoints", "strings", "Exactly one", ["127.0.0.1:2379"]),
    Flag("insecure-skip-tls-verify", "bool", "Accept any certificate of a server: for tests only"),
    Flag("key", "string", "Key of the certificate, a file"),
    Flag("password", "string", "Password of --user"),
    Flag("user", "string", "name or name:password"),
)
MIGRATE_FLAGS = (
    DATA_DIRECTORY,
    Flag("force", "bool", "Set the version whatever is in the way: not recommended"),
    Flag("output-dir", "string", "Make a directory of the other server's kind, a directory"),
    Flag("output-wal-dir", "string", "Where its log goes if elsewhere, a directory"),
    Flag("target-version", "string", "X.Y, such as 3.6; 3.5 at least"),
    Flag("to-etcd", "bool", "With --output-dir: from Kvorum's to etcd's, not the other way"),
    Flag("wal-dir", "string", "With --output-dir: the member's log if elsewhere, a directory"),
)

ROOT = Command(
    "kvorumutl",
    "Works on files of members that do not run",
    passed_on=GLOBAL_FLAGS,
    children=(
        Command(
            "defrag",
            "Writes the database of a stopped member anew",
            _run("defragment"),
            flags=(DATA_DIRECTORY,),
        ),
        Command(
            "snapshot",
            "Snapshot files",
            children=(
                Command(
                    "restore",
                    "Makes a data directory from a snapshot",
                    _run("restore"),
                    "<filename> --data-dir {output dir} [options]",
                    RESTORE_FLAGS,
                ),
                Command("status", "Tells what is in a snapshot file", _run("status"), "<filename>"),
                Command(
                    "save",
                    "Fetches a snapshot of a running member",
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
            "Makes a data directory from an archive of backups, as of some revision or time",
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
            "Checks that the files of a stopped member are whole and fit each other",
            _run("verify"),
            flags=(
                DATA_DIRECTORY,
                Flag("exact-index", "bool", "All that is committed must be in the database"),
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
                    "Looks for content of etcd's version 2",
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
