"""What `--help`, `--version` and a mistyped command line print."""

import platform
from textwrap import wrap

import kvorum
from kvorum.compiled import core_name
from kvorum.edge import edge_name
from kvorum.settings.flags import FLAGS

USAGE = """Usage:

  kvorum [flags]
    Start a server.

  kvorum --version
    Show the version.

  kvorum -h | --help
    Show the flags.

Each flag is also a variable of the environment: --data-dir is KVORUM_DATA_DIR or ETCD_DATA_DIR.
"""
WIDTH = 96


def version_text() -> str:
    """Return what `kvorum --version` prints."""
    return (
        f"kvorum Version: {kvorum.__version__}\n"
        "etcd API: 3.7\n"
        f"Python Version: {platform.python_version()}\n"
        f"OS/Arch: {platform.system().lower()}/{platform.machine()}\n"
        f"edge: {edge_name()}\n"
        f"core: {core_name()}"
    )


def flags_text() -> str:
    """Return every flag by section, with its default; those whose feature is missing come last."""
    lines: list[str] = []
    for section in dict.fromkeys(flag.section for flag in FLAGS if not flag.missing):
        lines += ["", f"{section}:"]
        for flag in FLAGS:
            if flag.section == section and not flag.missing:
                lines.append(f"  --{flag.name} '{flag.default}'")
                lines += wrap(flag.help, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    lines += [
        "",
        "Flags of etcd that are accepted at their default only, until their feature is here:",
    ]
    missing: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.missing:
            missing.setdefault(flag.missing, []).append(f"--{flag.name}")
    for feature, names in missing.items():
        lines += wrap(
            f"{feature}: {' '.join(names)}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * 4,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
