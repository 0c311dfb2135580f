"""Of two members one is removed, and gone before the other knows; that one must not be stuck."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest

from kvorum.api.pb.etcdserverpb import MemberRemoveRequest
from kvorum.member.member import Member
from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import without_faults
from kvorum.sim.machine import Machine
from kvorum.sim.recalls import recall
from kvorum.sim.run import memory_directory
from kvorum.sim.world import World

SECONDS = 10.0
# The operator looks for changes only where there may be some.
CHANGING = replace(without_faults(), change_gap=1e9)


class Pair:
    """Two members, of which the leader has applied its own removal, and the other is cut off."""

    def __init__(self, directory: str) -> None:
        self.world = World(1)
        self.cluster = Cluster(self.world, 2, CHANGING, directory, {"election_ticks": 4})
        self.cluster.start()
        machines = self.cluster.machines
        self.until(
            lambda: all(each.server and each.server.is_published for each in machines.values())
        )
        self.removed = next(each for each in machines.values() if running(each).is_leader)
        self.other = next(each for each in machines.values() if each is not self.removed)
        request = MemberRemoveRequest(ID=running(self.removed).id)
        path, payload = "/etcdserverpb.Cluster/MemberRemove", request.SerializeToString()
        self.cluster.call(self.removed.number, path, payload, lambda _: None)
        self.until(lambda: running(self.removed).was_removed)
        self.cluster.network.divide([self.removed.number], [self.other.number])

    def until(self, condition: Callable[[], object]) -> None:
        assert self.world.run_while(lambda: not condition(), self.world.now + SECONDS)

    def leads_alone(self) -> bool:
        member = running(self.other)
        return member.is_leader and member.conf_state.voters == (member.id,)


def running(machine: Machine) -> Member:
    assert machine.member is not None
    return machine.member


@pytest.fixture
def pair() -> Iterator[Pair]:
    with TemporaryDirectory(dir=memory_directory()) as directory:
        made = Pair(directory)
        yield made
        for machine in made.cluster.machines.values():
            machine.end()


def test_a_start_of_the_removed_one_is_long_enough(pair: Pair) -> None:
    pair.removed.crash(power_cut=True)
    pair.world.run_until(pair.world.now + 2.0)
    pair.cluster.network.heal()
    assert not pair.leads_alone()
    pair.removed.start()
    pair.until(pair.leads_alone)
    pair.until(lambda: pair.removed.has_left)


def test_the_operator_calls_it_back(pair: Pair) -> None:
    pair.until(lambda: pair.removed.has_left)
    pair.cluster.network.heal()
    pair.world.run_until(pair.world.now + SECONDS)
    assert not pair.leads_alone()
    pair.cluster.operator.stop(without_faults())
    assert pair.leads_alone()
    assert pair.cluster.operator.counts["removed members called back"] > 0


def test_no_member_is_recalled_without_need(pair: Pair) -> None:
    ids = {running(each).id: each.number for each in pair.cluster.machines.values()}
    pair.cluster.network.heal()
    pair.until(pair.leads_alone)
    pair.until(lambda: pair.removed.has_left)
    assert recall(pair.cluster.machines, ids) == 0
    assert pair.removed.is_dead
