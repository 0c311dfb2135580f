"""Run the attacks on etcd and on kvorum in turn, and print one table; `make abuse`.

Every attack gets a new cluster on an empty directory, one server after the other, so that no attack
affects the next one and the servers do not compete. stderr shows each attacker's view at once.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.abuse.attacks import ATTACKS
from bench.abuse.bystander import Bystander, is_served
from bench.abuse.meter import Meter
from bench.abuse.table import SURVIVED, Outcome, best, header, line
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import exchange, request, status_of
from bench.clusters import Cluster, ended_cluster
from bench.servers import free_port

NAMES = ("etcd", "kvorum")
AFTERMATH_SECONDS = 0.5
"""This time also counts for the bystander, which feels the work that an attack left behind."""
PREPARE_SECONDS_MAX = 120.0
RECOVERY_SECONDS_MAX = 20.0
LOG_LINES = 3
MEMORY_DISK = Path("/dev/shm")
"""Attacks do not target the disk, and other load on a real disk would slow the puts."""


def target_of(cluster: Cluster, metrics: str) -> Target:
    """Return a cluster's first member as the target of an attack."""
    server = cluster.members[0]
    peer = server.peer_url.removeprefix("http://")
    return Target(server.address, peer, metrics, server.log, lambda: server.is_running)


def starts_again(cluster: Cluster) -> bool:
    """Restart all members; return whether they serve."""
    for each in cluster.members:
        each.kill()
        each.launch()
    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    while time.monotonic() < deadline and all(each.is_running for each in cluster.members):
        answers = [exchange(each.address, request(b"/health"), 1.0) for each in cluster.members]
        if all(status_of(answer) == "200" for answer in answers):
            return True
        time.sleep(0.05)
    return False


def verdict(attack: Attack, seen: Seen, cluster: Cluster) -> str:
    """Return the verdict on a cluster after an attack."""
    members = cluster.members

    def is_running() -> bool:
        return all(each.is_running for each in members)

    if not is_running():
        return "DIED"
    if not is_served(members[0].address, RECOVERY_SECONDS_MAX, is_running):
        return "NO PUTS AFTER" if is_running() else "DIED"
    if attack.leaves_marks and not starts_again(cluster):
        return "NO START AFTER"
    return seen.harm or SURVIVED


def measure(attack: Attack, name: str, directory: Path) -> tuple[Outcome, Seen]:
    """Attack a new cluster and measure it."""
    metrics = f"127.0.0.1:{free_port()}"
    with ended_cluster(Cluster(name, directory / name, attack.members)) as cluster:
        first = cluster.members[0]
        first.flags += [f"--listen-metrics-urls=http://{metrics}", *attack.flags]
        if attack.descriptors:
            first.prefix = ["prlimit", f"--nofile={attack.descriptors}"]
        cluster.start()
        target = target_of(cluster, metrics)
        if attack.prepare is not None:
            attack.prepare(target, attack.count, time.monotonic() + PREPARE_SECONDS_MAX)
        with Bystander(target.client) as bystander:
            time.sleep(AFTERMATH_SECONDS)
            meter = Meter(first.pid)
            began = time.monotonic()
            try:
                seen = attack.run(target, attack.count, began + attack.seconds_max)
            except OSError as error:
                seen = Seen(f"the attack broke off: {error}")
            time.sleep(AFTERMATH_SECONDS)
            ended = time.monotonic()
            taken = meter.read()
        state = verdict(attack, seen, cluster)
        worst = max(bystander.worst(began, ended), seen.victim_seconds)
        memory, seconds = taken or (None, None)
        if state == "DIED":
            tail = target.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            print("\n".join(f"    {each[:400]}" for each in tail), file=sys.stderr)
        return Outcome(memory, seconds, worst, state), seen


def chosen(names: Sequence[str]) -> list[Attack]:
    """Return the attacks whose names contain one of `names`, or all attacks without names."""
    found = [
        each for each in ATTACKS if not names or any(name in each.name.lower() for name in names)
    ]
    if not found:
        known = ", ".join(each.name for each in ATTACKS)
        raise SystemExit(f"no attack is named so; there are: {known}")
    return found


def main() -> None:
    """Run the chosen attacks on the chosen servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of attacks")
    parser.add_argument("--servers", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many is shown")
    given = parser.parse_args()
    # Attackers open many connections, and the servers inherit this limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    attacks = chosen([name.lower() for name in given.only])
    width = max(len(each.name) for each in attacks)
    lines = [header(given.servers, width)]
    fallen = []
    for attack in attacks:
        outcomes = []
        for name in given.servers:
            rounds = []
            for _ in range(given.rounds):
                where = MEMORY_DISK if MEMORY_DISK.is_dir() else None
                with tempfile.TemporaryDirectory(dir=where) as directory:
                    outcome, seen = measure(attack, name, Path(directory))
                print(f"{attack.name}, {name}: {seen.text}", file=sys.stderr, flush=True)
                rounds.append(outcome)
            outcome = best(rounds)
            outcomes.append(outcome)
            if name == "kvorum" and outcome.survived != SURVIVED:
                fallen.append(attack.name)
        lines.append(line(attack.name, outcomes, width))
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if fallen:
        raise SystemExit(f"kvorum did not survive: {', '.join(fallen)}")


if __name__ == "__main__":
    main()
