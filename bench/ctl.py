"""How long `kvorumctl` takes from its start to its end, beside bare Python and etcdctl.

A command is over in a moment, so what counts is what it imports. Run it as `make bench-ctl`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.servers import running
from tools import etcds

KVORUMCTL = str(Path(sys.executable).parent / "kvorumctl")


def seconds(command: list[str]) -> float:
    """Return how long a command takes."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """Run the commands in alternation, and print the best of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory, running("kvorum", Path(directory)) as server:
        at = f"--endpoints={server.address}"
        subprocess.run(
            [KVORUMCTL, at, "put", "key", "value"], check=True, stdout=subprocess.DEVNULL
        )
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "kvorumctl version": [KVORUMCTL, "version"],
            "kvorumctl get": [KVORUMCTL, at, "get", "key"],
        }
        etcd = etcds.chosen()
        if etcd is not None:
            commands["etcdctl get"] = [str(etcd.programs / "etcdctl"), at, "get", "key"]
        best = dict.fromkeys(commands, float("inf"))
        for _ in range(rounds):
            for name, command in commands.items():
                best[name] = min(best[name], seconds(command))
    bare = best["python -c pass"]
    for name, took in best.items():
        print(f"{name:20} {took * 1000:7.1f} ms  {took / bare:5.2f} times bare Python")


if __name__ == "__main__":
    main()
