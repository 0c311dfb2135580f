"""What members keep: nothing for clients that are gone, and what is the member's own is known."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import PutRequest
from kvorum.sim.machine import Machine
from kvorum.sim.memory import PROPOSALS, leftovers
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from tests.incidents.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def proposed(machine: Machine) -> list[int]:
    """Return the kinds of requests whose proposals a member keeps."""
    assert machine.member is not None
    return [kind for _, _, kind, *_ in machine.member.replica.proposals.pending.values()]


def start_alone(stage: Stage, number: int) -> Machine:
    """Start a member anew that reaches nobody; return it once it tries to tell its name."""
    machine = stage.machine(number)
    stage.isolate(number)
    stage.restart(number)
    stage.run_until(lambda: machine.member is not None and bool(proposed(machine)))
    assert proposed(machine) == [requests.CLUSTER_MEMBER_ATTR_SET]
    return machine


def test_a_member_that_is_alone_may_try_to_tell_its_name(stage: Stage) -> None:
    machine = start_alone(stage, stage.followers()[0])
    assert leftovers(machine) == {}
    assert machine.member is not None
    # It tries again when the time of the first attempt is over.
    stage.run(machine.member.config.request_seconds_max)
    stage.run_until(lambda: bool(proposed(machine)))
    assert leftovers(machine) == {}


def test_what_it_keeps_for_a_client_is_noticed_until_its_time_is_over(stage: Stage) -> None:
    number = stage.followers()[0]
    machine = start_alone(stage, number)
    asked = stage.begin(PutRequest(key=b"k"), number, patience=0.1)
    stage.run_until(lambda: asked.finished > 0)
    assert leftovers(machine).get(PROPOSALS) == 1
    stage.run_until(lambda: leftovers(machine) == {})


def test_what_a_member_with_a_leader_does_not_get_decided_is_noticed(stage: Stage) -> None:
    number = stage.followers()[0]
    machine = stage.machine(number)
    assert machine.member is not None and machine.member.leader
    assert leftovers(machine) == {}
    machine.member.replica.propose(
        None, MEMBER, requests.PUT, PutRequest(key=b"k").SerializeToString()
    )
    assert leftovers(machine) == {PROPOSALS: 1}
    stage.run_until(lambda: leftovers(machine) == {})
