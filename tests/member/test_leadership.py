"""Which member leads, and what a former leader may not do: handover, pauses, removal."""

from collections.abc import Callable

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import LeaseGrantRequest, LeaseRevokeRequest, RangeResponse
from kvorum.member.jobs import ExecutorKind
from kvorum.member.leadership_transfer import transfer_leadership
from kvorum.member.leases import UNCONFIRMED, is_confirmed, renew, time_to_live_here, try_renew
from kvorum.member.procedures import Exclusive
from kvorum.member.waits import ProposeChange, Steps
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.states import Role
from kvorum.raft.wire import decode_message
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from tests.member.harness import Cluster, Machine


def grant(cluster: Cluster, machine: Machine, lease: int, ttl: int) -> None:
    body = LeaseGrantRequest(ID=lease, TTL=ttl).SerializeToString()
    cluster.success(machine, machine.propose(requests.LEASE_GRANT, body))


def renewal(machine: Machine, lease: int) -> int:
    """Begin to renew a lease; the answer is its TTL in digits."""

    def steps() -> Steps:
        result = yield from renew(machine.running, MEMBER, lease)
        return b"%d" % result if isinstance(result, int) else result

    return machine.start_steps(steps())


def time_to_live(machine: Machine, lease: int) -> int:
    def steps() -> Steps:
        found = yield from time_to_live_here(machine.running, lease)
        if found is None:
            return errors.NOT_LEADER
        return found if isinstance(found, Status) else b"%d" % found[0]

    return machine.start_steps(steps())


def successor(cluster: Cluster, old: Machine) -> Machine:
    """Wait for another leader."""

    def found() -> Machine | None:
        others = [each for each in cluster.awake() if each is not old]
        return next((each for each in others if each.running.state.lessor.is_primary), None)

    machine: Machine = cluster.wait(found)
    return machine


def paused(seconds: float) -> tuple[Cluster, Machine, Machine]:
    """Return a cluster whose leader was paused, that leader, and the new one."""
    cluster = Cluster(3)
    old = cluster.leader()
    cluster.success(old, old.put(b"key", b"old"))
    grant(cluster, old, 7, 60)
    grant(cluster, old, 8, 5)
    cluster.success(old, old.put(b"leased", lease=8))
    assert cluster.answer(old, renewal(old, 7)) == b"60"
    old.is_paused = True
    new = successor(cluster, old)
    cluster.success(new, new.put(b"key", b"new"))
    cluster.pass_time(seconds)
    return cluster, old, new


# A paused leader.


@pytest.mark.parametrize("ticks_first", [False, True])
def test_a_leader_that_stood_still_serves_no_stale_read(ticks_first: bool) -> None:
    cluster, old, _ = paused(3.0)
    old.is_paused = False
    assert old.running.is_leader
    if ticks_first:
        old.turn()
    read = old.range(b"key")
    for _ in range(5):
        old.turn()
    assert read not in old.replies
    cluster.wake(old)
    answer = RangeResponse.FromString(cluster.success(old, read))
    assert [kv.value for kv in answer.kvs] == [b"new"]


def test_a_lease_runs_from_when_it_is_renewed_and_not_from_the_turn_before() -> None:
    cluster = Cluster(1)
    leader = cluster.leader()
    grant(cluster, leader, 7, 60)
    assert cluster.answer(leader, renewal(leader, 7)) == b"60"
    member, turned_at = leader.running, leader.running.now
    # If the disk was slow, the last turn began a while ago.
    cluster.now += 0.05
    assert try_renew(member, 7) == 60
    assert member.state.lessor.take_expired(turned_at + 60.0, 1) == []
    assert member.state.lessor.take_expired(turned_at + 60.06, 1) == [7]


@pytest.mark.parametrize("ticks_first", [False, True])
def test_a_leader_that_stood_still_renews_no_lease(ticks_first: bool) -> None:
    cluster, old, new = paused(8.0)
    assert 8 not in new.running.state.lessor, "it ran out on the new leader"
    assert 8 in old.running.state.lessor
    old.is_paused = False
    if ticks_first:
        old.turn()
    # Even before a turn has told the member what time it is.
    assert try_renew(old.running, 7) is None
    assert try_renew(old.running, 8) is None
    calls = [renewal(old, 7), renewal(old, 8), time_to_live(old, 7), time_to_live(old, 8)]
    for _ in range(5):
        old.turn()
    assert not any(call in old.replies for call in calls)
    cluster.wake(old)
    answers = [cluster.answer(old, call) for call in calls]
    assert answers[0] in (b"60", UNCONFIRMED)
    assert answers[1] in (b"0", UNCONFIRMED)
    assert answers[2] in (errors.NOT_LEADER, errors.LEASE_NOT_FOUND)
    assert answers[3] in (errors.NOT_LEADER, errors.LEASE_NOT_FOUND)
    cluster.wait(lambda: 8 not in old.running.state.lessor)
    assert cluster.answer(old, renewal(old, 7)) == b"60"
    assert UNCONFIRMED.code is errors.Code.UNAVAILABLE


def test_who_leads_no_more_does_not_say_that_a_lease_does_not_exist() -> None:
    """A transfer that was given up may still depose a leader whom a quorum has just confirmed."""
    cluster = Cluster(3)
    old, heir = cluster.leader(), cluster.follower()
    grant(cluster, old, 7, 60)
    assert cluster.answer(old, renewal(old, 7)) == b"60"
    cluster.isolate(old)
    identity, term = heir.running.id, old.running.term
    late = Message(MessageType.TIMEOUT_NOW, to=identity, sender=old.running.id, term=term)
    heir.running.receive(late)
    new = successor(cluster, old)
    grant(cluster, new, 9, 60)
    assert old.running.is_leader and is_confirmed(old.running)
    renewed, looked = renewal(old, 9), time_to_live(old, 9)
    for _ in range(5):
        old.turn()
    assert not {renewed, looked} & old.replies.keys()
    cluster.heal()
    assert cluster.answer(old, renewed) in (b"60", UNCONFIRMED)
    assert cluster.answer(old, looked) == errors.NOT_LEADER


def test_a_leader_that_stood_still_revokes_nothing() -> None:
    cluster, old, new = paused(20.0)
    for _ in range(4):
        assert cluster.answer(new, renewal(new, 7)) == b"60"
        cluster.pass_time(15.0)
    # As the old leader counts, the lease ran out long ago.
    old.is_paused = False
    for _ in range(5):
        old.turn()
    cluster.wake(old)
    cluster.pass_time(5.0)
    assert all(7 in each.running.state.lessor for each in cluster)
    assert cluster.answer(new, renewal(new, 7)) == b"60"


def test_a_revocation_decided_on_is_not_forwarded_to_another_leader() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    member = old.running
    heir = cluster.follower().running
    term = member.term
    body = LeaseRevokeRequest(ID=7).SerializeToString()
    grant(cluster, old, 7, 60)
    member.receive(Message(MessageType.HEARTBEAT, to=member.id, sender=heir.id, term=term + 1))
    assert member.replica.node.raft.role == Role.FOLLOWER
    assert member.replica.node.raft.lead == heir.id
    member.out.take_messages()
    member.replica.propose_as_leader(term, [(requests.LEASE_REVOKE, body)])
    old.turn()
    kinds = [decode_message(data).type for _, _, data, _ in cluster.messages]
    assert MessageType.PROP not in kinds


def test_a_leader_that_stood_still_loses_nothing_that_was_acknowledged() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    for number in range(20):
        cluster.success(old, old.put(b"%02d" % number))
    unknown = old.put(b"unknown")
    old.turn()
    old.is_paused = True
    new = successor(cluster, old)
    for number in range(20, 40):
        cluster.success(new, new.put(b"%02d" % number))
    old.is_paused = False
    late = old.put(b"late")
    old.turn()
    assert late not in old.replies
    cluster.wake(old)
    cluster.answer(old, unknown)
    cluster.answer(old, late)
    cluster.pass_time(1.0)
    for machine in cluster:
        assert all(machine.running.state.store.get(b"%02d" % each) for each in range(40))
        assert machine.running.state.store.revision == new.running.state.store.revision


def test_a_short_stop_costs_nothing() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    grant(cluster, leader, 7, 60)
    cluster.pass_time(1.0)
    assert cluster.answer(leader, renewal(leader, 7)) == b"60"
    leader.is_paused = True
    cluster.pass_time(0.2)
    cluster.wake(leader)
    assert try_renew(leader.running, 7) == 60
    leader.is_paused = True
    cluster.pass_time(0.8)
    cluster.wake(leader)
    assert try_renew(leader.running, 7) is None
    # It still leads: a question to its peers confirms that.
    cluster.pass_time(0.1)
    assert cluster.answer(leader, renewal(leader, 7)) == b"60"
    assert try_renew(leader.running, 7) == 60


@pytest.mark.parametrize("is_fast", [True, False])
def test_who_renews_all_the_time_never_waits(is_fast: bool) -> None:
    cluster = Cluster(3, fast_keep_alive=is_fast)
    leader = cluster.leader()
    grant(cluster, leader, 7, 60)
    assert cluster.answer(leader, renewal(leader, 7)) == b"60"
    for _ in range(30):
        cluster.pass_time(0.3)
        assert try_renew(leader.running, 7) == 60


@pytest.mark.parametrize("is_fast", [True, False])
def test_renewals_where_much_waits_to_be_applied(is_fast: bool) -> None:
    cluster = Cluster(1, fast_keep_alive=is_fast)
    leader = cluster.leader()
    member = leader.running
    grant(cluster, leader, 7, 60)
    body = LeaseGrantRequest(ID=8, TTL=30).SerializeToString()
    for number in range(3000):
        leader.put(b"%04d" % number)
    cluster.settle()
    # Committed entries wait for one that is applied in slices.
    cluster.slices = 1
    leader.delete(b"0", b"9")
    granted = leader.propose(requests.LEASE_GRANT, body)
    while member.replica.apply_queue.entry is None:
        leader.turn()
    assert member.state.applied < member.committed
    # Meanwhile its leadership is confirmed.
    known, late = renewal(leader, 7), renewal(leader, 8)
    for _ in range(5):
        leader.turn()
    assert leader.replies.get(known) == (b"60" if is_fast else None)
    assert late not in leader.replies
    assert member.replica.apply_queue.entry is not None
    cluster.slices = 0
    assert cluster.answer(leader, late) == b"30"
    assert granted in leader.replies


def renewed_until(machine: Machine, lease: int, ttl: int) -> float:
    """Try to renew a lease; return until when its holder relies on it, 0 if not renewed."""
    granted = try_renew(machine.running, lease)
    assert granted in (None, ttl)
    return machine.cluster.now + ttl if granted else 0.0


def relied_on(cluster: Cluster, old: Machine) -> float:
    """Renew lease 7 as long as the old leader leads; return until when its holder relies on it."""
    promised = 0.0
    while old.running.is_leader:
        promised = max(promised, renewed_until(old, 7, 60))
        renewal(old, 7)
        cluster.pass_time(0.1)
    assert promised, "it never renewed anything"
    return promised


@pytest.mark.parametrize("phase", range(0, 10, 3))
@pytest.mark.parametrize("transfers", [False, True])
def test_a_leader_that_is_cut_off_renews_nothing_that_ends_early(
    phase: int, transfers: bool
) -> None:
    """For up to two election timeouts it does not know that there is another leader."""
    cluster = Cluster(3)
    old, heir = cluster.leader(), cluster.follower()
    grant(cluster, old, 7, 60)
    cluster.pass_time(phase / 10)
    assert cluster.answer(old, renewal(old, 7)) == b"60"
    if transfers:
        old.running.replica.node.transfer_leader(heir.running.id)
        old.turn()
    cluster.isolate(old)
    promised = relied_on(cluster, old)
    new = successor(cluster, old)
    assert new.running.state.lessor._leases[7].expiry >= promised


def test_a_checkpoint_on_its_way_undoes_no_renewal() -> None:
    cluster = Cluster(1, lease_checkpoints=True)
    leader = cluster.leader()
    leader.running.state.lessor._checkpoint_seconds = 20.0
    grant(cluster, leader, 7, 60)
    leader.held.add(ExecutorKind.LOG)
    cluster.pass_time(25.0)
    raft = leader.running.replica.node.raft
    assert raft.log.last_index() > raft.log.committed, "the checkpoint is proposed"
    # The checkpoint holds what was left of the lease before this renewal.
    call = renewal(leader, 7)
    cluster.settle()
    promised = cluster.now + 60 if call in leader.replies else 0.0
    leader.held.clear()
    assert cluster.answer(leader, call) == b"60"
    promised = promised or cluster.now + 60
    leader.kill()
    leader.start()
    leader = cluster.leader()
    assert leader.running.state.lessor._leases[7].expiry >= promised


# A machine that was suspended: its clock stood still, but nobody else's.


def test_a_leader_that_was_suspended_renews_nothing() -> None:
    cluster, old, new = paused(8.0)
    old.asleep = cluster.now - old.running.now
    old.is_paused = False
    assert old.running.is_leader
    assert not is_confirmed(old.running)
    assert try_renew(old.running, 7) is None
    call = time_to_live(old, 7)
    for _ in range(5):
        old.turn()
    assert call not in old.replies
    cluster.wake(old)
    assert cluster.answer(old, renewal(old, 7)) in (b"60", UNCONFIRMED)
    cluster.wait(lambda: old.running.leader == new.running.id)
    assert cluster.answer(old, renewal(old, 7)) == b"60"


def test_leases_do_not_run_while_the_leader_is_suspended() -> None:
    """They end late, by the time in which their holders got no answer; never early."""
    cluster = Cluster(1)
    leader = cluster.leader()
    grant(cluster, leader, 7, 60)
    assert cluster.answer(leader, renewal(leader, 7)) == b"60"
    cluster.pass_time(50.0)
    leader.is_paused = True
    cluster.pass_time(600.0)
    leader.asleep = 600.0
    cluster.wake(leader)
    cluster.pass_time(5.0)
    assert 7 in leader.running.state.lessor
    assert cluster.answer(leader, time_to_live(leader, 7)) in (b"4", b"5")
    assert cluster.answer(leader, renewal(leader, 7)) == b"60"
    cluster.pass_time(62.0)
    assert 7 not in leader.running.state.lessor


def test_a_follower_that_was_suspended_disturbs_nobody() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.leader(), cluster.follower()
    term = leader.running.term
    follower.is_paused = True
    cluster.pass_time(30.0)
    follower.asleep = 30.0
    cluster.wake(follower)
    cluster.pass_time(5.0)
    assert leader.running.is_leader and leader.running.term == term
    cluster.success(follower, follower.put(b"key"))


# Handing over.


def others_of(leader: Machine) -> set[int]:
    return set(leader.running.conf_state.voters) - {leader.running.id}


def test_the_most_up_to_date_voter_takes_over() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    behind, heir = [machine for machine in cluster if machine is not leader]
    cluster.cut = {(leader.name, behind.name)}
    for number in range(10):
        cluster.success(leader, leader.put(b"%d" % number))
    transfer_leadership(leader.running)
    assert leader.running.procedures.is_running(Exclusive.TRANSFER)
    cluster.wait(lambda: not leader.running.procedures.is_running(Exclusive.TRANSFER), 1.0)
    assert heir.running.is_leader
    assert leader.running.leader == heir.running.id


def test_an_heir_that_does_not_answer_is_passed_over() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    others = [machine for machine in cluster if machine is not leader]
    progress = leader.running.replica.node.raft.tracker.progress
    best = max(leader.running.conf_state.voters, key=lambda each: progress[each].match)
    dead = next((each for each in others if each.running.id == best), others[0])
    dead.is_paused = True
    for machine in others:
        leader.running.note_connected(machine.running.id, cluster.now)
    transfer_leadership(leader.running)
    cluster.wait(lambda: not leader.running.procedures.is_running(Exclusive.TRANSFER), 5.0)
    assert not leader.running.is_leader
    cluster.wake(dead)
    cluster.success(dead, dead.put(b"key"))


@pytest.mark.parametrize("size", [2, 3])
def test_a_leader_that_has_just_checked_its_quorum_hands_over(size: int) -> None:
    """The check forgets which voters were active, and connections may have ended just before."""
    cluster = Cluster(size)
    leader = cluster.leader()
    term = leader.running.term
    raft = leader.running.replica.node.raft
    raft.step(Message(MessageType.CHECK_QUORUM, sender=raft.id))
    assert leader.running.is_leader and not leader.running.replica.connections
    assert not any(raft.tracker.progress[each].recent_active for each in others_of(leader))
    began = cluster.now
    transfer_leadership(leader.running)
    cluster.wait(lambda: not leader.running.procedures.is_running(Exclusive.TRANSFER), 1.0)
    assert leader.running.leader in others_of(leader)
    assert leader.running.term == term + 1
    assert cluster.now - began < leader.running.config.election_seconds


@pytest.mark.parametrize("size", [1, 3])
def test_handing_over_ends_where_nobody_can_take_over(size: int) -> None:
    cluster = Cluster(size)
    leader = cluster.leader()
    for machine in cluster:
        machine.is_paused = machine is not leader
    cluster.pass_time(1.0 if size > 1 else 0.0)
    transfer_leadership(leader.running)
    cluster.wait(lambda: not leader.running.procedures.is_running(Exclusive.TRANSFER), 8.0)
    # A follower has nothing to hand over.
    if size > 1:
        for machine in cluster:
            cluster.wake(machine)
        follower = cluster.follower()
        transfer_leadership(follower.running)
        cluster.settle()
        assert not follower.running.procedures.is_running(Exclusive.TRANSFER)


# Changes of the membership.


def change(machine: Machine, made: ConfChange) -> int:
    def steps() -> Steps:
        refusal = yield ProposeChange(made)
        return b"done" if refusal is None else refusal

    return machine.start_steps(steps())


def test_a_change_whose_client_is_gone_is_not_made() -> None:
    cluster = Cluster(3)
    machine = cluster.follower()
    victim = next(each.running.id for each in cluster if each is not machine)
    cluster.isolate(machine)
    cluster.wait(lambda: machine.running.leader == 0)
    call = change(machine, ConfChange(ChangeType.REMOVE_NODE, victim))
    cluster.pass_time(0.5)
    machine.running.cancel(call)
    cluster.pass_time(0.2)
    assert not machine.running.replica.changes
    cluster.heal()
    cluster.wait(lambda: machine.running.leader)
    cluster.pass_time(2.0)
    assert all(len(each.running.state.cluster.members) == 3 for each in cluster)


def test_the_membership_counts_its_changes() -> None:
    cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5)
    leader, late = cluster.leader(), cluster.follower()
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    before = {each.name: each.running.state.cluster.generation for each in cluster}
    other = next(each for each in cluster if each not in (leader, late))
    cluster.isolate(late)
    removal = ConfChange(ChangeType.REMOVE_NODE, 5)
    assert cluster.answer(leader, change(leader, removal)) == errors.MEMBER_NOT_FOUND
    assert leader.running.state.cluster.generation == before[leader.name]
    for number in range(60):
        cluster.success(leader, leader.put(b"%d" % number))
    cluster.pass_time(1.0)
    cluster.heal()
    cluster.wait(lambda: late.running.state.applied == leader.running.state.applied)
    assert late.running.replica.snapshots.index > 0
    # A snapshot brings the members as a whole.
    assert late.running.state.cluster.generation > before[late.name]
    removal = ConfChange(ChangeType.REMOVE_NODE, other.running.id)
    assert cluster.answer(leader, change(leader, removal)) == b"done"
    assert leader.running.state.cluster.generation > before[leader.name]


def removed_by_the_log(cluster: Cluster, machine: Machine) -> None:
    leader = cluster.leader()
    made = ConfChange(ChangeType.REMOVE_NODE, machine.running.id)
    assert cluster.answer(leader, change(leader, made)) == b"done"
    cluster.wait(lambda: machine.running.was_removed)


def told_by_a_peer(_cluster: Cluster, machine: Machine) -> None:
    machine.running.note_removed()


@pytest.mark.parametrize("remove", [removed_by_the_log, told_by_a_peer])
def test_a_member_learns_that_it_was_removed(remove: Callable[[Cluster, Machine], None]) -> None:
    cluster = Cluster(3)
    machine = cluster.follower()
    assert not machine.running.was_removed
    remove(cluster, machine)
    assert machine.running.was_removed


def test_a_removed_member_has_no_voice() -> None:
    cluster = Cluster(3)
    leader, gone = cluster.leader(), cluster.follower()
    identity = gone.running.id
    removed_by_the_log(cluster, gone)
    member = leader.running
    assert member.is_removed(identity) and not member.is_removed(member.id)
    term = member.term
    vote = Message(MessageType.VOTE, to=member.id, sender=identity, term=term + 5)
    vote.context = b"CampaignTransfer"
    member.receive(vote)
    stranger = Message(MessageType.HEARTBEAT, to=identity, sender=5, term=term + 5)
    member.receive(stranger)
    assert member.term == term
    assert member.is_leader


def test_a_leader_that_is_removed_makes_way() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    made = ConfChange(ChangeType.REMOVE_NODE, leader.running.id)
    assert cluster.answer(leader, change(leader, made)) == b"done"
    assert leader.running.was_removed
    cluster.wait(lambda: leader.member is None)
    del cluster.machines[leader.name]
    new = cluster.leader()
    cluster.success(new, new.put(b"key"))
    assert {len(each.running.conf_state.voters) for each in cluster} == {2}
