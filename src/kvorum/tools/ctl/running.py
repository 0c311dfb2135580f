"""Run the user's commands: `watch` for every event, `lock` while it holds the lock."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

KILLED = 255
"""The exit code of a command that a signal has ended."""


def run_command(words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command without input; return its exit code, and why it failed or ""."""
    name = words[0]
    path: str | None = name
    if not name:
        return 1, "exec: no command"
    if "/" not in name:
        path = shutil.which(name)
        if path is None:
            return 1, f'exec: "{name}": executable file not found in $PATH'
    try:
        done = subprocess.run(  # noqa: S603
            list(words),
            executable=path,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        return 1, f"fork/exec {path}: {os.strerror(error.errno or 0).lower()}"
    code = done.returncode
    if code < 0:
        return KILLED, f"signal: {(signal.strsignal(-code) or str(-code)).lower()}"
    return code, f"exit status {code}" if code else ""
