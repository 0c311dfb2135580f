"""Three members: forwarding, elections, timeouts, snapshots, leases, changes of the membership."""

from random import Random

import pytest

from kvorum.api import errors
from kvorum.api.pb.etcdserverpb import LeaseGrantRequest, PutResponse, RangeResponse
from kvorum.member.jobs import ExecutorKind
from kvorum.member.leases import renew
from kvorum.member.waits import Steps
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.states import Role
from kvorum.raft.wire import decode_message
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.state.membership.documents import encode_promotion
from kvorum.storage.files.memory import DiskCall
from tests.member.changes import added, change, removed
from tests.member.harness import Cluster, Machine, PowerCutError, equal


def test_a_follower_forwards_and_reads_what_it_wrote() -> None:
    cluster = Cluster(3)
    follower = cluster.follower()
    put = PutResponse.FromString(cluster.success(follower, follower.put(b"key", b"value")))
    assert put.header.member_id == follower.running.id
    found = RangeResponse.FromString(cluster.success(follower, follower.range(b"key")))
    assert [kv.value for kv in found.kvs] == [b"value"]
    cluster.pass_time(1.0)
    assert {machine.running.state.store.revision for machine in cluster} == {put.header.revision}


def test_members_tell_their_names_and_agree_on_a_version() -> None:
    cluster = Cluster(3)
    cluster.wait(lambda: all(machine.running.is_published for machine in cluster))
    cluster.pass_time(5.0)
    for machine in cluster:
        names = {each.name: each.client_urls for each in machine.running.state.cluster.members}
        assert names == {f"m{each}": (f"http://m{each}:2379",) for each in range(3)}
        assert str(machine.running.state.cluster.version) == "3.0.0"
        machine.running.peer_versions = dict.fromkeys(
            [each.id for each in machine.running.state.cluster.members], "3.7.1"
        )
    cluster.pass_time(10.0)
    assert {str(machine.running.state.cluster.version) for machine in cluster} == {"3.7.0"}
    assert {str(each.running.state.cluster.storage_version) for each in cluster} == {"3.7.0"}


def test_the_storage_has_the_version_of_the_cluster_at_once() -> None:
    cluster = Cluster(3)
    cluster.wait(lambda: all(machine.running.is_published for machine in cluster))
    for machine in cluster:
        machine.running.peer_versions = dict.fromkeys(
            [each.id for each in machine.running.state.cluster.members], "3.7.1"
        )

    def are_in_step() -> bool:
        clusters = [machine.running.state.cluster for machine in cluster]
        agreed = [each for each in clusters if str(each.version) == "3.7.0"]
        assert all(each.storage_version == each.version for each in agreed)
        return len(agreed) == len(clusters)

    cluster.wait(are_in_step)


def test_reads_that_wait_share_one_round() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.success(leader, leader.put(b"key", b"value"))
    calls = [leader.range(b"key") for _ in range(50)]
    leader.turn()
    assert len(leader.running.replica.node.raft.read_only.unconfirmed) == 1
    for call in calls:
        assert RangeResponse.FromString(cluster.success(leader, call)).count == 1


def test_a_deposed_leader_serves_no_stale_read() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    cluster.success(old, old.put(b"key", b"old"))
    cluster.isolate(old)
    stale = old.range(b"key")
    cluster.settle()
    new = cluster.wait(
        lambda: next((each for each in cluster if each is not old and each.running.is_leader), None)
    )
    cluster.success(new, new.put(b"key", b"new"))
    assert stale not in old.replies
    cluster.heal()
    # The old leader asks the new one; the client need not ask again.
    for read in (stale, old.range(b"key")):
        found = RangeResponse.FromString(cluster.success(old, read))
        assert [kv.value for kv in found.kvs] == [b"new"]


def test_a_read_asks_every_new_leader_at_once() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    reader, heir = (machine for machine in cluster if machine is not old)
    cluster.cut = {(reader.name, old.name)}
    read = reader.range(b"key")
    cluster.settle()
    assert read not in reader.replies
    old.running.replica.node.transfer_leader(heir.running.id)
    # No time passes: the reader does not wait until its lost question is repeated.
    cluster.settle()
    assert heir.running.is_leader
    assert isinstance(reader.replies[read], bytes)


def test_a_serializable_read_needs_nobody() -> None:
    cluster = Cluster(3)
    machine = cluster.follower()
    cluster.success(machine, machine.put(b"key", b"value"))
    cluster.isolate(machine)
    cluster.pass_time(3.0)
    call = machine.range(b"key", serializable=True)
    machine.turn()
    answer = machine.replies[call]
    assert isinstance(answer, bytes) and RangeResponse.FromString(answer).count == 1


def test_without_a_leader_a_proposal_never_began() -> None:
    cluster = Cluster(3)
    machine = cluster.follower()
    cluster.isolate(machine)
    cluster.wait(lambda: machine.running.leader == 0)
    began = cluster.now
    proposal, read = machine.put(b"key"), machine.range(b"key")
    assert cluster.answer(machine, proposal) == errors.CONTEXT_DEADLINE_EXCEEDED
    assert 7.0 <= cluster.now - began < 7.3
    assert cluster.answer(machine, read) == errors.TIMEOUT


def test_a_read_does_not_wait_for_ever_for_what_it_must_see() -> None:
    cluster = Cluster(3)
    leader, machine = cluster.leader(), cluster.follower()
    machine.held.add(ExecutorKind.LOG)
    cluster.success(leader, leader.put(b"key"))
    began = cluster.now
    read = machine.range(b"key")
    assert cluster.answer(machine, read) == errors.TIMEOUT_WAIT_APPLIED_INDEX
    assert 7.0 <= cluster.now - began < 7.3
    assert not machine.running.replica.reads.confirmed


def test_a_proposal_that_waits_for_a_leader_is_taken_when_there_is_one() -> None:
    cluster = Cluster(3)
    machine = cluster.follower()
    cluster.isolate(machine)
    cluster.wait(lambda: machine.running.leader == 0)
    call = machine.put(b"key", b"value")
    cluster.pass_time(2.0)
    cluster.heal()
    cluster.success(machine, call, 5.0)


def test_a_proposal_that_was_taken_and_lost_has_an_unknown_outcome() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.pass_time(10.0)
    for machine in cluster:
        for other in cluster:
            machine.running.note_connected(other.running.id, 0.0)
    cluster.isolate(leader)
    call = leader.put(b"key")
    answer = cluster.answer(leader, call)
    # The leader steps down and finds no other; as far as it knows, it was always connected.
    assert answer == errors.TIMEOUT
    follower = next(machine for machine in cluster if machine is not leader)
    follower.running.note_disconnected(leader.running.id)
    call = leader.put(b"key")
    cluster.heal()
    assert cluster.answer(leader, call) != errors.TIMEOUT


def test_a_lost_connection_is_named() -> None:
    cluster = Cluster(3)
    machine = cluster.follower()
    cluster.pass_time(10.0)
    # Nobody ever told the member that it is connected.
    cluster.cut = {(machine.name, other) for other in cluster.machines}
    call = machine.put(b"key")
    assert cluster.answer(machine, call) == errors.TIMEOUT_DUE_TO_CONNECTION_LOST


def test_a_lagging_follower_gets_a_snapshot_and_goes_on() -> None:
    cluster = Cluster(3, snapshot_entries=20, catch_up_entries=10, segment_bytes=4096)
    leader = cluster.leader()
    late = cluster.follower()
    cluster.success(late, late.put(b"before", b"1"))
    lease = LeaseGrantRequest(ID=7, TTL=1000).SerializeToString()
    cluster.success(leader, leader.propose(requests.LEASE_GRANT, lease))
    cluster.isolate(late)
    for number in range(400):
        leader.put(b"%d" % (number % 50), b"%d" % number, lease=7)
        if number % 10 == 0:
            cluster.pass_time(0.1)
    cluster.pass_time(1.0)
    assert leader.running.replica.storage.first_index() > late.running.state.applied + 1
    watching = late.running.hub.open_stream(1000)
    watching.create(b"\0", b"\0", late.running.state.store.revision + 1)
    reading = late.range(b"\0", b"\0", serializable=True)
    cluster.heal()
    cluster.wait(lambda: equal(cluster))
    assert late.running.replica.snapshots.index > 0
    assert late.running.state.lessor.key_count(7) == 50
    assert reading in late.replies
    # Its watchers miss nothing, and it takes entries again.
    cluster.success(late, late.put(b"after", b"1"))
    cluster.pass_time(0.5)
    assert equal(cluster)
    events = b"".join(data for call, data in late.sends if call == 1000)
    assert events.count(b"after") == 1
    late.kill()
    late.start()
    cluster.wait(lambda: equal(cluster))
    assert not leader.running.replica.snapshots.transfers
    assert not [name for name in leader.files.list("/data/member/snap") if "image" in name]


def test_a_member_whose_publication_is_in_a_snapshot_publishes_anew() -> None:
    cluster = Cluster(3, snapshot_entries=20, catch_up_entries=10, segment_bytes=4096)
    cluster.wait(lambda: all(machine.running.is_published for machine in cluster))
    leader, late = cluster.leader(), cluster.follower()
    late.kill()
    for number in range(400):
        leader.put(b"%d" % (number % 50), b"%d" % number)
        if number % 10 == 0:
            cluster.pass_time(0.1)
    cluster.pass_time(1.0)
    leader.held = {ExecutorKind.HELPER}
    late.start()
    # Meanwhile it has proposed its attributes, and the leader has applied them.
    cluster.pass_time(1.0)
    leader.held.clear()
    cluster.pass_time(1.0)
    assert late.running.replica.snapshots.index > 0
    assert late.running.is_published, "clients wait until the time for requests is over"


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_while_a_snapshot_is_received_harms_nothing(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5, segment_bytes=4096)
    leader, late = cluster.leader(), cluster.follower()
    cluster.isolate(late)
    for number in range(100):
        leader.put(b"%d" % (number % 20), b"%d" % number)
        cluster.pass_time(0.02)
    cluster.pass_time(1.0)
    left = 0

    def before(_call: DiskCall) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCutError

    cluster.heal()
    for _ in range(6):
        left = random.randrange(120)
        late.files.before = before
        try:
            cluster.wait(lambda: equal(cluster))
            break
        except PowerCutError:
            late.lose_power(lambda: random.random() < 0.5)
            cluster.messages.clear()
            late.start()
    late.files.before = None
    cluster.wait(lambda: equal(cluster))
    assert late.running.replica.snapshots.index > 0


def write_much(cluster: Cluster, leader: Machine) -> None:
    """Write so much that members that miss it need a snapshot."""
    for number in range(300):
        leader.put(b"%d" % number)
        if number % 10 == 0:
            cluster.pass_time(0.1)
    cluster.pass_time(1.0)


def test_an_image_that_cannot_be_made_is_made_later() -> None:
    cluster = Cluster(3, snapshot_entries=20, catch_up_entries=10)
    leader, late = cluster.leader(), cluster.follower()
    cluster.isolate(late)
    write_much(cluster, leader)
    failures = 0

    def before(call: DiskCall) -> None:
        nonlocal failures
        if "image" in call.path and failures < 3:
            failures += 1
            raise OSError(28, "No space left on device", call.path)

    leader.files.before = before
    cluster.heal()
    cluster.wait(lambda: equal(cluster))
    assert failures == 3


def test_a_peer_that_asks_while_an_image_is_made_gets_the_next() -> None:
    cluster = Cluster(5, snapshot_entries=20, catch_up_entries=10)
    leader = cluster.leader()
    late = [machine for machine in cluster if machine is not leader][:2]
    for machine in late:
        cluster.isolate(machine)
    write_much(cluster, leader)
    leader.held = {ExecutorKind.HELPER}
    for machine in late:
        cluster.cut = {link for link in cluster.cut if machine.name not in link}
        cluster.pass_time(1.0)
    assert leader.running.replica.snapshots.building and leader.running.replica.snapshots.sending
    # Nothing is written any more, so no flush follows that could start the second image.
    leader.held.clear()
    cluster.wait(lambda: equal(cluster))


# Leases.


def test_a_new_leader_gives_every_lease_its_time_again() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    body = LeaseGrantRequest(ID=7, TTL=5).SerializeToString()
    cluster.success(leader, leader.propose(requests.LEASE_GRANT, body))
    cluster.success(leader, leader.put(b"leased", lease=7))
    cluster.pass_time(3.0)
    cluster.isolate(leader)
    new = cluster.wait(
        lambda: next(
            (
                each
                for each in cluster
                if each is not leader and each.running.state.lessor.is_primary
            ),
            None,
        )
    )
    began = cluster.now
    cluster.pass_time(4.0)
    assert 7 in new.running.state.lessor
    # The old leader, alone, may neither revoke nor count.
    assert 7 in leader.running.state.lessor and not leader.running.state.lessor.is_primary
    cluster.heal()
    cluster.wait(lambda: all(7 not in each.running.state.lessor for each in cluster), 10.0)
    assert 5.0 <= cluster.now - began < 8.0
    assert equal(cluster)


def renewal(machine: Machine, lease: int) -> int:
    """Begin to renew a lease; the answer is its TTL in digits."""

    def steps() -> Steps:
        result = yield from renew(machine.running, MEMBER, lease)
        return b"%d" % result if isinstance(result, int) else result

    return machine.start_steps(steps())


def test_a_lease_is_renewed_on_the_leader_only_and_never_after_it_ran_out() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.leader(), cluster.follower()
    body = LeaseGrantRequest(ID=7, TTL=5).SerializeToString()
    cluster.success(leader, leader.propose(requests.LEASE_GRANT, body))
    for _ in range(4):
        cluster.pass_time(3.0)
        answer = cluster.answer(leader, renewal(leader, 7))
        assert answer == b"5"
    unknown = renewal(leader, 8)
    assert cluster.answer(leader, unknown) == b"0"
    assert cluster.answer(follower, renewal(follower, 7)) == b"5"
    assert cluster.answer(follower, renewal(follower, 8)) == b"0"
    cluster.cut = {(follower.name, leader.name)}
    refused = renewal(follower, 7)
    assert cluster.answer(follower, refused) == errors.TIMEOUT
    late = renewal(leader, 7)
    assert cluster.answer(leader, late) == b"0"


# Membership.


def join(cluster: Cluster, name: str, identity: int) -> Machine:
    cluster_id = cluster[0].running.state.cluster.cluster_id
    config = cluster.config(name, joins=(identity, cluster_id))
    machine = Machine(cluster, name, config)
    cluster.machines[name] = machine
    machine.start()
    return machine


def test_a_member_joins_as_a_learner_is_promoted_and_removed() -> None:
    cluster = Cluster(3, snapshot_entries=20, catch_up_entries=10)
    leader = cluster.leader()
    for number in range(200):
        leader.put(b"%d" % number)
        cluster.pass_time(0.02)
    learner = change(leader, added(99, "http://m9:2380", is_learner=True))
    assert cluster.success(leader, learner) == b"done"
    machine = join(cluster, "m9", 99)
    cluster.wait(lambda: machine.running.is_published)
    cluster.wait(lambda: equal(cluster))
    assert machine.running.is_learner
    promotion = ConfChange(ChangeType.ADD_NODE, 99, encode_promotion(99))
    assert cluster.success(leader, change(leader, promotion)) == b"done"
    cluster.pass_time(1.0)
    assert not machine.running.is_learner
    assert all(99 in each.running.conf_state.voters for each in cluster)
    cluster.success(machine, machine.put(b"through the new one"))
    assert cluster.success(machine, change(machine, removed(machine))) == b"done"
    cluster.pass_time(1.0)
    assert machine.running.was_removed
    assert all(99 not in each.running.conf_state.voters for each in cluster)
    del cluster.machines["m9"]
    assert equal(cluster)


def test_the_last_member_does_not_forget_that_it_is_alone() -> None:
    cluster = Cluster(2)
    leader, last = cluster.leader(), cluster.follower()
    cluster.success(leader, leader.put(b"key"))
    assert cluster.success(leader, change(leader, removed(leader))) == b"done"
    cluster.wait(lambda: last.running.conf_state.voters == (last.running.id,))
    leader.kill()
    last.lose_power(lambda: False)
    last.start()
    cluster.success(last, last.put(b"key"))


def test_a_change_that_does_not_fit_is_refused_by_all_alike() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.leader(), cluster.follower()
    taken = added(99, "http://m0:2380")
    assert cluster.answer(leader, change(leader, taken)) == errors.PEER_URL_EXIST
    unknown = ConfChange(ChangeType.REMOVE_NODE, 98)
    assert cluster.answer(follower, change(follower, unknown)) == errors.MEMBER_NOT_FOUND
    cluster.pass_time(1.0)
    assert {len(each.running.conf_state.voters) for each in cluster} == {3}
    assert equal(cluster)
    for machine in cluster:
        machine.kill()
        machine.start()
    cluster.leader()
    cluster.wait(lambda: equal(cluster))
    assert {len(each.running.conf_state.voters) for each in cluster} == {3}


def test_leadership_is_handed_over_without_losing_a_proposal() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.leader(), cluster.follower()
    leader.running.replica.node.transfer_leader(follower.running.id)
    cluster.wait(lambda: follower.running.is_leader)
    cluster.success(leader, leader.put(b"key"))
    cluster.pass_time(1.0)
    assert equal(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_members_that_lose_their_power_again_and_again_stay_equal(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(3, snapshot_entries=15, catch_up_entries=5, segment_bytes=4096)
    acknowledged: list[bytes] = []
    waiting: dict[tuple[str, int], bytes] = {}
    for number in range(150):
        key = b"%d" % number
        running = list(cluster)
        machine = random.choice(running)
        waiting[machine.name, machine.put(key)] = key
        if random.random() < 0.1 and len(running) == 3:
            random.choice(running).lose_power(lambda: random.random() < 0.5)
        elif random.random() < 0.3:
            for each in cluster.machines.values():
                if each.member is None:
                    each.start()
        cluster.pass_time(random.choice([0.0, 0.1, 0.5]))
        for (name, call), put in list(waiting.items()):
            if isinstance(cluster.machines[name].replies.get(call), bytes):
                acknowledged.append(put)
                del waiting[name, call]
    for each in cluster.machines.values():
        if each.member is None:
            each.start()
    cluster.leader()
    cluster.wait(lambda: equal(cluster))
    assert len(acknowledged) > 50
    for machine in cluster:
        for key in acknowledged:
            assert machine.running.state.store.get(key) is not None


# What peers cost.


def appends(machine: Machine) -> list[Message]:
    """Return the appends that wait for a paused machine."""
    messages = [decode_message(data) for _, _, data, _ in machine.unread]
    return [message for message in messages if message.type == MessageType.APP]


def test_a_peer_that_does_not_answer_costs_a_bounded_amount() -> None:
    limits = {"message_bytes_max": 4096, "inflight_bytes_max": 16384}
    cluster = Cluster(3, segment_bytes=1 << 20, **limits)
    leader, slow = cluster.leader(), cluster.follower()
    slow.is_paused = True
    for number in range(100):
        cluster.success(leader, leader.put(b"%d" % number, b"x" * 1024))
    sent = sum(len(entry.data) for message in appends(slow) for entry in message.entries)
    assert 4096 <= sent <= 16384 + 4096
    cluster.wake(slow)
    cluster.wait(lambda: equal(cluster))


def test_proposals_wait_while_too_much_is_not_committed() -> None:
    cluster = Cluster(3, segment_bytes=1 << 20, uncommitted_bytes_max=10_000)
    leader = cluster.leader()
    cluster.isolate(leader)
    calls = []
    for number in range(50):
        calls.append(leader.put(b"%d" % number, b"x" * 1000))
        leader.turn()
    raft = leader.running.replica.node.raft
    assert raft.role == Role.LEADER
    assert raft.uncommitted_size <= 12_000
    cluster.heal()
    for call in calls:
        cluster.success(leader, call)


def test_one_acknowledgement_stands_for_those_before_it() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.leader(), cluster.follower()
    cluster.pass_time(1.0)
    follower.is_paused = True
    for number in range(20):
        cluster.success(leader, leader.put(b"%d" % number))
    sent = len(appends(follower))
    assert sent >= 20
    cluster.messages.clear()
    cluster.wake(follower)
    cluster.deliver()
    follower.turn()
    follower.turn()
    answers = [decode_message(data) for _, _, data, _ in cluster.messages]
    acknowledged = [each for each in answers if each.type == MessageType.APP_RESP]
    assert len(acknowledged) < sent / 4
    assert acknowledged[-1].index == leader.running.replica.node.raft.log.last_index()
    cluster.wait(lambda: equal(cluster))
