"""What clients get: from every member, from one that was paused, and when the quorum is lost."""

import signal
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from hyperframe.frame import GoAwayFrame

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3electionpb import CampaignRequest, LeaderRequest, ProclaimRequest
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from tests.cluster.client import LEADER_REQUIRED, OPTIONS, STREAM_SECONDS_MAX, Talk
from tests.cluster.members import (
    LEASE_SECONDS,
    PASSING,
    Cluster,
    Member,
    grant,
    running_cluster,
)
from tests.etcd import is_target
from tests.network.edge.wire import Wire, grpc_headers, message
from tests.server.rpc.oracle import by_name, status_of
from tests.waiting import WAIT_SECONDS_MAX, until


def keep_alive(member: Member, *leases: int) -> list[int]:
    """Renew leases on one stream; return their times to live."""

    def renewed() -> list[int] | None:
        talk = member.client.talk("Lease/LeaseKeepAlive")
        found = []
        try:
            for lease in leases:
                talk.say(pb.LeaseKeepAliveRequest(ID=lease))
                found.append(talk.hear().TTL)
        except grpc.RpcError as error:
            if status_of(error) not in PASSING:
                raise
            return None
        finally:
            talk.close()
        return found

    return until(f"{member} renews {leases}", renewed)


def until_keys(member: Member, prefix: bytes, count: int) -> None:
    """Wait until a prefix that ends with a slash has so many keys."""
    request = pb.RangeRequest(key=prefix, range_end=prefix[:-1] + b"0", count_only=True)
    until(
        f"{count} keys under {prefix!r}",
        lambda: member.answer("KV/Range", request).count == count,
    )


def test_what_one_member_writes_every_member_reads(patient: Cluster) -> None:
    for writer in patient:
        put = writer.put(b"shared", writer.name.encode())
        assert put.header.member_id == writer.id
        for reader in patient:
            found = reader.answer("KV/Range", pb.RangeRequest(key=b"shared"))
            assert found.kvs[0].value == writer.name.encode()
            assert found.header.member_id == reader.id
            assert found.header.revision == put.header.revision


def test_leases_through_every_member(patient: Cluster) -> None:
    for member in patient:
        lease = grant(member)
        member.put(b"leased", b"", lease)
        for other in patient:
            assert keep_alive(other, lease, 5, lease) == [LEASE_SECONDS, 0, LEASE_SECONDS]
            request = pb.LeaseTimeToLiveRequest(ID=lease, keys=True)
            told = other.answer("Lease/LeaseTimeToLive", request)
            # Nothing in between waits longer.
            left_min = LEASE_SECONDS - 2 * WAIT_SECONDS_MAX
            assert left_min < told.TTL <= told.grantedTTL == LEASE_SECONDS
            assert list(told.keys) == [b"leased"]
            assert told.header.member_id == other.id
        revoke = pb.LeaseRevokeRequest(ID=lease)
        member.answer("Lease/LeaseRevoke", revoke, done=errors.LEASE_NOT_FOUND)
        for other in patient:
            assert other.get(b"leased") is None
            unknown = other.answer("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=lease))
            assert (unknown.TTL, unknown.grantedTTL) == (-1, 0)


def test_watches_at_every_member_see_the_same(patient: Cluster) -> None:
    watches = [member.client.watch(key=b"seen/", range_end=b"seen0") for member in patient]
    expected = []
    for number, member in enumerate(list(patient) * 3):
        put = member.put(b"seen/%d" % number)
        expected.append((b"seen/%d" % number, put.header.revision))
    views = []
    for watch in watches:
        seen: list[tuple[bytes, int]] = []
        while expected[-1] not in seen:
            seen += [(each.kv.key, each.kv.mod_revision) for each in watch.hear().events]
        views.append(seen)
        watch.close()
    assert views == [views[0]] * 3
    revisions = [revision for _, revision in views[0]]
    assert revisions == sorted(set(revisions))
    # If a member stood still, a put may have been made twice; its last answer counts.
    assert list(dict(views[0]).items()) == expected


def test_a_lock_goes_from_member_to_member(patient: Cluster) -> None:
    leases = [grant(member) for member in patient]
    waiting = []
    for member, lease in zip(patient, leases, strict=True):
        request = LockRequest(name=b"lock", lease=lease)
        waiting.append(member.client.begin("Lock/Lock", request, STREAM_SECONDS_MAX))
        until_keys(member, b"lock/", len(waiting))
    for place, (member, call) in enumerate(zip(patient, waiting, strict=True)):
        held = call.result()
        assert not any(each.done() for each in waiting[place + 1 :])
        # The holder may release it at any member.
        patient[(place + 1) % 3].answer("Lock/Unlock", UnlockRequest(key=held.key))
        assert member.get(held.key) is None


def test_an_election_is_observed_at_every_member(patient: Cluster) -> None:
    observers = [
        member.client.pieces("Election/Observe", LeaderRequest(name=b"office"))
        for member in patient
    ]
    campaign = CampaignRequest(name=b"office", lease=grant(patient[0]), value=b"elected")
    leader = patient[0].answer("Election/Campaign", campaign).leader
    for observer in observers:
        assert next(observer).kv.value == b"elected"
    patient[1].answer("Election/Proclaim", ProclaimRequest(leader=leader, value=b"proclaimed"))
    for member, observer in zip(patient, observers, strict=True):
        while (said := next(observer).kv.value) != b"proclaimed":
            # Who campaigns anew, because a member stood still, is elected twice.
            assert said == b"elected"
        observer.cancel()
        told = member.answer("Election/Leader", LeaderRequest(name=b"office"))
        assert told.kv.value == b"proclaimed"


def heard(talk: Talk) -> int | None:
    """Return the next time to live on a stream, or None if it ends for lack of a leader."""
    try:
        ttl: int = talk.hear().TTL
    except grpc.RpcError as error:
        return None if status_of(error).code is Code.UNAVAILABLE else -1
    return ttl


def test_a_leader_that_slept_tells_nothing_old(cluster: Cluster, make: str) -> None:
    old = cluster.leader()
    old.put(b"slept", b"before")
    lease = grant(old)
    talk, renewed = old.talk("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease))
    assert renewed.TTL == LEASE_SECONDS
    old.pause()
    # They are in its sockets when it resumes.
    read = pb.RangeRequest(key=b"slept")
    reads = [old.client.begin("KV/Range", read, STREAM_SECONDS_MAX) for _ in range(20)]
    talk.say(pb.LeaseKeepAliveRequest(ID=lease))
    written = old.client.begin("KV/Put", pb.PutRequest(key=b"written asleep"), 2)
    others = cluster.others(old)
    new = cluster.leader(others)
    new.put(b"slept", b"after")
    revoke = pb.LeaseRevokeRequest(ID=lease)
    new.answer("Lease/LeaseRevoke", revoke, done=errors.LEASE_NOT_FOUND)
    old.resume()
    for call in reads:
        error = call.exception()
        if error is None:
            assert call.result().kvs[0].value == b"after"
        else:
            assert status_of(error).code is Code.UNAVAILABLE
    if make == "kvorum":
        # 3.5.1 renews it, without asking the others whether it still leads.
        assert heard(talk) in (0, None)
    talk.close()
    if written.exception() is None:
        assert all(member.get(b"written asleep") is not None for member in cluster)
    cluster.settle()
    cluster.check_agreement()


def test_a_leader_that_ends_hands_over(patient: Cluster) -> None:
    old = patient.settle()
    term = old.term()
    others = patient.others(old)
    sizes = {member: member.log_size() for member in others}
    old.terminate()
    new = patient.leader(others)
    now = new.term()
    assert now == term + 1, f"not one election: term {now} after {term}"
    elections = {
        member: member.logged("is starting a new election", size) for member, size in sizes.items()
    }
    expected = {member: int(member is new) for member in others}
    assert elections == expected, f"elections: {elections}; {new} leads"
    told = new.logged("MsgTimeoutNow", sizes[new])
    assert told == 1, f"{new} was told {told} times to campaign"


READ_TRIES = 2


class Reader(threading.Thread):
    """Reads through a channel to all members, each read tried once more if it fails."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._target = "ipv4:" + ",".join(member.address for member in cluster)
        self._ending = threading.Event()
        self.served = 0
        self.refused: list[list[Status]] = []
        """The errors of reads that did not succeed at once."""

    def run(self) -> None:
        method = by_name("KV/Range")
        options = [
            *OPTIONS,
            # Calls that no member has seen are the library's to repeat, as they are for any
            # client: it may hear that a member ends while it gives it a call.
            ("grpc.lb_policy_name", "round_robin"),
            # Otherwise all addresses in one, which is not what RFC 9113 calls an authority.
            ("grpc.default_authority", "cluster"),
        ]
        with grpc.insecure_channel(self._target, options) as channel:
            read = channel.unary_unary(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            request = pb.RangeRequest(key=b"rolling")
            while not self._ending.is_set():
                told: list[Status] = []
                for _ in range(READ_TRIES):
                    try:
                        read(request, timeout=WAIT_SECONDS_MAX)
                        break
                    except grpc.RpcError as error:
                        told.append(status_of(error))
                if told:
                    self.refused.append(told)
                self.served += 1

    def await_reads(self, reads: int) -> None:
        """Wait for so many more."""
        goal = self.served + reads
        until("the reader goes on", lambda: self.served >= goal)

    def end(self) -> None:
        self._ending.set()
        self.join()

    @property
    def failed(self) -> list[list[Status]]:
        """The errors of reads that never succeeded."""
        return [told for told in self.refused if len(told) == READ_TRIES]


def test_rolling_restart(patient: Cluster, make: str) -> None:
    patient[0].put(b"rolling")
    readers = [Reader(patient) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for member in patient:
            member.terminate()
            member.start()
            patient.settle()
            for reader in readers:
                reader.await_reads(50)
    finally:
        for reader in readers:
            reader.end()
    failed = [told for reader in readers for told in reader.failed]
    if make == "kvorum":
        assert failed == []
    else:
        # One member may hear of the new leader later than another, and say so to the same read.
        assert all(status == errors.LEADER_CHANGED for told in failed for status in told)


def test_a_leader_serves_who_has_not_heard_that_it_ends(tmp_path: Path) -> None:
    # Clients are waited for that long, and this test has that much time.
    with running_cluster(tmp_path, "kvorum", 3) as cluster:
        cluster.be_patient()
        leader = cluster.leader()
        range_path = by_name("KV/Range").path
        body = message(pb.RangeRequest(key=b"key").SerializeToString())
        with Wire(leader.address) as unaware:
            watching = unaware.open(grpc_headers(by_name("Watch/Watch").path))
            assert unaware.answer(unaware.call(range_path, body)).status == (0, "")
            leader.send_signal(signal.SIGTERM)
            while not isinstance(unaware.read_frame(), GoAwayFrame):
                pass
            late = [unaware.call(range_path, body) for _ in range(10)]
            # With the ping that follows it learns of the end, and confirms it.
            assert [unaware.answer(stream).status for stream in late] == [(0, "")] * 10
            # The server does not wait for an open stream. Nothing orders the frames of several
            # streams, so the end of this one may arrive before the last late answer.
            assert unaware.answer(watching).status == errors.STOPPED
        leader.wait()
        assert leader.logged("calls in flight are cut off") == 0


@pytest.mark.long
def test_without_a_quorum(cluster: Cluster, make: str) -> None:
    lease = grant(cluster[0])
    alone, *others = cluster
    alone.put(b"alone", b"value", lease)
    watch = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"alone"))
    watching, created = alone.talk("Watch/Watch", watch, LEADER_REQUIRED)
    assert created.created
    streams = (watching, alone.client.talk("Lease/LeaseKeepAlive", LEADER_REQUIRED))
    patient = alone.client.watch(key=b"alone", prev_kv=True)
    for other in others:
        other.kill()
    for stream in streams:
        assert stream.end() == errors.NO_LEADER
    until("the leader is lost", lambda: alone.state().leader == 0)
    assert "etcdserver: no leader" in alone.state().errors
    slow: dict[str, Any] = {
        "KV/Range": pb.RangeRequest(key=b"alone"),
        "KV/Put": pb.PutRequest(key=b"alone"),
        "Cluster/MemberList": pb.MemberListRequest(linearizable=True),
        "Lease/LeaseTimeToLive": pb.LeaseTimeToLiveRequest(ID=lease),
        "Cluster/MemberPromote": pb.MemberPromoteRequest(ID=others[0].id),
    }
    # The member's own limits of time end them.
    calls = {
        name: alone.client.begin(name, request, STREAM_SECONDS_MAX)
        for name, request in slow.items()
    }
    assert alone.get(b"alone", serializable=True) == b"value"
    refused = alone.ask(
        "KV/Range", pb.RangeRequest(key=b"alone", serializable=True), metadata=LEADER_REQUIRED
    )
    assert refused == errors.NO_LEADER
    assert len(alone.members(linearizable=False)) == 3
    assert (
        alone.ask("Maintenance/MoveLeader", pb.MoveLeaderRequest(targetID=others[0].id))
        == errors.NOT_LEADER
    )
    ends = {name: status_of(call.exception()) for name, call in calls.items()}
    assert ends["KV/Range"] == ends["Cluster/MemberList"] == errors.TIMEOUT
    assert ends["Lease/LeaseTimeToLive"] == ends["Cluster/MemberPromote"] == errors.NO_LEADER
    is_new = make == "kvorum" or is_target()
    code = Code.DEADLINE_EXCEEDED if is_new else Code.UNKNOWN  # As 3.5.1 says it.
    assert ends["KV/Put"] == Status(code, "context deadline exceeded")
    # A call that did not ask for a leader waits until there is one again.
    cluster.settle()
    cluster[1].put(b"alone", b"together")
    while not any(event.kv.value == b"together" for event in patient.hear().events):
        pass
    patient.close()
