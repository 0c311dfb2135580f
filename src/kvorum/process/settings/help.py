"""The output of `--help` and `--version`, and the usage after a mistyped command line."""

import platform
from textwrap import wrap

import kvorum
from kvorum.compiled.extension import core_name
from kvorum.network.edge import edge_name
from kvorum.process.settings.flags import FLAGS
from kvorum.process.settings.gates import GATES

USAGE = """Usage:

  kvorum [flags]
    Start a server.

  kvorum --version
    Show the version.

  kvorum --config-file FILE
    Start a server with only the settings in a YAML file.

  kvorum config check FILE | kvorum config sample
    Check a configuration file and list all mistakes; print a sample file with every key.

  kvorum grpc-proxy start [flags] | kvorum gateway start [flags]
    Start a proxy for gRPC calls, or for TCP connections, in front of members; --help shows its
    flags.

  kvorum -h | --help
    Show the flags.

Environment variables can set each flag: KVORUM_DATA_DIR or ETCD_DATA_DIR stands for --data-dir.
"""
EXAMPLES = """Examples:

  A server for clients on this machine, with its data in a directory:
    kvorum --name one --data-dir /var/lib/kvorum

  A server for other machines, over TLS; clients must present certificates:
    kvorum --name one --data-dir /var/lib/kvorum \\
      --listen-client-urls https://10.0.0.1:2379 --advertise-client-urls https://10.0.0.1:2379 \\
      --cert-file server.pem --key-file server.key \\
      --trusted-ca-file ca.pem --client-cert-auth

  The first of three members of a new cluster; the others have their own names and addresses:
    kvorum --name one --data-dir /var/lib/kvorum \\
      --listen-peer-urls http://10.0.0.1:2380 --initial-advertise-peer-urls http://10.0.0.1:2380 \\
      --listen-client-urls http://10.0.0.1:2379 --advertise-client-urls http://10.0.0.1:2379 \\
      --initial-cluster one=http://10.0.0.1:2380,two=http://10.0.0.2:2380,three=http://10.0.0.3:2380

  A member that joins a cluster, after 'etcdctl member add four --peer-urls http://10.0.0.4:2380':
    kvorum --name four --initial-cluster-state existing ... (as above, with all four members)

  A server that compacts history older than an hour, with a database quota of 8 GiB:
    kvorum --auto-compaction-retention 1h --quota-backend-bytes 8589934592
"""
WIDTH = 96


def version_text() -> str:
    """Return the output of `kvorum --version`."""
    return (
        f"kvorum Version: {kvorum.__version__}\n"
        "etcd API: 3.7\n"
        f"Python Version: {platform.python_version()}\n"
        f"OS/Arch: {platform.system().lower()}/{platform.machine()}\n"
        f"edge: {edge_name()}\n"
        f"core: {core_name()}"
    )


def flags_text() -> str:
    """Return every flag by section, with its default, the feature gates, and examples."""
    lines: list[str] = []
    for section in dict.fromkeys(flag.section for flag in FLAGS):
        lines += ["", f"{section}:"]
        for flag in FLAGS:
            if flag.section == section:
                lines += _entry(f"--{flag.name} '{flag.default}'", flag.help)
    lines += ["", "Feature gates, for --feature-gates:"]
    for name, gate in GATES.items():
        state = "on" if gate.default else "off"
        lines += _entry(f"{name} ({gate.stage.lower()}, {state} by default)", gate.help)
    return "\n".join([*lines, "", EXAMPLES])


def _entry(head: str, text: str) -> list[str]:
    blank = " " * 4
    lines = wrap(text, WIDTH, initial_indent=blank, subsequent_indent=blank, break_on_hyphens=False)
    return [f"  {head}", *lines]
