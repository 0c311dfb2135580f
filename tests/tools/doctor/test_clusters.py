"""Clusters of several members, healthy and not, of both makes."""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.buckets import KEY
from tests.cluster.members import MAKES, Cluster, Member, running_cluster
from tests.tools.ctl.duel import run_here
from tests.tools.doctor.damaging import Content, rewrite_database
from tests.tools.doctor.examining import (
    Found,
    client_of,
    of_directories,
    of_endpoints,
    until_found,
)
from tests.waiting import until

QUOTA_BYTES = 1 << 30
BEHIND = 20
# Neither the disk nor how long members have been connected is what these tests are about.
FLAGS = ("--unsafe-no-fsync", "--strict-reconfig-check=false")


@pytest.fixture(scope="module", params=MAKES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, request.param, 3, *FLAGS) as made:
        yield made


def endpoints(cluster: Cluster) -> str:
    return ",".join(member.address for member in cluster)


def examine(cluster: Cluster, *flags: str, interval: str = "0s", at: str = "") -> Found:
    """Examine all members; that leaders have lost their place, by a test or because the machine
    is busy, is not told."""
    if not any(each.startswith("--command-timeout=") for each in flags):
        # A client stays with a member that is cut off until its time is over.
        flags = (*flags, "--command-timeout=5s")
    found = of_endpoints(at or endpoints(cluster), *flags, interval=interval)
    found.pop("leader-changes", None)
    return found


def test_a_healthy_cluster_gives_no_findings(cluster: Cluster) -> None:
    cluster.settle()
    cluster.catch_up()
    until_found(set(), lambda: examine(cluster, interval="1s"))
    until_found(set(), lambda: examine(cluster, "--cluster", at=cluster[1].address))


@pytest.mark.long
def test_a_member_that_does_not_answer(cluster: Cluster) -> None:
    cluster.settle()
    follower = cluster.followers()[0]
    follower.kill()
    found = until_found({"member-unreachable"}, lambda: examine(cluster, "--command-timeout=2s"))
    assert found["member-unreachable"][0]["subject"] == follower.address
    assert follower.name in found["member-unreachable"][0]["what"]
    cluster.settle()


@pytest.mark.long
def test_a_quorum_that_is_lost(cluster: Cluster) -> None:
    leader = cluster.settle()
    others = cluster.others(leader)
    for each in others:
        each.kill()
    until("it knows that it is alone", lambda: leader.state().leader == 0)
    found = until_found(
        {"quorum-lost", "member-unreachable"},
        lambda: examine(cluster, "--command-timeout=500ms"),
    )
    (lost,) = found["quorum-lost"]
    assert lost["certainty"] == "certain"
    assert lost["evidence"]["voters"] == 3 and lost["evidence"]["quorum"] == 2
    assert all(each.name in lost["evidence"]["voters_silent"] for each in others)
    cluster.settle()


def test_no_endpoint_answers() -> None:
    found = of_endpoints("127.0.0.1:1,127.0.0.1:2", "--command-timeout=300ms")
    assert found.keys() == {"quorum-lost", "member-unreachable"}
    assert found["quorum-lost"][0]["certainty"] == "likely"


def test_members_that_do_not_reach_each_other(cluster: Cluster) -> None:
    cluster.settle()
    for member in cluster:
        cluster.network.isolate(member.node)
    until("nobody leads", lambda: not any(each.state().leader for each in cluster))
    found = until_found({"no-leader"}, lambda: examine(cluster, "--command-timeout=500ms"))
    assert found["no-leader"][0]["certainty"] == "certain"
    cluster.settle()


def test_a_member_that_is_cut_off_and_falls_behind(cluster: Cluster) -> None:
    leader = cluster.settle()
    alone = cluster.followers()[0]
    cluster.network.isolate(alone.node)
    until("it knows no leader", lambda: alone.state().leader == 0)
    leader = cluster.leader(cluster.others(alone))
    for number in range(BEHIND):
        leader.put(b"%d" % number)
    found = until_found({"no-leader", "member-behind"}, lambda: examine(cluster))
    assert {each["subject"] for name in found for each in found[name]} == {alone.address}
    assert found["member-behind"][0]["evidence"]["entries_behind"] >= BEHIND
    cluster.settle()
    cluster.catch_up()
    until_found(set(), lambda: examine(cluster))


@pytest.mark.long
def test_a_learner_that_is_behind(cluster: Cluster) -> None:
    leader = cluster.settle()
    learner = cluster.add()
    request = pb.MemberAddRequest(peerURLs=[learner.peer_url], isLearner=True)
    leader.answer("Cluster/MemberAdd", request, done=errors.PEER_URL_EXIST)
    learner.start(state="existing")
    until("it follows", lambda: learner.state().leader)
    until("it has told its name", lambda: all(each.clientURLs for each in leader.members()))
    cluster.catch_up()
    # It does not vote, so there are three voters still.
    until_found(set(), lambda: examine(cluster))
    # It takes nobody's place, so it goes on believing in its leader.
    cluster.network.isolate(learner.node)
    for number in range(BEHIND):
        leader.put(b"%d" % number)
    found = until_found({"learner-behind"}, lambda: examine(cluster))
    assert found["learner-behind"][0]["subject"] == learner.address

    cluster.network.mend()
    cluster.catch_up()
    promote = pb.MemberPromoteRequest(ID=learner.id)
    until("it votes", lambda: leader.ask("Cluster/MemberPromote", promote) and is_voter(learner))
    found = until_found({"even-voters"}, lambda: examine(cluster))
    assert found["even-voters"][0]["evidence"] == {"voters": 4, "failures_borne": 1}
    # Back to three.
    cluster.lead(leader)
    remove = pb.MemberRemoveRequest(ID=learner.id)
    leader.answer("Cluster/MemberRemove", remove, done=errors.MEMBER_NOT_FOUND)
    learner.wait()
    cluster.forget(learner)


def is_voter(member: Member) -> bool:
    return not member.state().isLearner


def test_quotas_that_differ(cluster: Cluster) -> None:
    cluster.settle()
    member = cluster.followers()[0]
    member.terminate()
    member.flags = (f"--quota-backend-bytes={QUOTA_BYTES}",)
    cluster.settle()
    found = until_found({"quotas-differ"}, lambda: examine(cluster))
    assert (
        f"{QUOTA_BYTES} at {member.address}" in found["quotas-differ"][0]["evidence"]["quota_bytes"]
    )
    member.terminate()
    member.flags = ()
    cluster.settle()


def test_a_leader_that_changes_often(cluster: Cluster) -> None:
    cluster.settle()
    for number in range(6):
        cluster.lead(cluster[number % 3])
    # A page of metrics may be as old as a second.
    found = until_found({"leader-changes"}, lambda: of_endpoints(endpoints(cluster)))
    assert found["leader-changes"][0]["evidence"]["leader_changes"] >= 5


def test_a_member_with_other_keys(cluster: Cluster) -> None:
    """The last of its cluster: the others keep what they have, and this one is given up."""
    cluster.settle()
    cluster.leader().put(b"key", b"right")
    cluster.catch_up()
    liar = cluster.followers()[0]
    assert liar.terminate() is not None

    def lie(content: Content) -> None:
        row, value = content[KEY][-1]
        kv = KeyValue.FromString(value)
        kv.value = b"wrong"
        content[KEY][-1] = row, kv.SerializeToString()

    rewrite_database(liar.data, lie)
    cluster.settle()
    cluster.catch_up()
    assert liar.get(b"key", serializable=True) == b"wrong"
    found = until_found({"hashes-differ"}, lambda: examine(cluster))
    (differs,) = found["hashes-differ"]
    assert differs["subject"] == liar.address
    assert differs["evidence"]["members_compared"] == 3
    assert "hashes-differ" not in examine(cluster, "--hash=false")
    # What the finding says heals the cluster.
    *_, remove = differs["run"]
    assert run_here(shlex.split(remove)[1:]).code == 0
    with client_of(cluster.others(liar)[0].address) as client:
        assert liar.id not in {member.id for member in client.members.list()}


@pytest.mark.long
def test_the_member_to_recover_from(tmp_path_factory: pytest.TempPathFactory) -> None:
    for make in MAKES:
        directory = tmp_path_factory.mktemp(make)
        with running_cluster(directory, make, 3, *FLAGS) as cluster:
            late = cluster.followers()[0]
            late.kill()
            cluster.leader(cluster.others(late)).put(b"key", b"value")
            best = cluster.leader(cluster.others(late))
            (other,) = (each for each in cluster if each not in (late, best))
            # Etcd commits what it has applied, and so the members, before it defragments.
            best.settled("Maintenance/Defragment", pb.DefragmentRequest())
            other.kill()
            # Only its log has this, and nobody agreed to it.
            best.client.begin("KV/Put", pb.PutRequest(key=b"key", value=b"uncommitted"))
            best.kill()
            found = of_directories(late.data, best.data)
            (recover,) = found["recover-from"]
            assert recover["subject"] == str(best.data)
            assert "quorum" in recover["what"] and not recover["run"]
            # Of the other directories one is lost, and one is damaged.
            segment = max((late.data / "member" / "wal").glob("*.wal"))
            content = bytearray(segment.read_bytes())
            content[len(content.rstrip(b"\0")) // 2] ^= 0x10
            segment.write_bytes(content)
            found = of_directories(late.data, best.data)
            assert "log-corrupt" in found
            (recover,) = found["recover-from"]
            assert recover["subject"] == str(best.data)
            *_, start = map(shlex.split, recover["run"])
            assert start[0] == make and start[-1] == "--force-new-cluster"
            assert {f"--data-dir={best.data}", f"--name={best.name}"} < set(start)


@pytest.mark.long
def test_a_majority_that_came_back_with_older_copies(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "kvorum", 3, *FLAGS) as cluster:
        keeper = cluster.settle()
        others = cluster.others(keeper)
        for each in others:
            each.kill()
            shutil.copytree(each.data, tmp_path / f"{each.name}.older")
        cluster.settle()
        for number in range(BEHIND):
            cluster.leader(list(cluster)).put(b"acknowledged", b"%d" % number)
        cluster.catch_up()
        for each in cluster:
            each.kill()
        for each in others:
            shutil.rmtree(each.data)
            shutil.copytree(tmp_path / f"{each.name}.older", each.data)
            each.start()
        for number in range(BEHIND):
            cluster.leader(others).put(b"in place of them", b"%d" % number)
        # The member that still has the lost entries follows nobody who lacks them.
        keeper.start()
        assert keeper.wait() != 0
        assert keeper.logged("members have lost entries that were committed")
        for each in others:
            each.kill()
        found = of_directories(*(each.data for each in cluster))
        lost = found["committed-entries-lost"]
        assert len(lost) == len(others)
        assert all(str(keeper.data) in each["what"] for each in lost)
