"""Child processes with limits or a terminal, which programs set that the child starts through.

A `preexec_fn` would run Python between fork and exec, where what gRPC does after a fork may abort
the child.
"""

import shutil
from collections.abc import Sequence


def limited(command: Sequence[str], limits: str) -> list[str]:
    """Return a command that runs under limits, as the shell's `ulimit` takes them."""
    return ["/bin/sh", "-c", f'ulimit {limits}; exec "$0" "$@"', *command]


def at_terminal(command: Sequence[str]) -> list[str]:
    """Return a command that leads a session whose terminal is its standard input."""
    setsid = shutil.which("setsid")
    assert setsid is not None, "there is no setsid; install the package util-linux"
    return [setsid, "--ctty", *command]
