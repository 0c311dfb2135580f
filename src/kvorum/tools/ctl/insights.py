"""The commands that etcdctl does not have, and their flags.

Users cannot shorten these names, so that etcdctl's shortened names keep their meaning.
"""

from kvorum.tools.cli.commands import Command, Flag

INSIGHT = "History and insight commands"

SECOND = 1_000_000_000
PREFIX = Flag("prefix", "string", "Only keys with this prefix")
LEASES = ("drop", "grant", "skip")

LOAD_FLAGS = (
    Flag("clients", "int", "Number of concurrent calls", 1),
    Flag("conns", "int", "Number of connections that the calls share", 1),
    Flag("key-prefix", "string", "Prefix of the generated keys", "kvorumctl-bench/"),
    Flag("key-size", "int", "Minimum size of a key after its prefix, in bytes", 8),
    Flag("key-space-size", "int", "Number of different keys", 1),
    Flag("rate", "int", "Maximum number of calls per second; 0: no limit"),
    Flag("sequential-keys", "bool", "Use the keys in order instead of at random"),
    Flag("total", "int", "Total number of calls", 10_000),
    Flag("val-size", "int", "Size of a value, in bytes", 8),
)
CONSISTENCY = Flag(
    "consistency", "string", "Linearizable (l) or serializable (s)", "l", words=("l", "s")
)
ARCHIVE = Flag("from", "string", "Archive of backups: a directory, or s3://bucket/prefix")
LIMIT = Flag("limit", "int", "Maximum number of keys in an answer; 0: all")


def _run(module: str, function: str) -> str:
    return f"kvorum.tools.ctl.{module}:{function}"


INSIGHT_COMMANDS = (
    Command(
        "history",
        "Shows every version of a key that compaction has not removed",
        _run("history", "history"),
        "[options] <key>",
        (Flag("limit", "int", "Maximum number of versions, the newest ones; 0: all"),),
        group=INSIGHT,
        is_exact=True,
    ),
    Command(
        "diff",
        "Shows the changes between two revisions",
        _run("diffs", "diff"),
        "--rev A [--rev B] [prefix]",
        (
            Flag("keys-only", "bool", "Show only the changed keys, with the kind of each change"),
            Flag(
                "rev", "strings", "Older revision, then newer revision (by default the current one)"
            ),
        ),
        group=INSIGHT,
        is_exact=True,
    ),
    Command(
        "revert",
        "Restores keys to their values at a revision",
        _run("reverting", "revert"),
        "--prefix P --to-rev R [options]",
        (
            Flag(
                "from-rev", "int", "Skip keys changed after this revision; 0: the current revision"
            ),
            PREFIX,
            Flag("to-rev", "int", "Revision to restore"),
            Flag("yes", "bool", "Apply the changes; without this flag the command only shows them"),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Restores keys to their values at a revision, and deletes keys that did not exist at\n"
            "that revision. Without --yes the command changes nothing, and shows what it would\n"
            "change. The command leaves alone keys that other clients change meanwhile, and names\n"
            "these keys at the end. After an interruption the same command continues the work."
        ),
    ),
    Command(
        "tree",
        "Shows keys as a tree, split at slashes, with counts and sizes",
        _run("tree", "tree"),
        "[options] [prefix]",
        (
            Flag("depth", "int", "Maximum number of levels; 0: all"),
            Flag("limit", "int", "Maximum number of rows under each node; 0: all", 50),
            Flag("rev", "int", "Read the keys as of this revision"),
        ),
        group=INSIGHT,
        is_exact=True,
    ),
    Command(
        "export",
        "Writes keys as of one revision, as lines of JSON",
        _run("exporting", "export"),
        "[options] [file]",
        (PREFIX, Flag("rev", "int", "Read the keys as of this revision")),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Writes keys as of one revision, as lines of JSON, to a file or to the standard\n"
            "output. The name of an incomplete file ends in .part; after an interruption the same\n"
            "command continues that file."
        ),
    ),
    Command(
        "import",
        "Puts the keys of an export into the store",
        _run("importing", "import_keys"),
        "[options] [file]",
        (
            Flag(
                "leases",
                "string",
                "For keys with a lease: drop the lease, grant the lease, or skip the key",
                "drop",
                words=LEASES,
            ),
            PREFIX,
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Puts the keys of an export into the store, from a file or from the standard input.\n"
            "The command skips keys that already have the right value and lease, so that the same\n"
            "command continues after an interruption. Keys that the export lacks stay unchanged."
        ),
    ),
    Command(
        "top",
        "Shows the activity of the members live",
        _run("top", "top"),
        "[options]",
        (
            Flag("cluster", "bool", "Ask every endpoint that the cluster's members advertise"),
            Flag("count", "int", "End after this number of samples; 0: never"),
            Flag("interval", "duration", "Time between two samples", SECOND),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Shows the activity of the members live: on a terminal as a table until you press q,\n"
            "otherwise as a line of JSON for each sample."
        ),
    ),
    Command(
        "doctor",
        "Reports what is wrong with a cluster or a data directory, and what to do next",
        _run("doctor", "doctor"),
        "[options]",
        (
            Flag("cluster", "bool", "Ask every endpoint that the cluster's members advertise"),
            Flag(
                "config-file",
                "string",
                "Configuration file to examine, with its data directory unless --data-dir is given",
            ),
            Flag("data-dir", "strings", "Data directories of stopped members to examine"),
            Flag("hash", "bool", "Compare the members' hashes of all keys", True),
            Flag("interval", "duration", "Time between the two samples of a member", 2 * SECOND),
            Flag("wal-dir", "strings", "Write-ahead logs if elsewhere, one for each --data-dir"),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Reports what is wrong with a cluster or with data directories of stopped members,\n"
            "how certain each finding is, and what to do next. The command changes nothing. The\n"
            "exit code is 0 if no finding needs action, and 1 if one does; see docs/doctor.md."
        ),
    ),
    Command(
        "bench",
        "Measures the cluster under load; see `kvorumctl bench --help`",
        group=INSIGHT,
        is_exact=True,
        description="Measures the cluster under load",
        passed_on=LOAD_FLAGS,
        children=(
            Command("put", "Sets keys", _run("bench", "put")),
            Command(
                "range",
                "Reads a key or a range of keys",
                _run("bench", "read"),
                "<key> [range_end]",
                (CONSISTENCY, LIMIT),
            ),
            Command(
                "txn",
                "Sets several keys in each transaction",
                _run("bench", "txn"),
                "",
                (Flag("txn-ops", "int", "Number of keys in a transaction", 1),),
            ),
            Command(
                "mixed",
                "Reads and sets keys",
                _run("bench", "mixed"),
                "",
                (
                    CONSISTENCY,
                    Flag("read-percent", "int", "Percentage of reads among the calls", 50),
                ),
            ),
            Command(
                "watch",
                "Sets keys, and measures how long their events take to reach watchers",
                _run("bench", "watch"),
                "",
                (Flag("watchers", "int", "Number of watchers of all generated keys", 10),),
            ),
        ),
    ),
    Command(
        "backup",
        "Writes snapshots, and every change between them, to an archive",
        _run("backup", "backup"),
        "--to {archive} [options]",
        (
            Flag("every", "duration", "Time between two snapshots", 3600 * SECOND),
            Flag(
                "keep", "int", "Number of snapshots to keep, with the changes since the oldest", 24
            ),
            Flag("log", "bool", "Record every change between snapshots", True),
            Flag(
                "log-interval",
                "duration",
                "Maximum time until a change is in the archive",
                10 * SECOND,
            ),
            Flag("once", "bool", "Take one snapshot, record the changes before it, and exit"),
            Flag("to", "string", "Archive of backups: a directory, or s3://bucket/prefix"),
        ),
        children=(
            Command(
                "list",
                "Shows the revisions and times that an archive can restore",
                _run("backup", "show"),
                "--from {archive}",
                (ARCHIVE,),
            ),
            Command(
                "verify",
                "Reads a whole archive, and reports its problems",
                _run("backup", "verify"),
                "--from {archive}",
                (ARCHIVE,),
            ),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Writes snapshots, and every change between them, to an archive, from which\n"
            "kvorumutl restore rebuilds the store as of any revision or time. The command runs\n"
            "until you interrupt it; run the command again to continue the same archive."
        ),
    ),
    Command(
        "shell",
        "Runs typed command lines, with completion",
        _run("shell", "shell"),
        group=INSIGHT,
        is_exact=True,
    ),
)
