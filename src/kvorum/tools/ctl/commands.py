"""The commands of `kvorumctl` and their flags: those of etcdctl 3.7, then Kvorum's own."""

from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.ctl.insights import INSIGHT_COMMANDS

KEYS = "Key-value commands"
CLUSTER = "Cluster maintenance commands"
CONCURRENCY = "Concurrency commands"
AUTHENTICATION = "Authentication commands"
UTILITY = "Utility commands"

SECOND = 1_000_000_000
CONSISTENCY = Flag(
    "consistency", "string", "Linearizable (l) or serializable (s)", "l", words=("l", "s")
)
CLUSTER_FLAG = Flag("cluster", "bool", "Ask every endpoint that the cluster's members advertise")
LOADS = ("s", "m", "l", "xl")


def _run(module: str, function: str) -> str:
    return f"kvorum.tools.ctl.{module}:{function}"


GLOBAL_FLAGS = (
    Flag("auth-jwt-token", "string", "Token to show in place of logging in"),
    Flag("cacert", "string", "Authorities to trust in servers' certificates, a file"),
    Flag("cert", "string", "Certificate to show to servers, a file"),
    Flag("command-timeout", "duration", "How long a short command may take", 5 * SECOND),
    Flag("debug", "bool", "Show what all global flags are, secrets left out"),
    Flag("dial-timeout", "duration", "How long connecting and logging in may take", 2 * SECOND),
    Flag("discovery-srv", "string", "Domain whose SRV records name the endpoints", short="d"),
    Flag("discovery-srv-name", "string", "What follows the service's name in SRV records"),
    Flag("endpoints", "strings", "Where the members are", ["127.0.0.1:2379"]),
    Flag("hex", "bool", "Show bytes and ids in hexadecimal"),
    Flag("insecure-discovery", "bool", "Accept SRV records of endpoints without TLS", True),
    Flag("insecure-skip-tls-verify", "bool", "Accept any certificate of a server: for tests only"),
    Flag("insecure-transport", "bool", "Do without TLS unless something asks for it", True),
    Flag("keepalive-time", "duration", "Accepted; silent servers are asked after 6 s", 2 * SECOND),
    Flag("keepalive-timeout", "duration", "Accepted; they have 5 s to answer", 6 * SECOND),
    Flag("key", "string", "Key of the certificate, a file"),
    Flag("max-recv-bytes", "int", "Longest answer that is taken; 0: 2 GiB"),
    Flag("max-request-bytes", "int", "Longest request that is sent; 0: 2 MiB"),
    Flag("password", "string", "Password of --user, whose name is then taken as it is"),
    Flag("user", "string", "name or name:password; a missing password is asked for"),
    Flag(
        "write-out",
        "string",
        "Format of the output: fields, json, protobuf, simple, table",
        "simple",
        short="w",
        words=("fields", "json", "protobuf", "simple", "table"),
    ),
)

GET_FLAGS = (
    CONSISTENCY,
    Flag("count-only", "bool", "Only how many there are"),
    Flag("from-key", "bool", "All keys from this one on"),
    Flag("keys-only", "bool", "Only the keys"),
    Flag("limit", "int", "At most so many"),
    Flag("max-create-rev", "int", "Created at this revision at the latest"),
    Flag("max-mod-rev", "int", "Changed last at this revision at the latest"),
    Flag("min-create-rev", "int", "Created at this revision at the earliest"),
    Flag("min-mod-rev", "int", "Changed last at this revision at the earliest"),
    Flag("order", "string", "ASCEND or DESCEND", words=("ASCEND", "DESCEND")),
    Flag("prefix", "bool", "All keys that begin so"),
    Flag("pretty", "bool", "Lay values out that are JSON, in the format simple"),
    Flag("print-value-only", "bool", "Only the values, in the format simple"),
    Flag("rev", "int", "As it was at this revision"),
    Flag(
        "sort-by",
        "string",
        "CREATE, KEY, MODIFY, VALUE or VERSION",
        words=("CREATE", "KEY", "MODIFY", "VALUE", "VERSION"),
    ),
    Flag("stream", "bool", "Let the server answer piece by piece"),
)
PUT_FLAGS = (
    Flag("ignore-lease", "bool", "Keep the lease that the key has"),
    Flag("ignore-value", "bool", "Keep the value that the key has"),
    Flag("lease", "string", "Lease of the key, in hexadecimal", "0"),
    Flag("prev-kv", "bool", "Show what the key was before"),
)
DELETE_FLAGS = (
    Flag("from-key", "bool", "All keys from this one on"),
    Flag("prefix", "bool", "All keys that begin so"),
    Flag("prev-kv", "bool", "Show what was deleted"),
    Flag("range", "bool", "Delete a range without a delay"),
)
WATCH_FLAGS = (
    Flag("interactive", "bool", "Read watches from the standard input", short="i"),
    Flag("prefix", "bool", "All keys that begin so"),
    Flag("prev-kv", "bool", "Show what keys were before"),
    Flag("progress-notify", "bool", "Show how far the watch has come, now and then"),
    Flag("rev", "int", "From this revision on"),
)


def _check_flags(prefix: str) -> tuple[Flag, ...]:
    return (
        Flag("auto-compact", "bool", "Compact when done"),
        Flag("auto-defrag", "bool", "Defragment when done"),
        Flag("load", "string", "s, m, l or xl", "s", words=LOADS),
        Flag("prefix", "string", "What the keys begin with that are written", prefix),
    )


def _range_flags(what: str) -> tuple[Flag, ...]:
    return (
        Flag("from-key", "bool", f"{what} all keys from this one on"),
        Flag("prefix", "bool", f"{what} all keys that begin so"),
    )


ROOT = Command(
    "kvorumctl",
    "A command line for clusters of Kvorum and etcd.",
    passed_on=GLOBAL_FLAGS,
    children=(
        Command(
            "get",
            "Shows keys and their values",
            _run("keys", "get"),
            "[options] <key> [range_end]",
            GET_FLAGS,
            group=KEYS,
        ),
        Command(
            "put",
            "Sets a key",
            _run("keys", "put"),
            "[options] <key> <value> (or the value from the standard input)",
            PUT_FLAGS,
            group=KEYS,
        ),
        Command(
            "del",
            "Deletes a key, or all in [key, range_end)",
            _run("keys", "delete"),
            "[options] <key> [range_end]",
            DELETE_FLAGS,
            group=KEYS,
        ),
        Command(
            "txn",
            "Runs a transaction that is read from the standard input",
            _run("txn", "txn"),
            "[options]",
            (Flag("interactive", "bool", "Ask for each part", short="i"),),
            group=KEYS,
            description=(
                "Runs a transaction that is read from the standard input: conditions, steps if all "
                "of them\nhold, steps if not; an empty line ends each of the three parts."
            ),
            examples=(
                '  ver("key") = "0"\n\n  put key "a new value"\n\n  get key\n\n'
                "Conditions: version, create, mod, value or lease, compared by =, !=, < or >."
            ),
        ),
        Command(
            "compaction",
            "Forgets what keys were before a revision",
            _run("keys", "compact"),
            "[options] <revision>",
            (Flag("physical", "bool", "Wait until everything old is removed"),),
            group=KEYS,
        ),
        Command(
            "watch",
            "Shows changes of keys as they happen",
            _run("watch", "watch"),
            "[options] [key or prefix] [range_end] [--] [command arg1 arg2 ...]",
            WATCH_FLAGS,
            group=KEYS,
        ),
        Command(
            "lease",
            "Leases; see `kvorumctl lease --help`",
            group=KEYS,
            description="Leases",
            children=(
                Command("grant", "Grants a lease", _run("leases", "grant"), "<ttl>"),
                Command("revoke", "Ends a lease", _run("leases", "revoke"), "<leaseID>"),
                Command(
                    "timetolive",
                    "Tells how long a lease lives",
                    _run("leases", "time_to_live"),
                    "<leaseID> [options]",
                    (Flag("keys", "bool", "Show its keys"),),
                ),
                Command("list", "Lists all leases", _run("leases", "list_all")),
                Command(
                    "keep-alive",
                    "Keeps a lease alive",
                    _run("leases", "keep_alive"),
                    "[options] <leaseID>",
                    (Flag("once", "bool", "Renew it once and end"),),
                ),
            ),
        ),
        Command(
            "move-leader",
            "Makes another member the leader",
            _run("maintenance", "move_leader"),
            "<transferee-member-id>",
            group=CLUSTER,
        ),
        Command(
            "member",
            "Members; see `kvorumctl member --help`",
            group=CLUSTER,
            description="Members of the cluster",
            children=(
                Command(
                    "add",
                    "Adds a member",
                    _run("members", "add"),
                    "<memberName> [options]",
                    (
                        Flag("learner", "bool", "Add it as a learner"),
                        Flag("peer-urls", "string", "Its peer URLs, commas between them"),
                    ),
                ),
                Command("remove", "Removes a member", _run("members", "remove"), "<memberID>"),
                Command(
                    "update",
                    "Changes the peer URLs of a member",
                    _run("members", "update"),
                    "<memberID> [options]",
                    (Flag("peer-urls", "string", "Its new peer URLs, commas between them"),),
                ),
                Command(
                    "list", "Lists all members", _run("members", "list_all"), "", (CONSISTENCY,)
                ),
                Command("promote", "Lets a learner vote", _run("members", "promote"), "<memberID>"),
            ),
        ),
        Command(
            "endpoint",
            "Endpoints; see `kvorumctl endpoint --help`",
            group=CLUSTER,
            description="The endpoints of the cluster",
            passed_on=(CLUSTER_FLAG,),
            children=(
                Command("health", "Tells whether endpoints serve", _run("endpoints", "health")),
                Command("status", "Tells how endpoints are", _run("endpoints", "status")),
                Command(
                    "hashkv",
                    "Hashes the keys of each endpoint",
                    _run("endpoints", "hash_kv"),
                    "",
                    (Flag("rev", "int", "Up to this revision; 0: up to the newest"),),
                ),
            ),
        ),
        Command(
            "alarm",
            "Alarms; see `kvorumctl alarm --help`",
            group=CLUSTER,
            description="Alarms",
            children=(
                Command("disarm", "Ends all alarms", _run("alarms", "disarm")),
                Command("list", "Lists all alarms", _run("alarms", "list_all")),
            ),
        ),
        Command(
            "defrag",
            "Gives free space of the endpoints' databases back",
            _run("maintenance", "defragment"),
            "",
            (CLUSTER_FLAG,),
            group=CLUSTER,
        ),
        Command(
            "snapshot",
            "Snapshots of members; see `kvorumctl snapshot --help`",
            group=CLUSTER,
            description="Snapshots of members",
            children=(
                Command(
                    "save",
                    "Saves a snapshot of a member to a file",
                    _run("snapshots", "save"),
                    "<filename>",
                ),
            ),
        ),
        Command(
            "downgrade",
            "Downgrades; see `kvorumctl downgrade --help`",
            group=CLUSTER,
            description="Downgrades of the cluster",
            children=(
                Command(
                    "validate",
                    "Tells whether the cluster can be downgraded",
                    _run("maintenance", "downgrade_validate"),
                    "<TARGET_VERSION>",
                ),
                Command(
                    "enable",
                    "Lets the cluster be downgraded",
                    _run("maintenance", "downgrade_enable"),
                    "<TARGET_VERSION>",
                ),
                Command(
                    "cancel",
                    "Lets the cluster stay with its version",
                    _run("maintenance", "downgrade_cancel"),
                ),
            ),
        ),
        Command(
            "lock",
            "Takes a lock, and holds it while a command runs",
            _run("turns", "lock"),
            "<lockname> [command arg1 arg2 ...]",
            (Flag("ttl", "int", "After so many seconds without us it is lost", 10),),
            group=CONCURRENCY,
        ),
        Command(
            "elect",
            "Takes part in an election, or looks on",
            _run("turns", "elect"),
            "<election-name> [proposal]",
            (Flag("listen", "bool", "Only look on", short="l"),),
            group=CONCURRENCY,
        ),
        Command(
            "auth",
            "Authentication; see `kvorumctl auth --help`",
            group=AUTHENTICATION,
            description="Authentication",
            children=(
                Command("enable", "Turns authentication on", _run("auth", "enable")),
                Command("disable", "Turns authentication off", _run("auth", "disable")),
                Command("status", "Tells whether it is on", _run("auth", "status")),
            ),
        ),
        Command(
            "user",
            "Users; see `kvorumctl user --help`",
            group=AUTHENTICATION,
            description="Users",
            children=(
                Command(
                    "add",
                    "Adds a user",
                    _run("users", "add"),
                    "<user name or user:password> [options]",
                    (
                        Flag("interactive", "bool", "Ask for the password on a terminal", True),
                        Flag("new-user-password", "string", "The password"),
                        Flag("no-password", "bool", "Known by certificates alone"),
                    ),
                ),
                Command("delete", "Deletes a user", _run("users", "delete"), "<user name>"),
                Command(
                    "get",
                    "Shows a user",
                    _run("users", "get"),
                    "<user name> [options]",
                    (Flag("detail", "bool", "Show the permissions of its roles"),),
                ),
                Command("list", "Lists all users", _run("users", "list_all")),
                Command(
                    "passwd",
                    "Changes the password of a user",
                    _run("users", "change_password"),
                    "<user name> [options]",
                    (Flag("interactive", "bool", "Ask for the password on a terminal", True),),
                ),
                Command(
                    "grant-role",
                    "Grants a role to a user",
                    _run("users", "grant_role"),
                    "<user name> <role name>",
                ),
                Command(
                    "revoke-role",
                    "Takes a role from a user",
                    _run("users", "revoke_role"),
                    "<user name> <role name>",
                ),
            ),
        ),
        Command(
            "role",
            "Roles; see `kvorumctl role --help`",
            group=AUTHENTICATION,
            description="Roles",
            children=(
                Command("add", "Adds a role", _run("roles", "add"), "<role name>"),
                Command("delete", "Deletes a role", _run("roles", "delete"), "<role name>"),
                Command("get", "Shows a role", _run("roles", "get"), "<role name>"),
                Command("list", "Lists all roles", _run("roles", "list_all")),
                Command(
                    "grant-permission",
                    "Grants a permission to a role",
                    _run("roles", "grant_permission"),
                    "[options] <role name> <permission type> <key> [endkey]",
                    _range_flags("Grant it for"),
                ),
                Command(
                    "revoke-permission",
                    "Takes a permission from a role",
                    _run("roles", "revoke_permission"),
                    "<role name> <key> [endkey]",
                    _range_flags("Revoke it for"),
                ),
            ),
        ),
        *INSIGHT_COMMANDS,
        Command(
            "make-mirror",
            "Keeps a copy of keys in another cluster",
            _run("mirror", "make_mirror"),
            "[options] <destination>",
            (
                Flag("dest-cacert", "string", "Authorities to trust there, a file"),
                Flag("dest-cert", "string", "Certificate to show there, a file"),
                Flag("dest-insecure-transport", "bool", "Do without TLS there", True),
                Flag("dest-key", "string", "Key of that certificate, a file"),
                Flag("dest-password", "string", "Password of --dest-user"),
                Flag("dest-prefix", "string", "What the prefix becomes there"),
                Flag("dest-user", "string", "name or name:password there"),
                Flag("max-txn-ops", "uint", "At most so many changes in a transaction", 128),
                Flag("no-dest-prefix", "bool", "Leave the prefix out there"),
                Flag("prefix", "string", "Copy the keys that begin so"),
                Flag("rev", "int", "Only what changes from this revision on"),
            ),
            group=UTILITY,
        ),
        Command(
            "check",
            "Checks of the cluster; see `kvorumctl check --help`",
            group=UTILITY,
            description="Checks of the cluster",
            children=(
                Command(
                    "perf",
                    "Measures whether the cluster is fast enough for a load",
                    _run("check", "perf"),
                    "[options]",
                    _check_flags("/etcdctl-check-perf/"),
                ),
                Command(
                    "datascale",
                    "Measures the memory that a load takes at an endpoint",
                    _run("check", "datascale"),
                    "[options]",
                    _check_flags("/etcdctl-check-datascale/"),
                ),
            ),
        ),
        Command(
            "completion",
            "Writes the script that completes commands in a shell",
            "kvorum.tools.cli.completion:completion",
            "[bash|zsh|fish|powershell]",
            group=UTILITY,
            words=("bash", "zsh", "fish", "powershell"),
        ),
        Command(
            "options",
            "Shows the flags of all commands",
            "kvorum.tools.cli.about:options",
            group=UTILITY,
        ),
        Command("version", "Shows the version", "kvorum.tools.cli.about:version", group=UTILITY),
        Command(
            "help",
            "Shows the help of a command",
            "kvorum.tools.cli.about:show_help",
            "[command]",
            group=UTILITY,
        ),
    ),
)
"""The whole tree of commands."""
