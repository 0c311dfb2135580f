"""One member by itself: requests, restarts, power cuts, failing disks, quota, slices."""

import errno
from random import Random
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    CompactionRequest,
    DeleteRangeResponse,
    LeaseGrantRequest,
    LeaseGrantResponse,
    PutRequest,
    PutResponse,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from kvorum.api.pb.membershippb import ClusterVersionSetRequest
from kvorum.member.errors import MemberStopped, StartRefused
from kvorum.member.jobs import ExecutorKind
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.storage.backend.buckets import META, STORAGE_VERSION
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.wal import AppendLog
from tests.member.harness import Cluster, Machine, PowerCutError


def all_keys(cluster: Cluster, machine: Machine) -> list[tuple[bytes, bytes, int, int]]:
    answer = cluster.success(machine, machine.range(b"\0", b"\0"))
    found = RangeResponse.FromString(answer)
    return [(kv.key, kv.value, kv.mod_revision, kv.version) for kv in found.kvs]


def test_a_put_is_read_back() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    answer = cluster.success(machine, machine.put(b"key", b"value"))
    put = PutResponse.FromString(answer)
    assert put.header.revision == 2
    assert put.header.member_id == machine.running.id
    assert put.header.raft_term == machine.running.term
    found = RangeResponse.FromString(cluster.success(machine, machine.range(b"key")))
    assert [(kv.key, kv.value, kv.mod_revision) for kv in found.kvs] == [(b"key", b"value", 2)]
    assert found.count == 1


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    machine.held = {ExecutorKind.LOG}
    call = machine.put(b"key", b"value")
    cluster.settle()
    assert call not in machine.replies
    assert machine.running.state.store.get(b"key") is None, "applied before it was durable"
    machine.held = set()
    assert isinstance(cluster.answer(machine, call), bytes)


def test_at_most_two_batches_are_on_their_way_and_the_rest_gathers() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    machine.held = {ExecutorKind.LOG}
    calls = []
    for number in range(10):
        calls.append(machine.put(b"%d" % number))
        cluster.settle()
    appends = [job for job in machine.jobs[ExecutorKind.LOG] if isinstance(job.work, AppendLog)]
    assert len(appends) == 2
    machine.held = set()
    for call in calls:
        assert isinstance(cluster.answer(machine, call), bytes)
    assert len(all_keys(cluster, machine)) == 10


def test_a_restart_from_the_log_alone_applies_everything_again_once() -> None:
    cluster = Cluster(1, flush_seconds=1e9)
    machine = cluster.leader()
    for number in range(20):
        cluster.answer(machine, machine.put(b"key", b"%d" % number))
    before = all_keys(cluster, machine)
    machine.kill()
    machine.start()
    assert machine.running.state.backend.applied_index == 0
    cluster.leader()
    assert all_keys(cluster, machine) == before == [(b"key", b"19", 21, 20)]


def test_a_restart_goes_on_behind_what_the_backend_holds() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    for number in range(20):
        cluster.answer(machine, machine.put(b"key", b"%d" % number))
    cluster.pass_time(0.3)
    durable = machine.running.state.backend.durable_index
    assert durable == machine.running.state.applied
    machine.kill()
    member = machine.start()
    assert member.state.applied == durable
    cluster.leader()
    assert all_keys(cluster, machine) == [(b"key", b"19", 21, 20)]


def test_a_restart_from_a_snapshot_needs_no_older_log() -> None:
    cluster = Cluster(1, snapshot_entries=10, catch_up_entries=5, segment_bytes=4096)
    machine = cluster.leader()
    for number in range(300):
        machine.put(b"%d" % (number % 7), b"x" * 100)
        cluster.pass_time(0.02)
    cluster.pass_time(31.0)
    snapshot = machine.running.replica.snapshots.index
    assert snapshot > 200
    names = machine.files.list("/data/member/snap")
    assert len([name for name in names if name.endswith(".snap")]) == 5
    segments = [each for each in machine.files.list("/data/member/wal") if each.endswith(".wal")]
    assert not segments[0].startswith("0000000000000000-"), "the log was not cut"
    before = all_keys(cluster, machine)
    machine.kill()
    machine.start()
    assert (
        machine.running.replica.storage.first_index() == machine.running.replica.snapshots.index + 1
    )
    cluster.leader()
    assert all_keys(cluster, machine) == before


def put_until_the_power_fails(machine: Machine, cluster: Cluster, calls_max: int) -> list[bytes]:
    """Put distinct keys until the disk had so many calls; return what was acknowledged."""
    made = 0

    def before(_call: DiskCall) -> None:
        nonlocal made
        made += 1
        if made > calls_max:
            raise PowerCutError

    machine.files.before = before
    waiting: dict[int, bytes] = {}
    acknowledged: list[bytes] = []

    def collect() -> None:
        for call, key in list(waiting.items()):
            if isinstance(machine.replies.get(call), bytes):
                acknowledged.append(key)
                del waiting[call]

    try:
        for number in range(60):
            key = b"%d-%d" % (machine.starts, number)
            waiting[machine.put(key, b"x" * 50)] = key
            cluster.pass_time(0.05)
            collect()
    except PowerCutError:
        collect()
    machine.files.before = None
    return acknowledged


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_at_any_call_loses_nothing_acknowledged(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(1, snapshot_entries=7, catch_up_entries=3, segment_bytes=2048)
    machine = cluster[0]
    acknowledged: list[bytes] = []
    for _ in range(12):
        cluster.leader()
        acknowledged += put_until_the_power_fails(machine, cluster, random.randrange(1, 250))
        machine.lose_power(lambda: random.random() < 0.5)
        while True:
            # The power may fail during the start, too.
            left = random.randrange(0, 60)

            def before(_call: DiskCall, left: list[int] = [left]) -> None:  # noqa: B006
                left[0] -= 1
                if left[0] < 0:
                    raise PowerCutError

            machine.files.before = before if random.random() < 0.5 else None
            try:
                machine.start()
                break
            except PowerCutError:
                machine.lose_power(lambda: random.random() < 0.5)
        machine.files.before = None
    cluster.leader()
    keys = all_keys(cluster, machine)
    assert set(acknowledged) <= {key for key, _, _, _ in keys}
    assert {version for _, _, _, version in keys} <= {1}, "applied twice"
    revisions = sorted(revision for _, _, revision, _ in keys)
    assert revisions == list(range(2, 2 + len(keys)))


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
def test_a_log_that_cannot_be_written_stops_the_member(name: str) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def before(call: DiskCall) -> None:
        if call.name == name and call.path.endswith(".wal"):
            raise OSError(errno.EIO, "Input/output error", call.path)

    machine.files.before = before
    call = machine.put(b"key")
    with pytest.raises(MemberStopped, match="Input/output error"):
        cluster.settle()
    assert call not in machine.replies
    with pytest.raises(MemberStopped, match="Input/output error"):
        machine.turn()
    with pytest.raises(MemberStopped, match="Input/output error"):
        machine.running.tick(cluster.now)


def test_a_backend_that_cannot_be_written_stops_the_member() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def before(call: DiskCall) -> None:
        if call.name == "commit":
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    machine.files.before = before
    machine.put(b"key")
    with pytest.raises(MemberStopped, match="No space left on device"):
        cluster.pass_time(1.0)


def test_an_entry_that_nobody_understands_stops_the_member() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    machine.running.replica.node.propose(b"\xff\xff\xff")
    with pytest.raises(MemberStopped, match="newer member"):
        cluster.settle()


def test_an_entry_of_an_older_member_names_the_older_one() -> None:
    """etcd 3.5 writes it at every start; tests/tools/utl/test_migrate.py has one of a real etcd."""
    cluster = Cluster(1)
    machine = cluster.leader()
    machine.running.replica.node.propose(b"\x08\x01\x12\x03PUT\x1a\x0a/0/version\x22\x053.5.0")
    with pytest.raises(MemberStopped, match=r"etcd 3\.5 and older.* upgrade all of them to 3\.6"):
        cluster.settle()


def test_the_storage_follows_a_cluster_that_is_lowered_to_3_5_and_back() -> None:
    """What etcd reports of a storage without a version, beside members of 3.6 on their way back."""
    cluster = Cluster(1)
    machine = cluster.leader()
    for version, stored in (("3.6.0", b"3.6.0"), ("3.5.0", None), ("3.6.0", b"3.6.0")):
        body = ClusterVersionSetRequest(ver=version).SerializeToString()
        machine.running.replica.propose(None, MEMBER, requests.CLUSTER_VERSION_SET, body)
        cluster.settle()
        assert str(machine.running.state.cluster.storage_version) == version
        assert machine.running.state.backend.get(META, STORAGE_VERSION) == stored
        assert machine.running.state.backend.applied_index == machine.running.state.applied


def test_a_log_without_its_backend_is_replayed_and_a_backend_without_its_log_refused() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    cluster.answer(machine, machine.put(b"key", b"value"))
    cluster.pass_time(1.0)
    machine.kill()
    for name in machine.files.list("/data/member/wal"):
        machine.files.unlink(f"/data/member/wal/{name}")
    with pytest.raises(StartRefused, match="there is no log"):
        machine.start()


# Turns of any budget.


def busy_history(slices: int) -> tuple[list[bytes | Status], Any]:
    """Do a bit of everything; return every answer and the keys at the end."""
    cluster = Cluster(1)
    machine = cluster.leader()
    cluster.slices = slices
    calls = [machine.put(b"key-%05d" % number, b"%d" % number) for number in range(1500)]
    calls.append(machine.range(b"key-", b"key.", serializable=False))
    calls.append(machine.delete(b"key-00100", b"key-01400", prev_kv=True))
    calls.append(machine.put(b"key-00200", b"again"))
    grant = LeaseGrantRequest(ID=5, TTL=1000).SerializeToString()
    calls.append(machine.propose(requests.LEASE_GRANT, grant))
    calls += [machine.put(b"leased-%05d" % number, lease=5) for number in range(700)]
    nested = TxnRequest(success=[RequestOp(request_put=PutRequest(key=b"n", value=b"1"))])
    txn = TxnRequest(
        success=[
            RequestOp(request_range={"key": b"\0", "range_end": b"\0", "sort_target": "VALUE"}),
            RequestOp(request_delete_range={"key": b"key-", "range_end": b"key."}),
            RequestOp(request_txn=nested),
            RequestOp(request_range={"key": b"\0", "range_end": b"\0", "count_only": True}),
        ]
    )
    calls.append(machine.txn(txn))
    calls.append(machine.propose(requests.LEASE_REVOKE, b"\x08\x05"))
    calls.append(machine.propose(requests.COMPACTION, b"\x08\x0a"))
    calls.append(machine.read_txn(TxnRequest(success=[txn.success[0]])))
    cluster.settle()
    cluster.slices = 0
    answers = [cluster.answer(machine, call) for call in calls]
    return answers, all_keys(cluster, machine)


def test_how_work_is_cut_into_turns_changes_no_answer() -> None:
    whole = busy_history(0)
    assert all(isinstance(answer, bytes) for answer in whole[0])
    for slices in (1, 2, 3, 7):
        assert busy_history(slices) == whole


def test_others_are_served_while_a_long_deletion_is_applied() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    for number in range(2000):
        machine.put(b"%05d" % number)
    cluster.settle()
    cluster.slices = 1
    deletion = machine.delete(b"\0", b"\0")
    while machine.running.replica.apply_queue.slices is None:
        machine.turn()
    machine.turn()
    assert machine.running.state.store.is_writing
    # Reads see the state before the deletion; nothing of that is sealed.
    call = machine.range(b"00001", serializable=True)
    machine.turn()
    assert machine.running.state.store.is_writing
    found = machine.replies[call]
    assert isinstance(found, bytes) and RangeResponse.FromString(found).count == 1
    cluster.slices = 0
    response = DeleteRangeResponse.FromString(cluster.success(machine, deletion))
    assert response.deleted == 2000
    assert all_keys(cluster, machine) == []


# Leases, compaction, quota, alarms.


def grant(cluster: Cluster, machine: Machine, lease: int, ttl: int) -> int:
    body = LeaseGrantRequest(ID=lease, TTL=ttl).SerializeToString()
    answer = cluster.success(machine, machine.propose(requests.LEASE_GRANT, body))
    return LeaseGrantResponse.FromString(answer).TTL


def test_a_lease_that_runs_out_takes_its_keys_along() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    assert grant(cluster, machine, 7, 1) == 2
    cluster.answer(machine, machine.put(b"leased", lease=7))
    cluster.answer(machine, machine.put(b"free"))
    cluster.pass_time(1.5)
    assert len(all_keys(cluster, machine)) == 2
    cluster.wait(lambda: 7 not in machine.running.state.lessor, 3.0)
    assert [key for key, *_ in all_keys(cluster, machine)] == [b"free"]
    assert machine.running.state.store.revision == 4


def test_compaction_frees_rows_in_the_background() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    for number in range(50):
        cluster.answer(machine, machine.put(b"key", b"%d" % number))
    body = CompactionRequest(revision=40).SerializeToString()
    assert isinstance(cluster.answer(machine, machine.propose(requests.COMPACTION, body)), bytes)
    assert cluster.answer(machine, machine.range(b"key", revision=39)) == errors.COMPACTED
    cluster.pass_time(1.0)
    store = machine.running.state.store
    assert store.compaction.finished_revision == 40
    assert len(store.backend.scan_rows(0, 1 << 96, 100)) == 12
    answer = cluster.answer(machine, machine.propose(requests.COMPACTION, body))
    assert answer == errors.COMPACTED


def test_a_full_quota_raises_the_alarm_and_freeing_needs_an_operator() -> None:
    cluster = Cluster(1, quota_bytes=200_000)
    machine = cluster.leader()
    refusals = []
    for number in range(100):
        answer = cluster.answer(machine, machine.put(b"%d" % number, b"x" * 10_000))
        if isinstance(answer, Status):
            refusals.append(answer)
            break
        cluster.pass_time(0.2)
    assert refusals == [errors.NO_SPACE]
    count = len(all_keys(cluster, machine))
    cluster.pass_time(0.5)
    assert len(machine.running.state.alarms.raised()) == 1
    # Now refused when it is applied; deletions are still accepted.
    assert cluster.answer(machine, machine.put(b"more")) == errors.NO_SPACE
    assert len(all_keys(cluster, machine)) == count
    assert isinstance(cluster.answer(machine, machine.delete(b"0")), bytes)
    assert machine.running.replica.check_quota(1 << 30) == errors.NO_SPACE
    disarm = AlarmRequest(
        action=AlarmRequest.DEACTIVATE,
        memberID=machine.running.id,
        alarm=1,  # type: ignore[arg-type]
    ).SerializeToString()
    cluster.answer(machine, machine.propose(requests.ALARM, disarm))
    assert machine.running.state.alarms.raised() == []


def test_a_request_that_is_too_large_is_refused() -> None:
    cluster = Cluster(1, request_bytes_max=1000)
    machine = cluster.leader()
    answer = cluster.answer(machine, machine.put(b"key", b"x" * 1000))
    assert answer == errors.REQUEST_TOO_LARGE


def test_proposals_are_refused_while_too_much_is_not_applied() -> None:
    cluster = Cluster(1, unapplied_entries_max=10)
    machine = cluster.leader()
    cluster.slices = 1
    for number in range(200):
        machine.put(b"%d" % number)
    machine.turn()
    machine.turn()
    answer = cluster.answer(machine, machine.put(b"late"))
    assert answer == errors.REQUEST_TOO_MANY_REQUESTS


@pytest.mark.parametrize("is_open", [False, True])
def test_an_overloaded_member_takes_revokes_for_longer_if_the_gate_is_open(is_open: bool) -> None:
    cluster = Cluster(1, unapplied_entries_max=120, prioritizes_revokes=is_open)
    machine = cluster.leader()
    cluster.slices = 1
    for number in range(200):
        machine.put(b"%d" % number)
    machine.turn()
    machine.turn()
    put, revoke = machine.put(b"late"), machine.propose(requests.LEASE_REVOKE, b"\x08\x05")
    assert cluster.answer(machine, put) == errors.REQUEST_TOO_MANY_REQUESTS
    answer = cluster.answer(machine, revoke)
    assert answer == (errors.LEASE_NOT_FOUND if is_open else errors.REQUEST_TOO_MANY_REQUESTS)


def test_a_failed_preparation_of_a_segment_is_tried_again() -> None:
    cluster = Cluster(1, segment_bytes=1024)
    machine = cluster.leader()

    def before(call: DiskCall) -> None:
        if call.name == "allocate":
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    machine.files.before = before
    for number in range(30):
        cluster.answer(machine, machine.put(b"%d" % number, b"x" * 100))
    machine.files.before = None
    cluster.pass_time(31.0)
    for number in range(30):
        cluster.answer(machine, machine.put(b"%d" % number, b"x" * 100))
    names = [name for name in machine.files.list("/data/member/wal") if name.endswith(".wal")]
    assert len(names) > 1


def test_a_clean_end_leaves_nothing_open() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    cluster.answer(machine, machine.put(b"key", b"value"))
    member = machine.running
    machine.server.drain(cluster.now)
    cluster.wait(lambda: machine.member is None)
    assert member.is_closed
    assert machine.files.open_descriptors() == 0
    machine.kill()
    assert machine.start().state.applied == member.state.applied, "not everything was flushed"
    cluster.leader()
    assert all_keys(cluster, machine) == [(b"key", b"value", 2, 1)]


def test_a_txn_answers_with_one_revision() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    puts = [RequestOp(request_put=PutRequest(key=b"%d" % each)) for each in range(3)]
    answer = cluster.success(machine, machine.txn(TxnRequest(success=puts)))
    response = TxnResponse.FromString(answer)
    assert response.succeeded and response.header.revision == 2
    assert [each.response_put.header.revision for each in response.responses] == [2, 2, 2]


def test_one_segment_is_prepared_however_long_the_disk_takes() -> None:
    cluster = Cluster(1)
    machine = cluster[0]
    machine.held.add(ExecutorKind.LOG)
    # Long enough for the duty that prepares segments to be due several times.
    cluster.pass_time(100.0)
    machine.held.clear()
    cluster.success(cluster.leader(), machine.put(b"a"))
