"""Fault upon fault, at random, under load: five members, of which a minority is in trouble."""

import os
from pathlib import Path
from random import Random

import pytest

from tests.cluster.load import Load, load
from tests.cluster.members import Cluster, Member, running_cluster

SEEDS = range(int(os.environ.get("KVORUM_SEEDS", "3")))
ROUNDS = 15

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


def trouble(cluster: Cluster, random: Random, victims: list[Member]) -> None:
    """Do something to each victim that a majority can live with."""
    for victim in victims:
        others = cluster.others(victim)
        match random.randrange(6):
            case 0:
                victim.kill()
            case 1:
                victim.pause()
            case 2:
                cluster.network.isolate(victim.node)
            case 3:
                for other in random.sample(others, random.randint(1, len(others))):
                    cluster.network.cut(victim.node, other.node)
            case 4:
                for other in random.sample(others, random.randint(1, len(others))):
                    cluster.network.cut(other.node, victim.node)
            case _:
                for other in others:
                    cluster.network.slow(victim.node, other.node, random.random() / 20, 500_000)
                    cluster.network.reset(victim.node, other.node)


def one_round(cluster: Cluster, random: Random, work: Load) -> None:
    members = list(cluster)
    victims = random.sample(members, random.randint(1, 2))
    if random.random() < 0.5:
        leader = cluster.leader()
        victims = list({leader: None, victims[0]: None})
    trouble(cluster, random, victims)
    work.await_progress(random.randint(1, 20))
    cluster.network.mend()
    for victim in victims:
        if victim.is_paused:
            victim.resume()
        if victim.process is None:
            victim.start()
    if random.random() < 0.5:
        # Otherwise the next trouble finds them where they are.
        cluster.settle()
    work.await_progress(random.randint(1, 10))


@pytest.mark.parametrize("seed", SEEDS)
def test_at_random(tmp_path: Path, make: str, seed: int) -> None:
    random = Random(seed)
    flags = ["--snapshot-count=300"]
    if make == "kvorum":
        flags.append("--snapshot-catchup-entries=50")
    with (
        running_cluster(tmp_path, make, 5, *flags) as cluster,
        load(cluster, ordered=False) as work,
    ):
        for _ in range(ROUNDS):
            one_round(cluster, random, work)
