"""The commands that etcdctl does not have, and their flags.

Users cannot shorten these names, so that etcdctl's shortened names keep their meaning.
"""

from kvorum.tools.cli.commands import Command, Flag

INSIGHT = "History and insight commands"

SECOND = 1_000_000_000
PREFIX = Flag("prefix", "string", "Only keys that begin so")
LEASES = ("drop", "grant", "skip")

LOAD_FLAGS = (
    Flag("clients", "int", "So many calls at once", 1),
    Flag("conns", "int", "Over so many connections", 1),
    Flag("key-prefix", "string", "What the keys begin with", "kvorumctl-bench/"),
    Flag("key-size", "int", "Bytes of a key behind its beginning", 8),
    Flag("key-space-size", "int", "So many different keys", 1),
    Flag("rate", "int", "At most so many calls in a second; 0: as many as go"),
    Flag("sequential-keys", "bool", "One key after the other, not at random"),
    Flag("total", "int", "So many calls", 10_000),
    Flag("val-size", "int", "Bytes of a value", 8),
)
CONSISTENCY = Flag(
    "consistency", "string", "Linearizable (l) or serializable (s)", "l", words=("l", "s")
)
ARCHIVE = Flag("from", "string", "The archive: a directory, or s3://bucket/prefix")
LIMIT = Flag("limit", "int", "At most so many keys in an answer; 0: all")


def _run(module: str, function: str) -> str:
    return f"kvorum.tools.ctl.{module}:{function}"


INSIGHT_COMMANDS = (
    Command(
        "history",
        "Shows every version of a key that is not compacted",
        _run("history", "history"),
        "[options] <key>",
        (Flag("limit", "int", "Only the newest so many; 0: all"),),
        group=INSIGHT,
        is_exact=True,
    ),
    Command(
        "diff",
        "Shows what changed between two revisions",
        _run("diffs", "diff"),
        "--rev A [--rev B] [prefix]",
        (
            Flag("keys-only", "bool", "Only which keys changed, and how"),
            Flag("rev", "strings", "The older revision, then the newer one (without it: now)"),
        ),
        group=INSIGHT,
        is_exact=True,
    ),
    Command(
        "revert",
        "Makes keys again what they were at a revision",
        _run("reverting", "revert"),
        "--prefix P --to-rev R [options]",
        (
            Flag("from-rev", "int", "Leave alone what changed after this revision; 0: the newest"),
            PREFIX,
            Flag("to-rev", "int", "The revision to go back to"),
            Flag("yes", "bool", "Do it; without this flag it is only shown"),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Makes keys again what they were at a revision. Without --yes nothing changes: what\n"
            "would be done is shown. Keys that somebody changes meanwhile are left alone, and\n"
            "named at the end. After an interruption the same command goes on where it was."
        ),
    ),
    Command(
        "tree",
        "Shows keys by the parts of their names",
        _run("tree", "tree"),
        "[options] [prefix]",
        (
            Flag("depth", "int", "Only so many levels; 0: all"),
            Flag("limit", "int", "At most so many rows for a level; 0: all", 50),
            Flag("rev", "int", "As it was at this revision"),
        ),
        group=INSIGHT,
        is_exact=True,
    ),
    Command(
        "export",
        "Writes keys as lines of JSON, all of one revision",
        _run("exporting", "export"),
        "[options] [file]",
        (PREFIX, Flag("rev", "int", "As it was at this revision")),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Writes keys as lines of JSON, all of one revision, to a file or to the standard\n"
            "output. Until a file is whole, its name ends in .part; after an interruption the\n"
            "same command goes on where it was."
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
                "Keys with a lease: drop it, grant it, skip them",
                "drop",
                words=LEASES,
            ),
            PREFIX,
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Puts the keys of an export into the store, from a file or from the standard input.\n"
            "Keys that are as they should be are skipped, so that the same command goes on after\n"
            "an interruption. Keys that the export does not have stay."
        ),
    ),
    Command(
        "top",
        "Shows what the members do, as it happens",
        _run("top", "top"),
        "[options]",
        (
            Flag("cluster", "bool", "Ask every endpoint that the cluster's members advertise"),
            Flag("count", "int", "End after so many looks; 0: never"),
            Flag("interval", "duration", "How often to look", SECOND),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Shows what the members do, as it happens: on a terminal as a table until q is\n"
            "pressed, otherwise as a line of JSON for each look."
        ),
    ),
    Command(
        "doctor",
        "Tells what is wrong with a cluster or a data directory, and what to do",
        _run("doctor", "doctor"),
        "[options]",
        (
            Flag("cluster", "bool", "Ask every endpoint that the cluster's members advertise"),
            Flag("config-file", "string", "A member's configuration file, to be examined, too"),
            Flag("data-dir", "strings", "Examine these data directories of stopped members"),
            Flag("hash", "bool", "Compare the hashes of all keys, which members compute", True),
            Flag("interval", "duration", "How long to wait between two looks", 2 * SECOND),
            Flag("wal-dir", "strings", "Where their logs are, if not in the data directories"),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Tells what is wrong with a cluster, how sure that is, and what to do next, or with\n"
            "the data directories of members that do not run. Changes nothing. The exit code is 0\n"
            "if nothing needs to be done, and 1 if something does; see docs/doctor.md."
        ),
    ),
    Command(
        "bench",
        "Measures the cluster under a load; see `kvorumctl bench --help`",
        group=INSIGHT,
        is_exact=True,
        description="Measures the cluster under a load",
        passed_on=LOAD_FLAGS,
        children=(
            Command("put", "Sets keys", _run("bench", "put")),
            Command(
                "range",
                "Reads a key, or all from a key up to another",
                _run("bench", "read"),
                "<key> [range_end]",
                (CONSISTENCY, LIMIT),
            ),
            Command(
                "txn",
                "Sets several keys in a transaction",
                _run("bench", "txn"),
                "",
                (Flag("txn-ops", "int", "So many keys in a transaction", 1),),
            ),
            Command(
                "mixed",
                "Reads and sets keys",
                _run("bench", "mixed"),
                "",
                (CONSISTENCY, Flag("read-percent", "int", "So many of a hundred are reads", 50)),
            ),
            Command(
                "watch",
                "Sets keys, and measures how long watchers wait for that",
                _run("bench", "watch"),
                "",
                (Flag("watchers", "int", "So many watchers of all keys", 10),),
            ),
        ),
    ),
    Command(
        "backup",
        "Keeps snapshots, and every change between them, in an archive",
        _run("backup", "backup"),
        "--to {archive} [options]",
        (
            Flag("every", "duration", "How often to take a snapshot", 3600 * SECOND),
            Flag("keep", "int", "Keep so many snapshots, and the changes since", 24),
            Flag("log", "bool", "Record every change between snapshots", True),
            Flag("log-interval", "duration", "How late changes may be recorded", 10 * SECOND),
            Flag("once", "bool", "Take one snapshot, record what is before it, and end"),
            Flag("to", "string", "The archive: a directory, or s3://bucket/prefix"),
        ),
        children=(
            Command(
                "list",
                "Shows what an archive can restore",
                _run("backup", "show"),
                "--from {archive}",
                (ARCHIVE,),
            ),
            Command(
                "verify",
                "Reads all of an archive, and tells what is wrong with it",
                _run("backup", "verify"),
                "--from {archive}",
                (ARCHIVE,),
            ),
        ),
        group=INSIGHT,
        is_exact=True,
        description=(
            "Keeps snapshots, and every change between them, in an archive, from which\n"
            "kvorumutl restore makes the store as it was at any revision or time. It goes on\n"
            "until it is interrupted; whoever starts it again continues the same archive."
        ),
    ),
    Command(
        "shell",
        "Runs command lines that are typed, with completion",
        _run("shell", "shell"),
        group=INSIGHT,
        is_exact=True,
    ),
)
