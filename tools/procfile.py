"""Run the processes of a Procfile until interrupted: `python tools/procfile.py Procfile`.

Every line of output is printed after its process's name. When one process ends, the others go on,
so that a member can be killed and restarted by hand.
"""

import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType


def commands(path: Path) -> dict[str, list[str]]:
    """Return the command of each name; comments and empty lines are skipped."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, colon, command = line.partition(":")
        if colon and name.strip() and not line.startswith("#"):
            found[name.strip()] = shlex.split(command)
    return found


def show(name: str, width: int, process: subprocess.Popen[str]) -> None:
    """Print a process's output, and how the process ended."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:{width}} | {line}", end="", flush=True)
    code = process.wait()
    end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    print(f"{name:{width}} | {end}", flush=True)


def main() -> None:
    """Run all processes of the Procfile."""
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/procfile.py <Procfile>")
    found = commands(Path(sys.argv[1]))
    if not found:
        sys.exit(f"{sys.argv[1]} names no processes; expected lines such as 'name: command'")
    processes: list[subprocess.Popen[str]] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    width = max(map(len, found))
    shows = []
    for name, command in found.items():
        # In a session of its own, the process does not receive an interrupt from the terminal.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        shows.append(threading.Thread(target=show, args=(name, width, process)))
        shows[-1].start()
    for each in shows:
        each.join()


if __name__ == "__main__":
    main()
