"""Every attack of `make abuse`, in a small size: the server survives, and other clients are served.

Attacks that leave nothing behind share a server. Their cost is measured by `make abuse`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.abuse.attacks import ATTACKS
from bench.abuse.bystander import FAILED, is_served, put
from bench.abuse.table import Outcome, best, header, line
from bench.abuse.target import Attack, Target
from bench.abuse.wire import Wire
from tests.cluster.processes import Process, start
from tests.ports import held_ports

SECONDS_MAX = 60.0
HOLD_SECONDS = 0.2
PATIENT = {"snapshots unread"}
"""Here other clients are served in the end, which takes a minute."""


class Servers:
    """One member after the other under attack, or a few."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._processes: list[Process] = []
        self._commands: list[tuple[list[str], Path]] = []
        self._descriptors = 0
        self._held = ExitStack()
        self.target: Target | None = None

    def fresh(self, attack: Attack) -> Target:
        """Start what an attack needs in place of the last cluster; return its first member."""
        self.stop()
        members, self._descriptors = attack.members, attack.descriptors
        ports = self._held.enter_context(held_ports(3 * members))
        peers = [f"http://127.0.0.1:{port}" for port in ports[members : 2 * members]]
        initial = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        for number, peer in enumerate(peers):
            self._count += 1
            client = f"http://127.0.0.1:{ports[number]}"
            arguments = [
                f"--name=m{number}",
                f"--data-dir={self._directory / str(self._count)}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={initial}",
                f"--listen-metrics-urls=http://127.0.0.1:{ports[2 * members + number]}",
                "--heartbeat-interval=25",
                "--election-timeout=500",
                "--log-format=json",
            ]
            self._commands.append((arguments, self._directory / f"{self._count}.log"))
        self.start()
        client, peer, metrics = [f"127.0.0.1:{port}" for port in ports[::members]]
        log = self._commands[0][1]
        self.target = Target(client, peer, metrics, log, self.is_running, HOLD_SECONDS)
        assert is_served(self.target.client, SECONDS_MAX, self.is_running), log.read_text()
        return self.target

    def start(self) -> None:
        """Start all members on the directories they have."""
        if not self._descriptors:
            self._processes = [start("kvorum", *command) for command in self._commands]
            return
        program = str(Path(sys.executable).parent / "kvorum")
        limited = ["prlimit", f"--nofile={self._descriptors}", program]
        for arguments, log in self._commands:
            with log.open("ab") as output:
                self._processes.append(subprocess.Popen([*limited, *arguments], stderr=output))

    def kill(self) -> None:
        """End all members at once."""
        for process in self._processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(SECONDS_MAX)

    def stop(self) -> None:
        """End all members, and forget them."""
        self.kill()
        self._processes, self._commands = [], []
        self._held.close()
        self.target = None

    def is_running(self) -> bool:
        """Tell whether no member has ended."""
        return all(process.poll() is None for process in self._processes)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp("attacked"))
    yield made
    made.stop()


def name_of(attack: Attack) -> str:
    return re.sub("[^A-Za-z0-9]+", "-", attack.name).strip("-")


@pytest.mark.parametrize("attack", ATTACKS, ids=name_of)
def test_attack_is_survived(servers: Servers, attack: Attack) -> None:
    target = servers.target
    needs_its_own = attack.leaves_marks or attack.members > 1 or attack.descriptors
    if target is None or not servers.is_running() or needs_its_own:
        target = servers.fresh(attack)
    if attack.prepare is not None:
        attack.prepare(target, attack.count_small, time.monotonic() + SECONDS_MAX)
    with Wire(target.client) as bystander:
        assert put(bystander, SECONDS_MAX)
        seen = attack.run(target, attack.count_small, time.monotonic() + attack.seconds_max)
        is_put = put(bystander, SECONDS_MAX)
    said = f"{seen.text}\n{target.log.read_text(errors='replace')[-5000:]}"
    assert servers.is_running(), said
    assert is_put or is_served(target.client, SECONDS_MAX, servers.is_running), said
    assert not seen.harm, said
    assert seen.victim_seconds < FAILED or attack.name in PATIENT, said
    if attack.leaves_marks:
        servers.kill()
        servers.start()
        assert is_served(target.client, SECONDS_MAX, servers.is_running), said
    if needs_its_own:
        servers.stop()


def test_the_table() -> None:
    quick, slow = Outcome(1 << 20, 0.04, 0.0015, "yes"), Outcome(3 << 30, 12.3, FAILED, "yes")
    gone = Outcome(None, None, FAILED, "DIED")
    rows = [line("pings", [slow, quick], 8), line("[", [quick, gone], 8)]
    assert [row.split() for row in rows] == [
        ["pings", "3,072", "1", "12.3", "0.0", "failed", "2", "yes", "yes"],
        ["[", "1", "-", "0.0", "-", "2", "failed", "yes", "DIED"],
    ]
    titles, names = header(["etcd", "kvorum"], 8).splitlines()
    assert names.split() == ["attack", *["etcd", "kvorum"] * 4]
    assert len({len(names), *map(len, rows)}) == 1 and len(titles) <= len(names)
    assert best([slow, quick]) == quick
    assert best([quick, gone, quick]) == gone
