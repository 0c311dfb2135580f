"""Services of several members: who serves what, and what is asked of the leader."""

from hashlib import sha256
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3lockpb import LockRequest
from kvorum.network.edge.interface import Metadata
from kvorum.state.membership.urls import URL_CHARACTERS_MAX, URLS_MAX
from tests.member.harness import Machine
from tests.server.fronts import Fronts

REQUIRES_LEADER: Metadata = {"hasleader": b"true"}


@pytest.fixture
def cluster() -> Fronts:
    cluster = Fronts(3)
    cluster.leader()
    cluster.pass_time(10.0)
    return cluster


def test_every_member_serves(cluster: Fronts) -> None:
    for number, machine in enumerate(cluster):
        put = pb.PutRequest(key=b"k%d" % number, value=b"v")
        assert cluster.call(machine, "KV/Put", put).header.member_id == machine.running.id
    everything = pb.RangeRequest(key=b"k", range_end=b"l")
    counts = {cluster.call(machine, "KV/Range", everything).count for machine in cluster}
    assert counts == {3}
    status = {
        machine.name: cluster.call(machine, "Maintenance/Status", pb.StatusRequest())
        for machine in cluster
    }
    assert {each.leader for each in status.values()} == {cluster.leader().running.id}
    lists = [
        cluster.call(machine, "Cluster/MemberList", pb.MemberListRequest()) for machine in cluster
    ]
    assert lists[0].members == lists[1].members == lists[2].members
    assert [member.name for member in lists[0].members if not member.name] == []


def test_watches_and_locks_at_a_follower(cluster: Fronts) -> None:
    follower, leader = cluster.follower(), cluster.leader()
    watch = cluster.open(follower, "Watch/Watch")
    create = pb.WatchCreateRequest(key=b"l/", range_end=b"l0")
    cluster.message(follower, watch, pb.WatchRequest(create_request=create))
    for lease in (7, 8):
        grant = pb.LeaseGrantRequest(ID=lease, TTL=100)
        assert not isinstance(cluster.call(leader, "Lease/LeaseGrant", grant), Status)
    first = cluster.call(leader, "Lock/Lock", LockRequest(name=b"l", lease=7))
    second = cluster.begin(follower, "Lock/Lock", LockRequest(name=b"l", lease=8))
    cluster.pass_time(1.0)
    edge = follower.edge
    assert second not in edge.replies
    cluster.call(follower, "KV/DeleteRange", pb.DeleteRangeRequest(key=first.key))
    cluster.wait(lambda: second in edge.replies)
    responses = cluster.received(follower, "Watch/Watch", watch)
    keys = [(event.type, event.kv.key) for each in responses for event in each.events]
    assert keys == [(0, b"l/7"), (0, b"l/8"), (1, b"l/7")]


def test_leases_at_a_follower(cluster: Fronts) -> None:
    follower = cluster.follower()
    cluster.call(follower, "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=50))
    cluster.call(follower, "KV/Put", pb.PutRequest(key=b"a", lease=7))
    cluster.pass_time(20.0)
    request = pb.LeaseTimeToLiveRequest(ID=7, keys=True)
    left = cluster.call(follower, "Lease/LeaseTimeToLive", request)
    assert left.grantedTTL == 50
    assert 25 <= left.TTL <= 30
    assert list(left.keys) == [b"a"]
    assert left.header.member_id == follower.running.id
    stream = cluster.open(follower, "Lease/LeaseKeepAlive")
    for lease in (7, 9):
        cluster.message(follower, stream, pb.LeaseKeepAliveRequest(ID=lease))
    cluster.pass_time(1.0)
    answers = cluster.received(follower, "Lease/LeaseKeepAlive", stream)
    assert [(each.ID, each.TTL) for each in answers] == [(7, 50), (9, 0)]
    left = cluster.call(follower, "Lease/LeaseTimeToLive", request)
    assert left.TTL >= 45
    unknown = pb.LeaseTimeToLiveRequest(ID=9)
    assert cluster.call(follower, "Lease/LeaseTimeToLive", unknown).TTL == -1


def test_leadership_is_moved(cluster: Fronts) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    request = pb.MoveLeaderRequest(targetID=follower.running.id)
    assert cluster.call(follower, "Maintenance/MoveLeader", request) == errors.NOT_LEADER
    bad = pb.MoveLeaderRequest(targetID=5)
    assert cluster.call(leader, "Maintenance/MoveLeader", bad) == errors.BAD_LEADER_TRANSFEREE
    assert cluster.call(leader, "Maintenance/MoveLeader", request) == pb.MoveLeaderResponse()
    assert cluster.leader() is follower


def test_a_member_without_a_leader(cluster: Fronts) -> None:
    machine = cluster.follower()
    stream = cluster.open(machine, "Watch/Watch", REQUIRES_LEADER)
    patient = cluster.open(machine, "Watch/Watch")
    assert cluster.finished(machine, stream) is None
    cluster.isolate(machine)
    cluster.wait(lambda: not machine.running.leader)
    read = pb.RangeRequest(key=b"a", serializable=True)
    assert not isinstance(cluster.call(machine, "KV/Range", read), Status)
    assert cluster.call(machine, "KV/Range", read, REQUIRES_LEADER) == errors.NO_LEADER
    assert cluster.call(machine, "KV/Range", read, {"hasleader": b"1"}).header.revision == 1
    refused = cluster.open(machine, "Watch/Watch", REQUIRES_LEADER)
    assert cluster.finished(machine, refused) == errors.NO_LEADER
    status = cluster.call(machine, "Maintenance/Status", pb.StatusRequest())
    assert list(status.errors) == [errors.NO_LEADER.text]
    for name, request, refusal in (
        ("KV/Range", pb.RangeRequest(key=b"a"), errors.TIMEOUT),
        ("KV/Put", pb.PutRequest(key=b"a"), errors.CONTEXT_DEADLINE_EXCEEDED),
        ("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=7), errors.NO_LEADER),
    ):
        assert cluster.call(machine, name, request) == refusal, name
    assert cluster.finished(machine, stream) == errors.NO_LEADER
    assert cluster.finished(machine, patient) is None


def test_metadata_that_is_no_text(cluster: Fronts) -> None:
    metadata = {"client-api-version": b"\xff"}
    read = pb.RangeRequest(key=b"a")
    refused = cluster.call(cluster[0], "KV/Range", read, metadata)
    assert refused == errors.INVALID_CLIENT_API_VERSION
    known = {"client-api-version": b"3.5", "token": b"whatever"}
    assert not isinstance(cluster.call(cluster[0], "KV/Range", read, known), Status)


def test_a_learner_serves_little(cluster: Fronts) -> None:
    leader = cluster.leader()
    for machine in cluster:
        for other in cluster:
            machine.running.note_connected(other.running.id, 0.0)
    request = pb.MemberAddRequest(peerURLs=["http://m9:2380"], isLearner=True)
    added = cluster.call(leader, "Cluster/MemberAdd", request)
    assert added.member.isLearner
    second = pb.MemberAddRequest(peerURLs=["http://m8:2380"], isLearner=True)
    assert cluster.call(leader, "Cluster/MemberAdd", second) == errors.TOO_MANY_LEARNERS
    promote = pb.MemberPromoteRequest(ID=added.member.ID)
    assert cluster.call(leader, "Cluster/MemberPromote", promote) == errors.LEARNER_NOT_READY
    learner = joined(cluster, added)
    for name, request_ in (
        ("KV/Put", pb.PutRequest(key=b"a")),
        ("KV/Range", pb.RangeRequest(key=b"a")),
        ("Cluster/MemberList", pb.MemberListRequest()),
    ):
        assert cluster.call(learner, name, request_) == errors.NOT_SUPPORTED_FOR_LEARNER, name
    stale = pb.RangeRequest(key=b"a", serializable=True)
    assert not isinstance(cluster.call(learner, "KV/Range", stale), Status)
    assert cluster.call(learner, "Maintenance/Status", pb.StatusRequest()).isLearner
    stream = cluster.open(learner, "Watch/Watch")
    assert cluster.finished(learner, stream) == errors.NOT_SUPPORTED_FOR_LEARNER
    snapshot = cluster.open(learner, "Maintenance/Snapshot")
    cluster.message(learner, snapshot, pb.SnapshotRequest())
    cluster.wait(lambda: cluster.finished(learner, snapshot) is not None)
    *blobs, digest = cluster.received(learner, "Maintenance/Snapshot", snapshot)
    assert digest.blob == sha256(b"".join(each.blob for each in blobs)).digest()
    assert learner.running.seams.files.list(learner.running.replica.snap_directory) == []
    promoted = cluster.call(leader, "Cluster/MemberPromote", promote)
    assert not any(member.isLearner for member in promoted.members)
    cluster.wait(lambda: not learner.running.is_learner)
    assert not isinstance(cluster.call(learner, "KV/Put", pb.PutRequest(key=b"a")), Status)
    assert cluster.call(leader, "Cluster/MemberPromote", promote) == errors.MEMBER_NOT_LEARNER


def joined(cluster: Fronts, added: Any) -> Machine:
    ids = (added.member.ID, added.header.cluster_id)
    machine = Machine(cluster, "m9", cluster.config("m9", joins=ids))
    cluster.machines["m9"] = machine
    machine.start()
    leader = cluster.leader()
    cluster.wait(lambda: machine.running.state.applied == leader.running.state.applied)
    assert machine.running.is_learner
    return machine


def test_members_come_and_go(cluster: Fronts) -> None:
    leader = cluster.leader()
    bad = pb.MemberAddRequest(peerURLs=["nonsense"])
    assert cluster.call(leader, "Cluster/MemberAdd", bad) == errors.MEMBER_BAD_URLS
    request = pb.MemberAddRequest(peerURLs=["http://m9:2380"])
    # No member knows of a connection yet.
    assert cluster.call(leader, "Cluster/MemberAdd", request) == errors.UNHEALTHY
    for machine in cluster:
        leader.running.note_connected(machine.running.id, cluster.now)
    assert cluster.call(leader, "Cluster/MemberAdd", request) == errors.UNHEALTHY
    cluster.pass_time(5.0)
    added = cluster.call(leader, "Cluster/MemberAdd", request)
    assert (list(added.member.peerURLs), added.header.revision) == (["http://m9:2380"], 0)
    assert len(added.members) == 4
    again = cluster.call(leader, "Cluster/MemberAdd", request)
    assert again in (errors.PEER_URL_EXIST, errors.MEMBER_EXIST)
    update = pb.MemberUpdateRequest(ID=added.member.ID, peerURLs=["http://m8:2380"])
    updated = cluster.call(leader, "Cluster/MemberUpdate", update)
    assert ["http://m8:2380"] in [list(member.peerURLs) for member in updated.members]
    unusable = pb.MemberUpdateRequest(ID=added.member.ID, peerURLs=["x"])
    assert cluster.call(leader, "Cluster/MemberUpdate", unusable) == errors.MEMBER_BAD_URLS
    remove = pb.MemberRemoveRequest(ID=added.member.ID)
    assert len(cluster.call(leader, "Cluster/MemberRemove", remove).members) == 3
    assert cluster.call(leader, "Cluster/MemberRemove", remove) == errors.MEMBER_NOT_FOUND


def test_how_many_peer_urls_a_request_may_give(cluster: Fronts) -> None:
    leader = cluster.leader()
    connect(cluster)
    longest = "http://m9:2380?" + "x" * (URL_CHARACTERS_MAX - 15)
    limits = [[f"http://m9:{port}" for port in range(URLS_MAX)], [longest]]
    excesses = [[*limits[0], "http://m9:0"], [longest + "x"]]
    number = 0
    for limit, excess in zip(limits, excesses, strict=True):
        refused = cluster.call(
            leader, "Cluster/MemberAdd", pb.MemberAddRequest(peerURLs=excess, isLearner=True)
        )
        assert refused.code is Code.INVALID_ARGUMENT
        assert refused.text.startswith(errors.MEMBER_BAD_URLS.text)
        expected = [str(URLS_MAX), str(URLS_MAX + 1)] if len(excess) > 1 else ["4096", "4097"]
        assert all(each in refused.text for each in expected)
        if not number:
            request = pb.MemberAddRequest(peerURLs=limit, isLearner=True)
            number = cluster.call(leader, "Cluster/MemberAdd", request).member.ID
        update = pb.MemberUpdateRequest(ID=number, peerURLs=excess)
        assert cluster.call(leader, "Cluster/MemberUpdate", update) == refused
        update = pb.MemberUpdateRequest(ID=number, peerURLs=limit)
        updated = cluster.call(leader, "Cluster/MemberUpdate", update)
        assert [sorted(each.peerURLs) for each in updated.members if number == each.ID] == [
            sorted(limit)
        ]


def connect(cluster: Fronts) -> None:
    for machine in cluster:
        for other in cluster:
            machine.running.note_connected(other.running.id, cluster.now - 10.0)


def test_a_learner_is_promoted_through_a_follower(cluster: Fronts) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    connect(cluster)
    request = pb.MemberAddRequest(peerURLs=["http://m9:2380"], isLearner=True)
    added = cluster.call(follower, "Cluster/MemberAdd", request)
    promote = pb.MemberPromoteRequest(ID=added.member.ID)
    assert cluster.call(follower, "Cluster/MemberPromote", promote) == errors.LEARNER_NOT_READY
    learner = joined(cluster, added)
    unknown = pb.MemberPromoteRequest(ID=5)
    assert cluster.call(follower, "Cluster/MemberPromote", unknown) == errors.MEMBER_NOT_FOUND
    # The leader is asked, and its answer is lost.
    cluster.cut = {(leader.name, follower.name)}
    call = cluster.begin(follower, "Cluster/MemberPromote", promote)
    replies = follower.edge.replies
    cluster.wait(lambda: call in replies)
    assert replies[call] in (errors.TIMEOUT, errors.NO_LEADER)
    cluster.heal()
    cluster.wait(lambda: cluster.leader().running.is_leader and follower.running.leader)
    promoted = cluster.call(follower, "Cluster/MemberPromote", promote)
    assert not any(member.isLearner for member in promoted.members)
    again = cluster.call(follower, "Cluster/MemberPromote", promote)
    assert again == errors.MEMBER_NOT_LEARNER
    cluster.wait(lambda: not learner.running.is_learner)


def test_a_change_that_endangers_the_quorum_is_refused(cluster: Fronts) -> None:
    leader = cluster.leader()
    others = [machine for machine in cluster if machine is not leader]
    connect(cluster)
    down, up = others
    leader.running.note_disconnected(down.running.id)
    remove = pb.MemberRemoveRequest(ID=up.running.id)
    assert cluster.call(leader, "Cluster/MemberRemove", remove) == errors.UNHEALTHY
    add = pb.MemberAddRequest(peerURLs=["http://m9:2380"])
    assert cluster.call(leader, "Cluster/MemberAdd", add) == errors.UNHEALTHY
    # The member that is down may be removed: it is not part of the working quorum.
    gone = pb.MemberRemoveRequest(ID=down.running.id)
    assert len(cluster.call(leader, "Cluster/MemberRemove", gone).members) == 2


def test_a_cluster_whose_members_never_started_does_not_grow() -> None:
    cluster = Fronts(1)
    alone = cluster.leader()
    cluster.wait(lambda: alone.running.is_published)
    first = pb.MemberAddRequest(peerURLs=["http://m8:2380"])
    added = cluster.call(alone, "Cluster/MemberAdd", first)
    assert not isinstance(added, Status)
    second = pb.MemberAddRequest(peerURLs=["http://m9:2380"])
    call = cluster.begin(alone, "Cluster/MemberAdd", second)
    replies = alone.edge.replies
    assert replies[call] == errors.MEMBER_NOT_ENOUGH_STARTED


def test_leases_where_no_leader_is_known(cluster: Fronts) -> None:
    machine = cluster.follower()
    cluster.call(machine, "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=60))
    stream = cluster.open(machine, "Lease/LeaseKeepAlive")
    cluster.isolate(machine)
    cluster.wait(lambda: not machine.running.leader)
    cluster.message(machine, stream, pb.LeaseKeepAliveRequest(ID=7))
    cluster.wait(lambda: cluster.finished(machine, stream) is not None)
    assert cluster.finished(machine, stream) == errors.NO_LEADER
    leases = cluster.call(machine, "Lease/LeaseLeases", pb.LeaseLeasesRequest())
    assert [each.ID for each in leases.leases] == [7]


def test_keep_alives_go_on_with_the_next_leader(cluster: Fronts) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    cluster.call(follower, "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=60))
    stream = cluster.open(follower, "Lease/LeaseKeepAlive")
    cluster.message(follower, stream, pb.LeaseKeepAliveRequest(ID=7))
    cluster.isolate(leader)
    for _ in range(3):
        cluster.message(follower, stream, pb.LeaseKeepAliveRequest(ID=7))
        cluster.pass_time(2.0)
    cluster.pass_time(5.0)
    assert cluster.finished(follower, stream) is None
    answers = cluster.received(follower, "Lease/LeaseKeepAlive", stream)
    assert [each.TTL for each in answers] == [60] * 4
