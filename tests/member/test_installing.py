"""A snapshot replaces what a follower holds, while other work is in progress there."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.etcdserverpb import LeaseGrantRequest
from kvorum.api.pb.v3electionpb import LeaderRequest
from kvorum.api.requests import range_of
from kvorum.member import installing, log_lines
from kvorum.member.hashing import hash_kv
from kvorum.member.images import BuildImage, InstallImage, note_image
from kvorum.member.jobs import ExecutorKind, Job, Nothing
from kvorum.member.leases import renew
from kvorum.member.waits import FlushedTo, ReadIndex, RunJob, Signal, Signalled, Steps
from kvorum.server.rpc.election import _leader, _observe
from kvorum.server.rpc.kv import _compact_physically, _range_stream
from kvorum.server.rpc.lease import _listed
from kvorum.server.rpc.maintenance import (
    _defragment,
    _downgrade,
    _hash,
    _hash_kv,
    _run_defragmentation,
)
from kvorum.server.rpc.sessions import answer_call
from kvorum.server.rpc.snapshot import _snapshot
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.state.mvcc.ranges import RangeOptions
from kvorum.state.mvcc.restore import RowIndex
from kvorum.state.mvcc.slices import Slices
from kvorum.storage.backend.cache import RowCache
from kvorum.storage.backend.flush import CommitFlush
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.snap import ReceivedDatabase, WriteSnap
from tests.member.harness import HEARTBEAT_SECONDS, Cluster, Machine, equal

KEYS = 600
ALL = RangeOptions(b"\0", b"\0")


def lagging(**options: Any) -> tuple[Cluster, Machine, Machine]:
    """Return a cluster, its leader, and a follower that needs a snapshot when it is healed."""
    cluster = Cluster(3, snapshot_entries=50, catch_up_entries=10, **options)
    leader, late = cluster.leader(), cluster.follower()
    body = LeaseGrantRequest(ID=7, TTL=1000).SerializeToString()
    cluster.success(leader, leader.propose(requests.LEASE_GRANT, body))
    for number in range(KEYS):
        leader.put(b"%04d" % number, b"before", lease=7 * (number % 2))
    cluster.pass_time(1.0)
    assert equal(cluster)
    cluster.isolate(late)
    for number in range(0, 2 * KEYS, 3):
        leader.put(b"%04d" % number, b"after")
    leader.delete(b"0001", b"0003")
    cluster.pass_time(1.0)
    assert leader.running.replica.storage.first_index() > late.running.state.applied + 1
    return cluster, leader, late


def test_the_helper_starts_when_a_peer_will_need_an_image() -> None:
    cluster = Cluster(3, snapshot_entries=50, catch_up_entries=10)
    leader, late = cluster.leader(), cluster.follower()
    started: list[Machine] = []

    def noted(machine: Machine, run: Callable[[Job], None]) -> Callable[[Job], None]:
        def run_job(job: Job) -> None:
            if job.executor is ExecutorKind.HELPER and isinstance(job.work, Nothing):
                started.append(machine)
            run(job)

        return run_job

    for machine in cluster:
        machine.run_job = noted(machine, machine.run_job)  # type: ignore[assignment, method-assign]
    for number in range(KEYS):
        leader.put(b"%04d" % number, b"all have it")
        if number % 20 == 0:
            cluster.pass_time(0.2)
    cluster.wait(lambda: equal(cluster))
    assert started == []
    cluster.isolate(late)
    for number in range(KEYS):
        leader.put(b"%04d" % number, b"one lacks it")
        if number % 20 == 0:
            cluster.pass_time(0.2)
    assert started == [leader]


def test_what_is_written_while_an_image_is_made_needs_no_second_one() -> None:
    cluster, leader, _ = lagging()
    leader.held.add(ExecutorKind.HELPER)
    cluster.heal()
    cluster.wait(lambda: leader.running.replica.snapshots.building)
    kept_from = leader.running.replica.storage.first_index()
    for number in range(KEYS):
        leader.put(b"%04d" % number, b"meanwhile")
        if number % 20 == 0:
            cluster.pass_time(0.2)
    assert leader.running.replica.storage.first_index() == kept_from
    leader.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert len([job for job in leader.jobs_run if isinstance(job.work, BuildImage)]) == 1


def install(cluster: Cluster, late: Machine) -> None:
    store = late.running.state.store
    cluster.heal()
    cluster.wait(lambda: equal(cluster))
    assert late.running.state.store is not store


def ended(steps: Generator[Any, Any, Any], answer: object = None) -> Any:
    """Drive steps to their end and return their value."""
    try:
        while True:
            steps.send(answer)
            answer = None
    except StopIteration as end:
        return end.value


Begin = Callable[[Machine], Generator[Any, Any, Any] | None]


def stream(machine: Machine) -> Steps:
    return _range_stream(
        machine.running, MEMBER, range_of(pb.RangeRequest(key=b"\0", range_end=b"\0"))
    )


def queue(_machine: Machine) -> Steps:
    """Read a queue, whose oldest key is found by looking at all of them."""
    return answer_call(_leader(LeaderRequest(name=b"q")))


def observation(machine: Machine) -> Steps:
    return _observe(machine.running, b"q")


def comparison(machine: Machine) -> None:
    everything = pb.RangeRequest(key=b"\0", range_end=b"\0")
    machine.read_txn(pb.TxnRequest(success=[pb.RequestOp(request_range=everything)]))


def listing(machine: Machine) -> None:
    machine.running.replica.read(1, MEMBER, _listed, None, linearizable=False)


def health(machine: Machine) -> Steps:
    failure = yield ReadIndex()
    assert failure is None
    machine.running.state.store.range(ALL._replace(limit=1))
    return b""


def downgrade(machine: Machine) -> Steps:
    request = pb.DowngradeRequest(action=pb.DowngradeRequest.VALIDATE, version="3.6")
    return _downgrade(machine.running, request)


def compaction(machine: Machine) -> Steps:
    return _compact_physically(machine.running, pb.CompactionRequest(revision=300))


def renewed(machine: Machine) -> Steps:
    result = yield from renew(machine.running, MEMBER, 7)
    return b"%d" % result if isinstance(result, int) else result


PROCEDURES: list[Begin] = [
    stream, queue, observation, comparison, listing, health, downgrade, compaction, renewed,
    lambda machine: _hash(machine.running),
    lambda machine: _hash_kv(machine.running, 0),
    lambda machine: _snapshot(machine.running, "/data/member/snap/tmp.snapshot.1"),
    lambda machine: _defragment(machine.running),
]  # fmt: skip


def turn_once(cluster: Cluster) -> None:
    for machine in cluster:
        machine.turn()
    cluster.deliver()


@pytest.mark.parametrize("begin", PROCEDURES)
def test_a_snapshot_comes_amid_work(begin: Begin) -> None:
    """Calls end well, wherever they are when another state replaces the one they read."""
    options = {
        "snapshot_entries": 20,
        "catch_up_entries": 5,
        "request_bytes_max": 3000,
        "limits": WorkLimits(slice_keys=2, lease_slice_items=2),
    }
    for turns in (3, 8, 20):
        cluster = Cluster(3, **options)
        leader, late = cluster.leader(), cluster.follower()
        body = LeaseGrantRequest(ID=7, TTL=1000).SerializeToString()
        cluster.success(leader, leader.propose(requests.LEASE_GRANT, body))
        for number in range(60):
            leader.put(b"q/%02d" % number, b"before")
        cluster.pass_time(1.0)
        store = late.running.state.store
        cluster.slices = 1
        steps = begin(late)
        call = None if steps is None else late.start_steps(steps)
        for _ in range(turns):
            turn_once(cluster)
        # The follower stands still there, while the others go on without it.
        cluster.slices = 0
        late.is_paused = True
        cluster.isolate(late)
        for number in range(0, 60, 3):
            leader.put(b"q/%02d" % number, b"after")
        leader.propose(requests.COMPACTION, pb.CompactionRequest(revision=20).SerializeToString())
        for number in range(40):
            cluster.success(leader, leader.put(b"%02d" % number))
        cluster.pass_time(1.0)
        assert leader.running.replica.storage.first_index() > late.running.state.applied + 1
        late.unread.clear()
        # From now on it reads from the file.
        late.running.state.backend._cache = RowCache(0, 0)
        cluster.heal()
        cluster.slices = 1
        late.is_paused = False
        while late.running.state.store is store:
            cluster.now += HEARTBEAT_SECONDS
            turn_once(cluster)
        cluster.slices = 0
        if begin is not observation and call is not None:
            cluster.answer(late, call)
        cluster.success(late, late.range(b"q/00"))
        cluster.success(leader, leader.put(b"end"))


class Noting:
    """How far an image's rows are noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_under_way = self.has_ended = False
        monkeypatch.setattr(installing, "note_image", self._note)

    def _note(self, *arguments: Any) -> Slices[RowIndex | None]:
        self.is_under_way = True
        noted = yield from note_image(*arguments)
        self.is_under_way = False
        self.has_ended = noted is not None
        return noted


def test_rows_are_noted_while_the_helper_works(monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting(monkeypatch)
    cluster, _, late = lagging()
    late.held.add(ExecutorKind.HELPER)
    store = late.running.state.store
    cluster.heal()
    cluster.wait(lambda: noting.has_ended)
    cluster.pass_time(1.0)
    assert late.running.state.store is store
    assert late.running.is_installing
    late.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert late.running.state.store is not store
    assert late.running.replica.installation is None


def compact(leader: Machine) -> int:
    body = pb.CompactionRequest(revision=leader.running.state.store.revision).SerializeToString()
    return leader.propose(requests.COMPACTION, body)


def test_an_image_that_comes_again_is_not_mixed_with_the_one_being_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Images at one index differ in how far a compaction got: rows of both would be neither's."""
    noting = Noting(monkeypatch)
    cluster, leader, late = lagging()
    for _ in range(2):
        cluster.success(leader, leader.put(b"key"))
    # The compaction waits for its hash.
    leader.held.add(ExecutorKind.HELPER)
    cluster.success(leader, compact(leader))
    cluster.pass_time(1.0)
    assert leader.running.state.store.compaction.is_pending
    build = BuildImage.of(
        leader.running.state.backend.directory, "/data/member/snap/tmp.early", PRODUCTION
    )
    index = build.run(leader.files, leader.environments).index
    early = read_file(leader.files, build.path)
    leader.held.clear()
    cluster.pass_time(1.0)
    assert not leader.running.state.store.compaction.is_pending

    late.held.add(ExecutorKind.HELPER)
    cluster.heal()
    cluster.wait(lambda: noting.has_ended)
    again = ReceivedDatabase(late.files, late.running.replica.snap_directory, index)
    again.write(early)
    again.finish()
    late.held.clear()
    cluster.wait(lambda: not late.running.is_installing)
    assert late.running.replica.snapshots.index == index

    cluster.success(leader, leader.delete(b"key"))
    cluster.success(leader, leader.put(b"other"))
    cluster.success(leader, compact(leader))
    cluster.pass_time(1.0)
    late.kill()
    late.start()
    cluster.wait(lambda: late.running.state.applied == leader.running.state.applied)
    # The row that only one of the images has would be the deleted key's newest.
    assert late.running.state.store.range(RangeOptions(b"key", b"")).count == 0
    assert late.running.state.store.range(ALL) == leader.running.state.store.range(ALL)
    assert equal(cluster)


def test_a_member_is_published_as_soon_as_a_snapshot_is_installed() -> None:
    # It lacks more entries, so it refuses requests until the snapshot is installed.
    cluster, _, late = lagging(unapplied_entries_max=100)
    late.kill()
    late.start()
    store = late.running.state.store
    cluster.heal()
    cluster.wait(lambda: late.running.state.store is not store)
    # No time has passed since: it need not have tried again later.
    assert late.running.is_published


@pytest.mark.parametrize("revision", [0, 300])
def test_a_hash_is_computed_anew(revision: int) -> None:
    cluster, leader, late = lagging()
    steps = hash_kv(late.running, revision)
    asked = next(steps)
    assert isinstance(asked, RunJob) and asked.on_end is not None
    install(cluster, late)
    asked.on_end()
    again = steps.send(12345)
    assert isinstance(again, RunJob)
    value = again.work.run(late.files, late.environments)
    found = ended(steps, value)
    other = hash_kv(leader.running, revision)
    wait = next(other)
    assert isinstance(wait, RunJob)
    assert found.found == ended(other, wait.work.run(leader.files, leader.environments)).found


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_is_installed_after_the_file_of_a_defragmentation_was_written(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same number: what is written later may not be what nobody needs any more."""
    monkeypatch.setattr(installing, "is_copy", lambda *_: True)
    cluster, _, late = lagging()
    late.held.add(ExecutorKind.HELPER)
    call = late.start_steps(_defragment(late.running))
    cluster.wait(lambda: late.running.state.backend.is_defragmenting)
    store = late.running.state.store
    cluster.heal()
    cluster.wait(lambda: late.running.is_installing)
    cluster.pass_time(1.0)
    assert late.running.state.store is store

    def before(call: DiskCall) -> None:
        # The file of the defragmentation is the first that is opened now.
        late.files.before = None
        if fails:
            raise OSError(f"{call.path} cannot be written")

    late.files.before = before
    late.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert late.running.state.store is not store
    assert cluster.answer(late, call) == b""
    late.kill()
    late.start()
    cluster.wait(lambda: equal(cluster))


@pytest.mark.parametrize("fails", [False, True])
def test_a_defragmentation_ends(fails: bool) -> None:
    cluster, _, late = lagging()
    member = late.running
    backend, before = member.state.backend, log_lines.log_defragmentation_start(member.replica)
    steps = _run_defragmentation(member, backend, backend.defragment(), before)
    assert isinstance(next(steps), RunJob)
    install(cluster, late)
    with pytest.raises(StopIteration) as end:
        steps.throw(OSError("gone")) if fails else steps.send(None)
    assert end.value.value == b""
    assert not late.running.state.backend.is_defragmenting


def test_others_are_heard_while_a_snapshot_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting(monkeypatch)
    cluster, leader, late = lagging()
    member = late.running
    term = leader.running.term
    cluster.heal()
    cluster.slices = 1
    turns = 0
    turn: Callable[[], bool] = late.turn

    def counted() -> bool:
        nonlocal turns
        turns += noting.is_under_way
        return turn()

    late.turn = counted  # type: ignore[method-assign]
    cluster.wait(lambda: equal(cluster))
    assert turns > 5
    assert leader.running.term == term
    assert member.state.lessor.key_count(7) == leader.running.state.lessor.key_count(7) > 0
    cluster.slices = 0
    everything = member.state.store.range(ALL)
    assert everything == leader.running.state.store.range(ALL)
    cluster.success(late, late.put(b"0001"))


def test_whoever_waits_for_the_old_state_is_told() -> None:
    cluster, _, late = lagging()
    member = late.running
    store, index = member.state.store, member.state.applied + 10

    def flushed() -> Steps:
        yield FlushedTo(index)
        assert member.state.store is not store and member.state.backend.durable_index >= index
        return b"durable"

    def signalled(signal: Signal) -> Steps:
        yield Signalled(signal)
        return b"told" if member.state.store is not store else b"too early"

    waiting = late.start_steps(flushed())
    signals = [signal for signal in Signal if signal is not Signal.LEADER]
    calls = [late.start_steps(signalled(signal)) for signal in signals]
    cluster.settle()
    cluster.heal()
    cluster.wait(lambda: member.state.store is not store)
    # Nothing was written since that could have been flushed, and no time has passed.
    assert late.replies[waiting] == b"durable"
    assert [late.replies[call] for call in calls] == [b"told"] * len(calls)


def test_a_batch_on_its_way_is_waited_for() -> None:
    cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5)
    leader, late = cluster.leader(), cluster.follower()
    member = late.running
    late.held.add(ExecutorKind.FLUSHER)
    for number in range(20):
        cluster.success(leader, leader.put(b"%02d" % number))
    cluster.pass_time(1.0)
    taken = {each.index for each in member.replica.snapshots.taken}
    assert member.replica.snapshots.sealed is not None and taken
    cluster.isolate(late)
    for number in range(40):
        cluster.success(leader, leader.put(b"%02d" % number))
    cluster.pass_time(1.0)
    cluster.heal()
    cluster.wait(lambda: member.is_installing)
    cluster.pass_time(1.0)
    late.jobs_run.clear()
    flusher = late.jobs[ExecutorKind.FLUSHER]
    while flusher:
        late.run_job(flusher.popleft())
        late.turn()
    late.held.clear()
    cluster.wait(lambda: equal(cluster))
    works = [job.work for job in late.jobs_run]
    kinds = [type(work) for work in works]
    assert kinds.index(CommitFlush) < kinds.index(InstallImage)
    # The snapshot that was to follow the old batch is not written.
    written = [work.snapshot.index for work in works if isinstance(work, WriteSnap)]
    assert not taken & set(written)


def test_a_flush_that_has_to_wait_for_a_snapshot_wakes_nobody() -> None:
    """Half of an entry is not flushed, and the other half is not applied any more."""
    limits = WorkLimits(slice_keys=2)
    cluster = Cluster(3, snapshot_entries=20, catch_up_entries=5, limits=limits)
    leader, late = cluster.leader(), cluster.follower()
    member, store = late.running, late.running.state.store
    for number in range(KEYS):
        leader.put(b"%04d" % number)
    cluster.pass_time(1.0)
    leader.delete(b"0", b"1")
    cluster.slices = 1
    while member.state.backend.due_at is None:
        turn_once(cluster)
    # The follower stands still in the deletion, while the others go on without it.
    cluster.slices = 0
    late.is_paused = True
    cluster.isolate(late)
    for number in range(40):
        cluster.success(leader, leader.put(b"%02d" % number))
    cluster.pass_time(1.0)
    assert leader.running.replica.storage.first_index() > member.state.applied + 1
    late.unread.clear()
    cluster.heal()
    cluster.slices = 1
    late.is_paused = False
    while member.replica.writer.received is None:
        cluster.now += HEARTBEAT_SECONDS
        turn_once(cluster)
    cluster.slices = 0
    late.held.add(ExecutorKind.LOG)
    assert member.replica.apply_queue.slices is not None
    assert member.state.backend.due_at is not None and member.state.backend.due_at < late.now
    # In which no server may be woken at one moment again and again.
    cluster.pass_time(1.0)
    assert member.replica.apply_queue.slices is not None
    assert not member.is_installing
    late.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert member.state.store is not store


def test_a_member_that_is_closed_amid_an_installation_ends_with_it() -> None:
    cluster, _, late = lagging()
    member, store = late.running, late.running.state.store
    late.held.add(ExecutorKind.HELPER)
    cluster.heal()
    cluster.wait(lambda: member.is_installing)
    member.close()
    cluster.pass_time(1.0)
    assert not member.is_closed
    late.held.clear()
    turns = 0
    while not member.is_closed and turns < 1000:
        late.turn()
        turns += 1
    assert member.is_closed
    assert member.state.store is not store
    late.kill()
    late.start()
    cluster.wait(lambda: equal(cluster))


def test_what_was_replaced_is_freed() -> None:
    cluster, _, late = lagging()
    store, lessor = late.running.state.store, late.running.state.lessor
    install(cluster, late)
    cluster.settle()
    assert not store._index.entries
    assert not lessor._leases
    assert late.running.state.store.key_count > KEYS
