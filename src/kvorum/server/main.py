"""The `kvorum` command."""

import argparse
import platform

import kvorum
from kvorum.edge import edge_name


def version_text() -> str:
    """Return what `kvorum --version` prints."""
    return (
        f"kvorum Version: {kvorum.__version__}\n"
        "etcd API: 3.7\n"
        f"Python Version: {platform.python_version()}\n"
        f"OS/Arch: {platform.system().lower()}/{platform.machine()}\n"
        f"edge: {edge_name()}"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="kvorum", description=kvorum.__doc__)
    parser.add_argument("--version", action="version", version=version_text())
    parser.parse_args()
