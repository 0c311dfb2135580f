"""Handing over the leadership."""

import pytest

from kvorum.raft import membership
from kvorum.raft.changes import Change, ChangeType, ConfChangeV2
from kvorum.raft.core import Raft
from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import ConfState, Message, MessageType
from tests.raft.cores import (
    FOLLOWER,
    LEADER,
    Net,
    hup,
    lines_of,
    next_entries,
    prop,
    propose,
    remove_node,
    storage_of,
    transfer,
)

APP_RESP, TIMEOUT_NOW = MessageType.APP_RESP, MessageType.TIMEOUT_NOW


def elected(**options: bool) -> Net:
    net = Net.of(3, **options)
    net.send(hup(1))
    return net


def check(core: Raft, role: int, lead: int) -> None:
    assert (core.role, core.lead, core.lead_transferee) == (role, lead, 0)


@pytest.mark.parametrize("by_follower", [False, True])
def test_to_a_node_that_is_up_to_date(by_follower: bool) -> None:
    net = elected()
    net.send(transfer(2, at=2 if by_follower else 1))
    check(net[1], FOLLOWER, 2)
    net.send(prop(1))
    net.send(transfer(1, at=1 if by_follower else 2))
    check(net[1], LEADER, 1)


def test_the_lease_does_not_hinder_it() -> None:
    net = Net.of(3, check_quorum=True)
    for node in net.cores:
        net[node].randomized_election_timeout = 10 + node
    for _ in range(10):
        net[2].tick()
    net.send(hup(1))
    net.send(transfer(2, at=1))
    check(net[1], FOLLOWER, 2)
    net.send(prop(1))
    net.send(transfer(1, at=2))
    check(net[1], LEADER, 1)


def test_to_a_slow_follower() -> None:
    net = elected()
    net.isolate(3)
    net.send(prop(1))
    net.recover()
    assert net[1].tracker.progress[3].match == 1
    net.send(transfer(3, at=1))
    check(net[1], FOLLOWER, 3)


def test_after_a_snapshot() -> None:
    net = elected()
    net.isolate(3)
    net.send(prop(1))
    next_entries(net[1])
    storage = storage_of(net[1])
    storage.create_snapshot(net[1].log.applied, ConfState((1, 2, 3)), b"")
    storage.compact(net[1].log.applied)
    net.recover()
    assert net[1].tracker.progress[3].match == 1
    held: list[Message] = []

    def hold(message: Message) -> bool:
        if message.type == APP_RESP and message.sender == 3 and not message.reject:
            held.append(message)
            return False
        return True

    net.hook = hold
    net.send(transfer(3, at=1))
    assert net[1].role == LEADER
    assert held
    snapshot = net[3].log.unstable.snapshot
    assert snapshot is not None
    storage_of(net[3]).apply_snapshot(snapshot)
    net[3].applied_snapshot(snapshot)
    net.recover()
    net.send(*held)
    check(net[1], FOLLOWER, 3)


def test_to_itself() -> None:
    net = elected()
    net.send(transfer(1, at=1))
    check(net[1], LEADER, 1)
    assert lines_of(net[1]).lines[-1] == (
        "DEBUG 1 is already leader. Ignored transferring leadership to self"
    )


def test_to_nobody() -> None:
    net = elected()
    net.send(transfer(4, at=1))
    check(net[1], LEADER, 1)


def waiting() -> Net:
    """A transfer to a node that cannot be reached."""
    net = elected()
    net.isolate(3)
    net.send(transfer(3, at=1))
    assert net[1].lead_transferee == 3
    return net


def ticks(core: Raft, count: int) -> None:
    for _ in range(count):
        core.tick()


def test_it_times_out() -> None:
    net = waiting()
    ticks(net[1], 1)
    assert net[1].lead_transferee == 3
    ticks(net[1], 9)
    check(net[1], LEADER, 1)


def test_proposals_are_refused_meanwhile() -> None:
    net = elected()
    net.isolate(3)
    next_entries(net[1])
    net.send(transfer(3, at=1))
    with pytest.raises(ProposalDroppedError):
        propose(net[1])
    assert lines_of(net[1]).lines[-1] == (
        "DEBUG 1 [term 1] transfer leadership to 3 is in progress; dropping proposal"
    )
    assert net[1].tracker.progress[1].match == 1


def test_a_vote_of_a_higher_term_ends_it() -> None:
    net = waiting()
    net.send(hup(2))
    check(net[1], FOLLOWER, 2)


def test_removing_the_target_ends_it() -> None:
    net = elected()
    net.ignored.add(TIMEOUT_NOW)
    net.send(transfer(3, at=1))
    assert net[1].lead_transferee == 3
    remove_node(net[1], 3)
    check(net[1], LEADER, 1)


def test_demoting_the_target_ends_it() -> None:
    net = elected()
    net.ignored.add(TIMEOUT_NOW)
    net.send(transfer(3, at=1))
    changes = (Change(ChangeType.REMOVE_NODE, 3), Change(ChangeType.ADD_LEARNER_NODE, 3))
    membership.apply_conf_change(net[1], ConfChangeV2(changes=changes))
    membership.apply_conf_change(net[1], ConfChangeV2())
    check(net[1], LEADER, 1)


def test_back_to_itself_ends_it() -> None:
    net = waiting()
    net.send(transfer(1, at=1))
    check(net[1], LEADER, 1)


def test_another_target_takes_its_place() -> None:
    net = waiting()
    net.send(transfer(2, at=1))
    check(net[1], FOLLOWER, 2)
    assert "INFO 1 [term 1] abort previous transferring leadership to 3" in lines_of(net[1]).lines


def test_the_same_target_again_does_not_extend_it() -> None:
    net = waiting()
    ticks(net[1], 1)
    net.send(transfer(3, at=1))
    assert lines_of(net[1]).lines[-1] == (
        "INFO 1 [term 1] transfer leadership to 3 is in progress, ignores request to same node 3"
    )
    ticks(net[1], 9)
    check(net[1], LEADER, 1)


def test_a_follower_without_a_leader_drops_it() -> None:
    net = Net.of(3)
    net.send(transfer(3, at=2))
    assert lines_of(net[2]).lines[-1] == (
        "INFO 2 no leader at term 0; dropping leader transfer msg"
    )
