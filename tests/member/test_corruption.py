"""Members whose data differs from the others' are found, and no other is accused."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import CompactionRequest
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.member.corruption import ATTEMPTS_MAX, _difference
from kvorum.member.errors import MemberStopped
from kvorum.member.hashing import Hashed, hash_kv
from kvorum.member.member import Member
from kvorum.member.waits import Steps
from kvorum.state.apply import requests
from kvorum.state.apply.alarms import AlarmType, MemberAlarm
from kvorum.state.mvcc.hashes import HashKV
from kvorum.state.mvcc.keyvalue import key_of
from tests.member.harness import Cluster, Machine

PERIODIC: dict[str, Any] = {"corrupt_check_seconds": 5.0}
COMPACT: dict[str, Any] = {"compact_hash_check_seconds": 10.0}


def filled(size: int = 3, **options: Any) -> Cluster:
    cluster = Cluster(size, **options)
    leader = cluster.leader()
    for number in range(30):
        cluster.success(leader, leader.put(b"%02d" % (number % 10), b"%d" % number))
    cluster.wait(lambda: len({each.running.state.store.revision for each in cluster}) == 1)
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    return cluster


def corrupt(machine: Machine, revision: int = 20) -> None:
    """Change a value without the store's notice."""
    backend = machine.running.state.backend
    row = KeyValue.FromString(backend.row(revision << 32))
    row.value += b" and more"
    backend.put_row(revision << 32, row.SerializeToString())


def compact(cluster: Cluster, revision: int) -> None:
    leader = cluster.leader()
    body = CompactionRequest(revision=revision).SerializeToString()
    cluster.success(leader, leader.propose(requests.COMPACTION, body))
    cluster.wait(
        lambda: not any(each.running.state.store.compaction.is_pending for each in cluster)
    )


def accused(cluster: Cluster) -> list[int]:
    """Return the ids that the alarms name; all members must have the same alarms."""
    known = [each.running.state.alarms.raised() for each in cluster]
    assert all(each == known[0] for each in known)
    assert all(alarm.type == AlarmType.CORRUPT for alarm in known[0])
    return [alarm.member_id for alarm in known[0]]


def others(cluster: Cluster) -> list[Machine]:
    leader = cluster.leader()
    return [machine for machine in cluster if machine is not leader]


@pytest.mark.parametrize("options", [{}, PERIODIC | COMPACT])
def test_equal_members_are_left_alone(options: dict[str, Any]) -> None:
    cluster = filled(**options)
    for round_ in range(4):
        leader = cluster.leader()
        compact(cluster, 12 + 5 * round_)
        cluster.success(leader, leader.put(b"more", b"%d" % round_))
        cluster.pass_time(12.0)
        leader.running.replica.node.transfer_leader(others(cluster)[0].running.id)
        cluster.pass_time(2.0)
    cluster.isolate(others(cluster)[0])
    cluster.pass_time(12.0)
    cluster.heal()
    cluster.pass_time(12.0)
    assert accused(cluster) == []
    if "compact_hash_check_seconds" in options:
        assert cluster.leader().running.corruption.checked_revision == 27


@pytest.mark.parametrize("which", [0, 1])
def test_a_follower_that_differs_is_found(which: int) -> None:
    cluster = filled(**PERIODIC)
    victim = others(cluster)[which]
    corrupt(victim)
    cluster.wait(lambda: cluster.leader().running.state.alarms.raised(), 10.0)
    cluster.pass_time(1.0)
    assert accused(cluster) == [victim.running.id]
    leader = cluster.leader()
    assert cluster.answer(leader, leader.put(b"key")) == errors.CORRUPT
    # Reads are still served.
    cluster.success(leader, leader.range(b"00"))


def test_a_leader_that_differs_accuses_one_member_at_a_time() -> None:
    cluster = filled(**PERIODIC)
    corrupt(cluster.leader())
    cluster.wait(lambda: cluster.leader().running.state.alarms.raised(), 10.0)
    cluster.pass_time(1.0)
    assert len(accused(cluster)) == 1


def test_only_the_leader_compares() -> None:
    cluster = filled(**PERIODIC)
    victim = others(cluster)[0]
    corrupt(victim)
    asked = []
    ask = cluster.ask

    def noted(asking: Member, question: Any) -> None:
        asked.append(asking)
        ask(asking, question)

    cluster.ask = noted  # type: ignore[method-assign]
    cluster.wait(lambda: accused(cluster), 10.0)
    assert set(asked) == {cluster.leader().running}


def test_no_check_unless_asked_for() -> None:
    cluster = filled()
    corrupt(others(cluster)[0])
    compact(cluster, 25)
    cluster.pass_time(30.0)
    assert accused(cluster) == []


def test_the_minority_is_found_by_the_hash_of_a_compaction() -> None:
    cluster = filled(**COMPACT)
    victim = others(cluster)[1]
    corrupt(victim)
    compact(cluster, 25)
    cluster.wait(lambda: cluster.leader().running.state.alarms.raised(), 25.0)
    cluster.pass_time(1.0)
    assert accused(cluster) == [victim.running.id]


def test_the_leader_itself_may_be_the_minority() -> None:
    cluster = filled(**COMPACT)
    leader = cluster.leader()
    corrupt(leader)
    compact(cluster, 25)
    cluster.wait(lambda: leader.running.state.alarms.raised(), 25.0)
    cluster.pass_time(1.0)
    assert accused(cluster) == [leader.running.id]


def test_without_a_majority_nobody_in_particular_is_accused() -> None:
    cluster = filled(size=2, **COMPACT)
    corrupt(others(cluster)[0])
    compact(cluster, 25)
    cluster.wait(lambda: cluster.leader().running.state.alarms.raised(), 25.0)
    cluster.pass_time(1.0)
    assert accused(cluster) == [0]
    assert str(MemberAlarm(AlarmType.CORRUPT, 0)) == "alarm:CORRUPT"


@pytest.mark.parametrize(
    ("answer", "is_accused"),
    [
        (Hashed(HashKV(111, 20, 5), 20), False),
        (Hashed(HashKV(222, 20, 5), 20), True),
        # The peer had not compacted yet, or the leader had not: then hashes may differ.
        (Hashed(HashKV(222, 20, 4), 20), False),
        (Hashed(HashKV(222, 20, 9), 20), False),
        (Hashed(HashKV(111, 20, 10), 20), True),
        (Hashed(HashKV(111, 20, 5), 30), False),
        (Hashed(HashKV(111, 20, 5), 31), True),
    ],
)
def test_what_of_an_answer_cannot_be(answer: Hashed, is_accused: bool) -> None:
    own, later = HashKV(111, 20, 5), HashKV(333, 30, 9)
    assert (_difference(own, later, 30, answer) is not None) == is_accused


# At the start.


def restart(machine: Machine) -> None:
    machine.kill()
    machine.config = replace(machine.config, initial_corrupt_check=True)
    machine.start()


def test_a_sound_member_starts_again() -> None:
    cluster = filled()
    for machine in list(cluster):
        cluster.pass_time(1.0)
        restart(machine)
        cluster.wait(lambda machine=machine: machine.running.is_published)  # type: ignore[misc]


def test_a_member_that_differs_refuses_to_serve() -> None:
    cluster = filled()
    victim = others(cluster)[0]
    corrupt(victim)
    cluster.pass_time(1.0)
    assert key_of(victim.running.state.backend.row(20 << 32)) == b"08"
    restart(victim)
    with pytest.raises(MemberStopped, match="data inconsistency with peers"):
        cluster.wait(lambda: victim.running.is_published)


def test_a_member_whose_peers_do_not_answer_starts() -> None:
    cluster = filled()
    victim = others(cluster)[0]
    corrupt(victim)
    cluster.pass_time(1.0)
    cluster.ask = lambda asking, question: asking.take_answer(question.number, None)  # type: ignore[method-assign]
    restart(victim)
    cluster.wait(lambda: victim.running.is_published)


# What cannot be compared.


def emptied(cluster: Cluster) -> Machine:
    """Delete all keys and compact at the last deletion; return a member that has yet to compact.

    That member gets the leader's questions, and nothing else.
    """
    leader = cluster.leader()
    cluster.success(leader, leader.put(b"a", b"1"))
    compact(cluster, 2)
    cluster.success(leader, leader.delete(b"a"))
    cluster.wait(lambda: {each.running.state.store.revision for each in cluster} == {3})
    behind = others(cluster)[0]
    cluster.isolate(behind)
    cluster.is_cut = lambda one, other: False  # type: ignore[method-assign]  # noqa: ARG005
    body = CompactionRequest(revision=3).SerializeToString()
    cluster.success(leader, leader.propose(requests.COMPACTION, body))
    cluster.wait(lambda: leader.running.state.store.compaction.hash_of(3))
    return behind


def hashed(cluster: Cluster, machine: Machine, revision: int) -> HashKV:
    found: list[HashKV] = []

    def steps() -> Steps:
        found.append((yield from hash_kv(machine.running, revision)).found)
        return b""

    cluster.success(machine, machine.start_steps(steps()))
    return found[0]


def test_a_member_that_has_yet_to_compact_is_not_accused() -> None:
    """It computes anew what the others have kept; if no key is left, the hashes differ."""
    cluster = Cluster(3, **COMPACT)
    behind = emptied(cluster)
    kept = cluster.leader().running.state.store.compaction.hash_of(3)
    computed = hashed(cluster, behind, 3)
    assert kept is not None and computed[1:] == kept[1:] and computed.hash != kept.hash
    cluster.pass_time(25.0)
    assert accused(cluster) == []
    cluster.heal()
    cluster.wait(lambda: cluster.leader().running.corruption.checked_revision == 3, 25.0)
    assert accused(cluster) == []


def test_a_revision_that_is_compacted_meanwhile_accuses_nobody() -> None:
    own, later = HashKV(111, 20, 5), HashKV(333, 30, 20)
    assert _difference(own, later, 30, Hashed(HashKV(222, 20, 5), 20)) is None


def test_a_member_that_starts_before_a_compaction_starts() -> None:
    """It is at the revision that the others have compacted."""
    cluster = Cluster(3)
    behind = emptied(cluster)
    restart(behind)
    cluster.pass_time(5.0)
    cluster.heal()
    cluster.wait(lambda: behind.running.is_published)


def test_a_member_without_the_hash_is_not_asked_for_ever() -> None:
    cluster = filled(**COMPACT)
    compact(cluster, 12)
    cluster.wait(lambda: cluster.leader().running.corruption.checked_revision == 12)
    victim = others(cluster)[0]
    compact(cluster, 20)
    # The compaction is flushed and not yet compared; a restart forgets its hash.
    cluster.pass_time(1.0)
    assert cluster.leader().running.corruption.checked_revision == 12
    victim.kill()
    victim.start()
    cluster.leader()
    asked: list[int] = []
    ask = cluster.ask

    def noted(asking: Member, question: Any) -> None:
        asked.append(question.peer)
        ask(asking, question)

    cluster.ask = noted  # type: ignore[method-assign]
    cluster.pass_time(100.0)
    assert asked.count(victim.running.id) == ATTEMPTS_MAX
    assert len(asked) - asked.count(victim.running.id) == 1
    assert accused(cluster) == []
    # The next compaction is compared again.
    compact(cluster, 25)
    cluster.wait(lambda: cluster.leader().running.corruption.checked_revision == 25)


@pytest.mark.parametrize("said", [None, errors.COMPACTED], ids=["nothing", "compacted"])
@pytest.mark.parametrize("size", [1, 3])
def test_peers_that_cannot_tell_are_no_reason_to_worry(
    size: int, said: Status | None, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no such endpoint, or keep no hashes, like older members."""
    caplog.set_level(logging.INFO)
    cluster = filled(size, **COMPACT)
    cluster.ask = lambda asking, question: asking.take_answer(question.number, said)  # type: ignore[method-assign]
    for round_ in range(4):
        compact(cluster, 12 + 5 * round_)
        cluster.pass_time(40.0)
    assert accused(cluster) == []
    told = [each for each in caplog.records if "has no hash" in each.getMessage()]
    assert all(each.levelno == logging.INFO for each in told)
    # Once for each peer, not with every compaction.
    assert len(told) == (size - 1 if said else 0)
