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
    Flag("auth-jwt-token", "string", "Token to send in place of logging in"),
    Flag("cacert", "string", "CA certificates for servers' certificates, a file"),
    Flag("cert", "string", "Client certificate to present to servers, a file"),
    Flag("command-timeout", "duration", "Timeout of a short command", 5 * SECOND),
    Flag("debug", "bool", "Show the values of all global flags, without secrets"),
    Flag("dial-timeout", "duration", "Timeout for connecting and logging in", 2 * SECOND),
    Flag("discovery-srv", "string", "Domain whose SRV records name the endpoints", short="d"),
    Flag("discovery-srv-name", "string", "Suffix of the service name in SRV records"),
    Flag("endpoints", "strings", "Addresses of the members", ["127.0.0.1:2379"]),
    Flag("hex", "bool", "Show bytes and ids in hexadecimal"),
    Flag("insecure-discovery", "bool", "Accept SRV records of endpoints without TLS", True),
    Flag("insecure-skip-tls-verify", "bool", "Accept any certificate of a server; for tests only"),
    Flag(
        "insecure-transport", "bool", "Connect without TLS unless another setting requires it", True
    ),
    Flag(
        "keepalive-time",
        "duration",
        "No effect; kvorumctl pings a silent server after 6 s",
        2 * SECOND,
    ),
    Flag(
        "keepalive-timeout", "duration", "No effect; a server has 5 s to answer a ping", 6 * SECOND
    ),
    Flag("key", "string", "Private key of the client certificate, a file"),
    Flag("max-recv-bytes", "int", "Maximum size of a response, in bytes; 0: 2 GiB"),
    Flag("max-request-bytes", "int", "Maximum size of a request, in bytes; 0: 2 MiB"),
    Flag("password", "string", "Password of --user, which then contains only the name"),
    Flag("user", "string", "name or name:password; kvorumctl prompts for a missing password"),
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
    Flag("count-only", "bool", "Show only the number of keys"),
    Flag("from-key", "bool", "All keys from the given key on"),
    Flag("keys-only", "bool", "Show only the keys"),
    Flag("limit", "int", "Maximum number of keys"),
    Flag("max-create-rev", "int", "Only keys created at or before this revision"),
    Flag("max-mod-rev", "int", "Only keys last changed at or before this revision"),
    Flag("min-create-rev", "int", "Only keys created at or after this revision"),
    Flag("min-mod-rev", "int", "Only keys last changed at or after this revision"),
    Flag("order", "string", "Sort order: ASCEND or DESCEND", words=("ASCEND", "DESCEND")),
    Flag("prefix", "bool", "All keys with the given prefix"),
    Flag("pretty", "bool", "Indent JSON values, in the format simple"),
    Flag("print-value-only", "bool", "Show only the values, in the format simple"),
    Flag("rev", "int", "Read the keys as of this revision"),
    Flag(
        "sort-by",
        "string",
        "Sort key: CREATE, KEY, MODIFY, VALUE or VERSION",
        words=("CREATE", "KEY", "MODIFY", "VALUE", "VERSION"),
    ),
    Flag("stream", "bool", "Receive the answer from the server in pieces"),
)
PUT_FLAGS = (
    Flag("ignore-lease", "bool", "Keep the current lease of the key"),
    Flag("ignore-value", "bool", "Keep the current value of the key"),
    Flag("lease", "string", "Lease of the key, in hexadecimal", "0"),
    Flag("prev-kv", "bool", "Show the previous key and value"),
)
DELETE_FLAGS = (
    Flag("from-key", "bool", "All keys from the given key on"),
    Flag("prefix", "bool", "All keys with the given prefix"),
    Flag("prev-kv", "bool", "Show the deleted keys and values"),
    Flag("range", "bool", "Delete a range without a delay"),
)
WATCH_FLAGS = (
    Flag("interactive", "bool", "Read watches from the standard input", short="i"),
    Flag("prefix", "bool", "All keys with the given prefix"),
    Flag("prev-kv", "bool", "Show the previous keys and values"),
    Flag("progress-notify", "bool", "Show periodic progress notifications"),
    Flag("rev", "int", "First revision to watch"),
)


def _check_flags(prefix: str) -> tuple[Flag, ...]:
    return (
        Flag("auto-compact", "bool", "Compact when done"),
        Flag("auto-defrag", "bool", "Defragment when done"),
        Flag("load", "string", "Size of the load: s, m, l or xl", "s", words=LOADS),
        Flag("prefix", "string", "Prefix of the keys to write", prefix),
    )


def _range_flags(what: str) -> tuple[Flag, ...]:
    return (
        Flag("from-key", "bool", f"{what} all keys from the given key on"),
        Flag("prefix", "bool", f"{what} all keys with the given prefix"),
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
            "Sets the value of a key",
            _run("keys", "put"),
            "[options] <key> <value> (or the value from the standard input)",
            PUT_FLAGS,
            group=KEYS,
        ),
        Command(
            "del",
            "Deletes a key, or all keys in [key, range_end)",
            _run("keys", "delete"),
            "[options] <key> [range_end]",
            DELETE_FLAGS,
            group=KEYS,
        ),
        Command(
            "txn",
            "Runs a transaction read from the standard input",
            _run("txn", "txn"),
            "[options]",
            (Flag("interactive", "bool", "Prompt for each part", short="i"),),
            group=KEYS,
            description=(
                "Runs a transaction read from the standard input: conditions, the steps if all of "
                "them hold,\nand the steps otherwise; an empty line ends each of the three parts."
            ),
            examples=(
                '  ver("key") = "0"\n\n  put key "a new value"\n\n  get key\n\n'
                "Conditions: version, create, mod, value or lease, compared by =, !=, < or >."
            ),
        ),
        Command(
            "compaction",
            "Removes the history of keys before a revision",
            _run("keys", "compact"),
            "[options] <revision>",
            (Flag("physical", "bool", "Wait until all old versions are removed"),),
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
                    "Shows the granted and remaining time of a lease",
                    _run("leases", "time_to_live"),
                    "<leaseID> [options]",
                    (Flag("keys", "bool", "Show the keys attached to the lease"),),
                ),
                Command("list", "Lists all leases", _run("leases", "list_all")),
                Command(
                    "keep-alive",
                    "Keeps a lease alive",
                    _run("leases", "keep_alive"),
                    "[options] <leaseID>",
                    (Flag("once", "bool", "Renew the lease once and exit"),),
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
                        Flag("learner", "bool", "Add the member as a learner"),
                        Flag("peer-urls", "string", "Peer URLs of the member, separated by commas"),
                    ),
                ),
                Command("remove", "Removes a member", _run("members", "remove"), "<memberID>"),
                Command(
                    "update",
                    "Changes the peer URLs of a member",
                    _run("members", "update"),
                    "<memberID> [options]",
                    (
                        Flag(
                            "peer-urls",
                            "string",
                            "New peer URLs of the member, separated by commas",
                        ),
                    ),
                ),
                Command(
                    "list", "Lists all members", _run("members", "list_all"), "", (CONSISTENCY,)
                ),
                Command(
                    "promote",
                    "Promotes a learner to a voter",
                    _run("members", "promote"),
                    "<memberID>",
                ),
            ),
        ),
        Command(
            "endpoint",
            "Endpoints; see `kvorumctl endpoint --help`",
            group=CLUSTER,
            description="The endpoints of the cluster",
            passed_on=(CLUSTER_FLAG,),
            children=(
                Command(
                    "health", "Checks whether endpoints are healthy", _run("endpoints", "health")
                ),
                Command("status", "Shows the status of endpoints", _run("endpoints", "status")),
                Command(
                    "hashkv",
                    "Hashes the keys of each endpoint",
                    _run("endpoints", "hash_kv"),
                    "",
                    (Flag("rev", "int", "Newest revision to hash; 0: the current one"),),
                ),
            ),
        ),
        Command(
            "alarm",
            "Alarms; see `kvorumctl alarm --help`",
            group=CLUSTER,
            description="Alarms",
            children=(
                Command("disarm", "Disarms all alarms", _run("alarms", "disarm")),
                Command("list", "Lists all alarms", _run("alarms", "list_all")),
            ),
        ),
        Command(
            "defrag",
            "Releases the free space in the endpoints' databases",
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
                    "Checks whether the cluster can be downgraded",
                    _run("maintenance", "downgrade_validate"),
                    "<TARGET_VERSION>",
                ),
                Command(
                    "enable",
                    "Starts a downgrade of the cluster",
                    _run("maintenance", "downgrade_enable"),
                    "<TARGET_VERSION>",
                ),
                Command(
                    "cancel",
                    "Cancels a downgrade of the cluster",
                    _run("maintenance", "downgrade_cancel"),
                ),
            ),
        ),
        Command(
            "lock",
            "Acquires a lock and holds it while a command runs",
            _run("turns", "lock"),
            "<lockname> [command arg1 arg2 ...]",
            (Flag("ttl", "int", "Seconds after which the lock of a stopped client expires", 10),),
            group=CONCURRENCY,
        ),
        Command(
            "elect",
            "Takes part in an election, or observes it",
            _run("turns", "elect"),
            "<election-name> [proposal]",
            (Flag("listen", "bool", "Only observe the election", short="l"),),
            group=CONCURRENCY,
        ),
        Command(
            "auth",
            "Authentication; see `kvorumctl auth --help`",
            group=AUTHENTICATION,
            description="Authentication",
            children=(
                Command("enable", "Enables authentication", _run("auth", "enable")),
                Command("disable", "Disables authentication", _run("auth", "disable")),
                Command(
                    "status", "Shows whether authentication is enabled", _run("auth", "status")
                ),
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
                        Flag("interactive", "bool", "Prompt for the password on a terminal", True),
                        Flag("new-user-password", "string", "Password of the new user"),
                        Flag(
                            "no-password",
                            "bool",
                            "Create the user without a password, for login by certificate only",
                        ),
                    ),
                ),
                Command("delete", "Deletes a user", _run("users", "delete"), "<user name>"),
                Command(
                    "get",
                    "Shows a user",
                    _run("users", "get"),
                    "<user name> [options]",
                    (Flag("detail", "bool", "Show the permissions of the user's roles"),),
                ),
                Command("list", "Lists all users", _run("users", "list_all")),
                Command(
                    "passwd",
                    "Changes the password of a user",
                    _run("users", "change_password"),
                    "<user name> [options]",
                    (Flag("interactive", "bool", "Prompt for the password on a terminal", True),),
                ),
                Command(
                    "grant-role",
                    "Grants a role to a user",
                    _run("users", "grant_role"),
                    "<user name> <role name>",
                ),
                Command(
                    "revoke-role",
                    "Revokes a role from a user",
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
                    _range_flags("Grant the permission for"),
                ),
                Command(
                    "revoke-permission",
                    "Revokes a permission from a role",
                    _run("roles", "revoke_permission"),
                    "<role name> <key> [endkey]",
                    _range_flags("Revoke the permission for"),
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
                Flag("dest-cacert", "string", "CA certificates for the destination, a file"),
                Flag("dest-cert", "string", "Client certificate for the destination, a file"),
                Flag(
                    "dest-insecure-transport",
                    "bool",
                    "Connect to the destination without TLS unless another setting requires it",
                    True,
                ),
                Flag(
                    "dest-key",
                    "string",
                    "Private key of the certificate for the destination, a file",
                ),
                Flag("dest-password", "string", "Password of --dest-user"),
                Flag("dest-prefix", "string", "Prefix that replaces --prefix in the destination"),
                Flag("dest-user", "string", "User in the destination: name or name:password"),
                Flag("max-txn-ops", "uint", "Maximum number of changes in a transaction", 128),
                Flag("no-dest-prefix", "bool", "Remove the prefix from keys in the destination"),
                Flag("prefix", "string", "Prefix of the keys to copy"),
                Flag("rev", "int", "Copy only changes from this revision on"),
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
                    "Measures the memory that an endpoint needs for a load",
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
