"""Incidents of the field about leaders that no longer lead: each test is named for etcd's issue."""

import pytest

from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.network.dialer.interface import DialEventKind
from kvorum.network.edge.interface import Headers
from kvorum.sim.calls import METHODS
from kvorum.sim.links import Links, Port
from tests.incidents.conftest import MakeStage


@pytest.mark.parametrize("seed", range(4))
def test_20418_a_read_after_a_pause_is_not_answered_by_an_old_one(
    make_stage: MakeStage, seed: int
) -> None:
    """The leader is paused; members ask it, and another, again and again, while others write.

    What it answers when it resumes is for old questions.
    """
    stage = make_stage(3, seed=seed)
    leader = stage.leader
    others = stage.followers()
    stage.put(b"k/0", b"before", leader)
    stage.machine(leader).pause(3.0)
    for number in range(40):
        for member in stage.cluster.members:
            stage.begin(RangeRequest(key=b"k/0"), member, patience=4.0)
        stage.begin(PutRequest(key=b"k/0", value=b"%d" % number), others[number % 2])
        stage.run(0.1)
    stage.run(5.0)
    answered = [each for each in stage.cluster.history.records if each.is_answered]
    assert len(answered) > 60
    stage.judge()


@pytest.mark.parametrize("seed", range(3))
def test_21378_reads_while_leaders_change(make_stage: MakeStage, seed: int) -> None:
    stage = make_stage(3, seed=seed)
    for number in range(6):
        leader = stage.leader
        for member in stage.cluster.members:
            stage.begin(PutRequest(key=b"k/0", value=b"%d.%d" % (number, member)), member)
            stage.begin(RangeRequest(key=b"k/0"), member)
        stage.isolate(leader)
        for _ in range(8):
            for member in stage.cluster.members:
                stage.begin(RangeRequest(key=b"k/0"), member, patience=2.0)
            stage.run(0.15)
        stage.heal()
        stage.serve()
    assert len(stage.cluster.leaders) > 3
    stage.judge()


@pytest.mark.parametrize("seed", range(4))
def test_15247_a_stalled_leader_neither_renews_nor_revokes(
    make_stage: MakeStage, seed: int
) -> None:
    """Issues 12528 and 16822 too: a leader stands still for longer than leases last.

    One lease is renewed with the new leader meanwhile, another only with the old one.
    """
    stage = make_stage(3, seed=seed)
    leader = stage.leader
    other = stage.followers()[0]
    kept, left = [stage.ask(LeaseGrantRequest(TTL=2), leader).ID for _ in range(2)]
    stage.put(b"k/kept", b"1", leader, kept)
    stage.put(b"k/left", b"2", leader, left)
    stage.machine(leader).pause(5.0)
    until = stage.world.now + 9.0
    while stage.world.now < until:
        stage.begin(LeaseKeepAliveRequest(ID=kept), other, patience=1.0)
        stage.begin(LeaseKeepAliveRequest(ID=left), leader, patience=1.0)
        stage.run(0.3)
    keys = [kv.key for kv in stage.everything(other).kvs]
    assert b"k/kept" in keys, "the old leader revoked what the new one renewed"
    # Either a client was told that the other lease lives and could rely on it, or none was.
    stage.judge()


def test_17132_a_lease_ends_in_time_over_many_leaders(make_stage: MakeStage) -> None:
    """Elections prolong a lease, but not for ever, and a renewal is never forgotten."""
    stage = make_stage(3, lease_checkpoints=True)
    lease = stage.ask(LeaseGrantRequest(TTL=15), stage.leader).ID
    stage.put(b"k/0", b"1", stage.leader, lease)
    for _ in range(4):
        stage.run(1.0)
        assert stage.ask(LeaseKeepAliveRequest(ID=lease), stage.followers()[0]).TTL == 15
        stage.restart(stage.leader)
        stage.serve()
    assert b"k/0" in [kv.key for kv in stage.everything().kvs]
    stage.run(15.0 + 4.0)
    assert b"k/0" not in [kv.key for kv in stage.everything().kvs]
    stage.judge()


def test_21671_a_renewal_that_no_leader_serves_may_be_tried_again(make_stage: MakeStage) -> None:
    """Leaders that cannot confirm that they lead refuse with a code that tells clients so."""
    stage = make_stage(3)
    leader = stage.leader
    lease = stage.ask(LeaseGrantRequest(TTL=60), leader).ID
    stage.isolate(leader)
    stage.machine(leader).pause(1.0)
    told: list[bytes | Status | None] = []
    path = METHODS[LeaseKeepAliveRequest][0]
    call = stage.cluster.open_stream(leader, path, told.append, told.append)
    stage.cluster.send(leader, call, LeaseKeepAliveRequest(ID=lease).SerializeToString())
    stage.run_until(lambda: bool(told))
    status = told[0]
    assert isinstance(status, Status) and status.code == Code.UNAVAILABLE, status


def test_18667_a_read_in_a_transaction_is_decided_alike_everywhere(make_stage: MakeStage) -> None:
    """A transaction that writes, and reads at a revision that is compacted or yet to come."""
    stage = make_stage(3, compaction_batch=1, compaction_pause_seconds=0.3)
    for number in range(12):
        stage.put(b"k/%d" % (number % 3), b"%d" % number)
    now = stage.put(b"k/9", b"x")
    stage.begin_compaction(now - 1)
    stage.run(0.05)
    for member in stage.cluster.members:
        for revision in (1, now - 2, now - 1, now, now + 100):
            put = RequestOp(request_put=PutRequest(key=b"k/9", value=b"%d" % revision))
            read = RequestOp(request_range=RangeRequest(key=b"k/0", revision=revision))
            answer = stage.answer(TxnRequest(success=[put, read]), member)
            is_refused = isinstance(answer, Status)
            assert is_refused == (revision < now - 1 or revision > now + 50), (revision, answer)
    stage.agree()


def test_11408_a_lock_is_answered_to_who_still_holds_it(make_stage: MakeStage) -> None:
    """A client that waited for a lock while its own lease ran out does not get it; the next one
    does."""
    stage = make_stage(3)
    first, second, third = [stage.ask(LeaseGrantRequest(TTL=ttl)).ID for ttl in (60, 2, 60)]
    held = stage.ask(LockRequest(name=b"lock", lease=first))
    expired = stage.begin(LockRequest(name=b"lock", lease=second), 2, patience=60.0)
    stage.run(0.2)
    waits = stage.begin(LockRequest(name=b"lock", lease=third), 3, patience=60.0)
    stage.run(6.0)
    assert not expired.finished and not waits.finished, "the first one holds it"
    stage.ask(UnlockRequest(key=held.key))
    stage.run_until(lambda: waits.finished > 0 and expired.finished > 0)
    assert not expired.is_answered
    assert waits.response.key == b"lock/%x" % third
    queue = stage.everything()
    assert [kv.key for kv in queue.kvs if kv.key.startswith(b"lock/")] == [waits.response.key]
    stage.ask(LeaseRevokeRequest(ID=third))
    assert not [kv.key for kv in stage.everything().kvs if kv.key.startswith(b"lock/")]


SEEDS = range(5)
PATIENT = {"frames": True, "pre_vote": True, "election_ticks": 50}
"""Without a sign, elections come after five seconds of silence."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_process_has_ended_is_succeeded_at_once(
    make_stage: MakeStage, seed: int
) -> None:
    stage = make_stage(3, seed=seed, **PATIENT)
    leader, others = stage.leader, stage.followers()
    stage.put(b"k/0", b"before", leader)
    killed_at = stage.world.now
    elected = len(stage.cluster.leaders)
    stage.machine(leader).crash(power_cut=False)
    stage.run_until(lambda: len(stage.cluster.leaders) > elected)
    assert stage.world.now - killed_at < 0.5
    stage.put(b"k/0", b"after", others[0])
    stage.machine(leader).start()
    stage.serve()
    stage.judge()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_host_is_silent_is_succeeded_after_half_of_the_timeout(
    make_stage: MakeStage, seed: int
) -> None:
    stage = make_stage(3, seed=seed, **PATIENT)
    leader, others = stage.leader, stage.followers()
    stage.put(b"k/0", b"before", leader)
    elected, silent_at = len(stage.cluster.leaders), stage.world.now
    stage.isolate(leader)
    stage.run_until(lambda: len(stage.cluster.leaders) > elected)
    assert stage.world.now - silent_at < 0.6 * 5.0
    stage.heal()
    stage.put(b"k/0", b"after", others[0])
    stage.judge()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pause_seconds", [2.0, 4.0])
def test_a_leader_that_stands_still_is_not_deposed_before_the_timeout(
    make_stage: MakeStage, seed: int, pause_seconds: float
) -> None:
    """Its host answers, so it may go on."""
    stage = make_stage(3, seed=seed, **PATIENT)
    elected = len(stage.cluster.leaders)
    for _ in range(5):
        stage.machine(stage.leader).pause(pause_seconds)
        stage.run(pause_seconds + 1.0)
    assert len(stage.cluster.leaders) == elected
    stage.judge()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_that_is_silent_for_a_moment_goes_on_leading(
    make_stage: MakeStage, seed: int
) -> None:
    stage = make_stage(3, seed=seed, **PATIENT)
    elected = len(stage.cluster.leaders)
    for _ in range(5):
        stage.isolate(stage.leader)
        stage.run(2.0)
        stage.heal()
        stage.run(1.0)
    assert len(stage.cluster.leaders) == elected
    stage.judge()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_connections_that_break_every_second_depose_nobody(
    make_stage: MakeStage, seed: int
) -> None:
    stage = make_stage(3, seed=seed, **PATIENT)
    links = stage.cluster.links
    assert links is not None
    elected = len(stage.cluster.leaders)
    for number in range(30):
        stage.put(b"k/0", b"%d" % number, member=number % 3 + 1)
        for connection in links.connections():
            links.break_off(connection)
        stage.run(1.0)
    assert len(stage.cluster.leaders) == elected
    stage.judge()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_one_member_cannot_reach_goes_on_leading(
    make_stage: MakeStage, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host refuses connections of one member: that is no sign for the others."""
    stage = make_stage(3, seed=seed, **PATIENT)
    links = stage.cluster.links
    assert links is not None
    leader, (barred, _) = stage.leader, stage.followers()
    elected = len(stage.cluster.leaders)
    open_connection = Links.open

    def open_or_refuse(
        self: Links, client: Port, url: str, head: tuple[str, str, Headers], body: bytes | None
    ) -> int:
        number = open_connection(self, client, url, head, body)
        if client.host.number == barred and self.ports[url].host.number == leader:
            connection = client.requests[number]
            connection.is_broken = True
            self._end(connection, DialEventKind.REFUSED)
        return number

    monkeypatch.setattr(Links, "open", open_or_refuse)
    for connection in links.connections():
        links.break_off(connection)
    for number in range(20):
        stage.put(b"k/0", b"%d" % number, member=leader)
        stage.run(0.5)
    assert len(stage.cluster.leaders) == elected
    monkeypatch.undo()
    stage.serve()
    stage.judge()
