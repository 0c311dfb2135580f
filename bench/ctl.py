"""Measure how long `kvorumctl` runs for one command, beside bare Python and etcdctl.

A command takes only a moment, so its imports dominate. Run it as `make bench-ctl`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.servers import running
from tools import etcds

KVORUMCTL = str(Path(sys.executable).parent / "kvorumctl")


def cost(command: list[str]) -> tuple[float, float]:
    """Return a command's wall time and processor time, in milliseconds."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    assert not process.returncode, command
    return took * 1000, (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    """Run the commands in alternation, and print the median and the best of each."""
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
            "kvorumctl put": [KVORUMCTL, at, "put", "key", "value"],
        }
        etcd = etcds.chosen()
        if etcd is not None:
            etcdctl = str(etcd.programs / "etcdctl")
            commands["etcdctl get"] = [etcdctl, at, "get", "key"]
            commands["etcdctl put"] = [etcdctl, at, "put", "key", "value"]
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                costs[name].append(cost(command))
    print(f"{'milliseconds':20}  wall: median  best   processor: median  best")
    for name, found in costs.items():
        wall, processor = zip(*found, strict=True)
        print(
            f"{name:20} {median(wall):13.1f} {min(wall):5.1f} "
            f"{median(processor):19.1f} {min(processor):5.1f}"
        )


if __name__ == "__main__":
    main()
