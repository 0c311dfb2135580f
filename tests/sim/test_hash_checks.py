"""Members compare hashes in some runs: what has decayed is noticed, and nothing else is."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from kvorum.member import corruption
from kvorum.member.hashing import Hashed
from kvorum.member.peer_requests import parse_hash
from kvorum.sim.cluster import Cluster
from kvorum.sim.environments import DamagedEntry
from kvorum.sim.faults import without_faults
from kvorum.sim.machine import Machine
from kvorum.sim.nemesis import DATABASE_FLIPS
from kvorum.sim.plan import draw_plan
from kvorum.sim.probes import Probe
from kvorum.sim.run import memory_directory, simulate_plan
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.mvcc import hashes
from kvorum.storage.backend.buckets import KEY

SEED = 300000
OPTIONS = {"election_ticks": 4, "flush_seconds": 0.02, "segment_bytes": 16384}


def another_hash(body: bytes) -> Hashed:
    """Return what no member has said."""
    said = parse_hash(body)
    return said._replace(found=said.found._replace(hash=said.found.hash ^ 1))


@pytest.mark.parametrize(
    "option", ["corrupt_check_seconds", "compact_hash_check_seconds", "initial_corrupt_check"]
)
def test_some_runs_compare_hashes_and_some_of_them_where_bits_flip(option: str) -> None:
    plans = [draw_plan(seed, 3) for seed in range(400)]
    comparing = [plan for plan in plans if plan.options[option]]
    assert any(plan.faults.flip_gap for plan in comparing)
    assert not all(plan.faults.flip_gap for plan in comparing)


@pytest.mark.parametrize(
    ("options", "guarantee"),
    [
        ({"corrupt_check_seconds": 0.2}, "members are equal by HashKV"),
        ({"initial_corrupt_check": True}, "the member serves"),
    ],
    ids=["alarm", "stop"],
)
def test_an_alarm_or_a_stop_without_damage_is_noticed(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], guarantee: str
) -> None:
    plan = draw_plan(SEED, 3)
    faults = dataclasses.replace(plan.faults, flip_gap=0.0, crash_gap=1.0)
    unchecked = {
        "corrupt_check_seconds": 0.0,
        "compact_hash_check_seconds": 0.0,
        "initial_corrupt_check": False,
    }
    options = plan.options | unchecked | options
    monkeypatch.setattr(corruption, "parse_hash", another_hash)
    plan = dataclasses.replace(plan, faults=faults, options=options)
    assert simulate_plan(plan).guarantee == guarantee


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(dir=memory_directory()) as path:
        yield Path(path)


def serves(cluster: Cluster, number: int) -> None:
    world = cluster._world
    probe = Probe(world, cluster, number)
    probe.start()
    assert world.run_while(lambda: not probe.is_done, world.now + 10.0), probe.last


@contextmanager
def written(directory: Path, seed: int, **options: object) -> Iterator[Cluster]:
    """Start three members and let every one of them have rows on its disk."""
    world = World(seed)
    faults = dataclasses.replace(without_faults(), frames=True)
    cluster = Cluster(world, 3, faults, str(directory), OPTIONS | options)
    try:
        cluster.start()
        for number in (1, 2, 3):
            serves(cluster, number)
        world.run_until(world.now + 1.0)
        yield cluster
    finally:
        for machine in cluster.machines.values():
            machine.end()


def lose_a_row(cluster: Cluster, machine: Machine, random: Random, *, is_hidden: bool) -> None:
    """Let a row go; if it is hidden, by a bit of its key: it comes behind all others."""
    # A hash that is being computed sees the database as it was when it began.
    world = cluster._world
    assert world.run_while(lambda: machine.executor._stepped is not None, world.now + 5.0)
    (path,) = machine.disk.environments._paths(f"{machine.disk.member_directory}/backend")
    with (
        machine.disk.environments._raw(path) as (environment, databases),
        environment.begin(databases[KEY], write=True) as transaction,
    ):
        key, value = random.choice(list(transaction.cursor()))
        hidden = bytes([key[0] ^ 0x40]) + key[1:]
        transaction.delete(key)
        if is_hidden:
            transaction.put(hidden, value)
    if is_hidden:
        machine.disk._damage.append(DamagedEntry(KEY, key, value, hidden, value))
        machine.disk.environments.strayed = DamagedEntry(KEY, key, value, hidden, value)
    cluster.nemesis.counts[DATABASE_FLIPS] += 1


def accused(cluster: Cluster) -> list[object]:
    members = [each.member for each in cluster.machines.values() if each.member is not None]
    return [alarm for each in members for alarm in each.state.alarms.raised(AlarmType.CORRUPT)]


@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_is_gone_raises_the_alarm(directory: Path, seed: int) -> None:
    with written(directory, seed, corrupt_check_seconds=0.5) as cluster:
        assert not accused(cluster)
        random = Random(seed)
        lose_a_row(cluster, cluster.machines[random.randint(1, 3)], random, is_hidden=False)
        world = cluster._world
        assert world.run_while(lambda: not accused(cluster), world.now + 5.0)


@pytest.mark.parametrize("seed", range(4))
def test_a_row_whose_key_has_changed_stops_the_member(directory: Path, seed: int) -> None:
    """Its checksum tells, wherever it went: nobody has to compare."""
    with written(directory, seed, corrupt_check_seconds=0.5) as cluster:
        random = Random(seed)
        machine = cluster.machines[random.randint(1, 3)]
        lose_a_row(cluster, machine, random, is_hidden=True)
        world = cluster._world
        assert world.run_while(lambda: not machine.stops, world.now + 5.0)
        serves(cluster, machine.number)


@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_starts_and_differs_from_another_stops(directory: Path, seed: int) -> None:
    """It cannot know which of them is damaged; here it is the other."""
    with written(directory, seed, initial_corrupt_check=True) as cluster:
        world = cluster._world
        one, other = (cluster.machines[number] for number in Random(seed).sample([1, 2, 3], 2))
        one.crash(power_cut=True)
        one.start()
        world.run_until(world.now + 2.0)
        assert one.stops == 0, "nothing is missing yet"
        lose_a_row(cluster, other, Random(seed), is_hidden=False)
        one.crash(power_cut=True)
        one.start()
        assert world.run_while(lambda: not one.stops, world.now + 5.0)


def test_a_hash_that_sees_no_damage_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(directory, 1, corrupt_check_seconds=0.2) as cluster:
        lose_a_row(cluster, cluster.machines[2], Random(1), is_hidden=True)
        monkeypatch.setattr(hashes, "hash_rows", lambda *_rows, **_kind: 7)
        for of in list(cluster._hashes):
            cluster._hashes[of] = 7
        with pytest.raises(Violation, match="hashes see damage"):
            cluster._world.run_until(cluster._world.now + 3.0)
