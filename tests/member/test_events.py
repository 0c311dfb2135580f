"""Procedures are resumed by what they wait for, and not before."""

import errno
from collections.abc import Callable

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.hashing import hash_kv
from kvorum.member.jobs import ExecutorKind, Job
from kvorum.member.leadership_transfer import transfer_leadership
from kvorum.member.leases import applied_in_time
from kvorum.member.member import Member
from kvorum.member.procedures import Exclusive
from kvorum.member.waits import FlushedTo, Signal, Signalled, Steps
from kvorum.server.rpc.kv import _compact_physically
from kvorum.server.rpc.maintenance import _defragment, _hash, _move_leader
from kvorum.server.rpc.snapshot import IMAGES_MAX, SnapshotService
from kvorum.state.apply.callers import MEMBER
from kvorum.storage.backend import CommitFlush, RemoveDatabase, StageFlush
from kvorum.storage.files.memory import DiskCall
from tests.member.harness import Cluster


def counted(steps: Steps, resumed: list[object]) -> Steps:
    """Note every wait that has ended."""
    answer = None
    while True:
        try:
            wait = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = yield wait
        resumed.append(wait)


def hashed(member: Member) -> Steps:
    found = yield from hash_kv(member, 0)
    return b"%d" % found.found.hash


def compaction(member: Member) -> list[Steps]:
    return [_compact_physically(member, pb.CompactionRequest(revision=10, physical=True))]


def snapshots(member: Member) -> list[Steps]:
    served = SnapshotService(member)
    begun = [served.begin(MEMBER, b"") for _ in range(IMAGES_MAX + 1)]
    return [steps for steps in begun if not isinstance(steps, tuple)]


Begin = Callable[[Member], list[Steps]]


@pytest.mark.parametrize(
    ("place", "begin"),
    [
        (ExecutorKind.HELPER, compaction),
        (ExecutorKind.HELPER, snapshots),
        (ExecutorKind.HELPER, lambda member: [_defragment(member), _defragment(member)]),
        (ExecutorKind.HELPER, lambda member: [hashed(member), hashed(member)]),
        (ExecutorKind.FLUSHER, compaction),
        (ExecutorKind.FLUSHER, lambda member: [hashed(member)]),
        (ExecutorKind.FLUSHER, lambda member: [_hash(member)]),
        (ExecutorKind.FLUSHER, lambda member: [_defragment(member)]),
    ],
)
def test_who_waits_for_a_job_of_others_is_not_resumed_before(
    place: ExecutorKind, begin: Begin
) -> None:
    cluster = Cluster(1, flush_seconds=1000.0)
    machine = cluster.leader()
    for number in range(20):
        cluster.success(machine, machine.put(b"%d" % number))
    machine.held.add(place)
    resumed: list[object] = []
    calls = [machine.start_steps(counted(steps, resumed)) for steps in begin(machine.running)]
    cluster.pass_time(0.5)
    before = len(resumed)
    cluster.pass_time(1.0)
    assert len(resumed) == before
    assert not machine.replies.keys() & set(calls)
    machine.held.clear()
    for call in calls:
        cluster.answer(machine, call)


def test_a_defragmentation_that_fails_lets_the_next_one_begin() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def refuse(call: DiskCall) -> None:
        if "backend/backend.2" in call.path:
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    machine.files.before = refuse
    first, second = [machine.start_steps(_defragment(machine.running)) for _ in range(2)]
    assert isinstance(cluster.answer(machine, first), Status)
    assert cluster.answer(machine, second) == b""


def test_a_defragmentation_goes_on_without_its_call() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    member = machine.running
    machine.held.add(ExecutorKind.HELPER)
    first, second = [machine.start_steps(_defragment(member)) for _ in range(2)]
    cluster.settle()
    assert member.state.backend.is_defragmenting
    member.cancel(first)
    machine.held.clear()
    assert cluster.answer(machine, second) == b""
    assert not member.state.backend.is_defragmenting and first not in machine.replies


def test_who_waits_for_a_defragmentation_does_not_wait_for_the_next() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def hold_the_next(job: Job) -> None:
        if job.executor is ExecutorKind.HELPER:
            machine.held.add(ExecutorKind.HELPER)

    machine.on_job = hold_the_next
    first, second = [machine.start_steps(_defragment(machine.running)) for _ in range(2)]
    assert cluster.answer(machine, first) == b""
    assert machine.running.state.backend.is_defragmenting and second not in machine.replies
    machine.on_job = None
    machine.held.clear()
    assert cluster.answer(machine, second) == b""


def test_the_loop_does_not_wait_while_a_replaced_file_is_removed() -> None:
    """To remove a large one takes as long as many turns, and a flush comes after it."""
    cluster = Cluster(1)
    machine = cluster.leader()
    staged: list[bool] = []

    def note(job: Job) -> None:
        if isinstance(job.work, StageFlush):
            staged.append(job.is_awaited)
        elif isinstance(job.work, CommitFlush) and machine.running.state.backend.is_defragmenting:
            machine.held.add(ExecutorKind.FLUSHER)

    machine.on_job = note
    call = machine.start_steps(_defragment(machine.running))
    assert cluster.answer(machine, call) == b""
    (removal,) = machine.jobs[ExecutorKind.FLUSHER]
    assert isinstance(removal.work, RemoveDatabase) and all(staged)
    cluster.success(machine, machine.put(b"k"))
    cluster.wait(lambda: len(machine.jobs[ExecutorKind.FLUSHER]) == 2)
    machine.held.clear()
    cluster.wait(lambda: not machine.running.state.backend.is_flushing)
    assert not staged[-1]
    cluster.success(machine, machine.put(b"k"))
    before = len(staged)
    cluster.wait(lambda: len(staged) > before)
    assert staged[-1]


def test_a_flush_is_begun_for_those_who_wait_for_it() -> None:
    cluster = Cluster(1, flush_seconds=1000.0)
    machine = cluster.leader()
    member = machine.running
    cluster.success(machine, machine.put(b"key"))

    def flushed(index: int) -> Steps:
        yield FlushedTo(index)
        return b"%d" % (member.state.backend.durable_index >= index)

    applied = member.state.applied
    assert member.state.backend.durable_index < applied
    current, later = [machine.start_steps(flushed(applied + more)) for more in (0, 2)]
    # No time passes.
    cluster.settle()
    assert machine.replies[current] == b"1"
    machine.put(b"key")
    cluster.settle()
    assert later not in machine.replies
    machine.put(b"key")
    cluster.settle()
    assert machine.replies[later] == b"1"
    # What is durable already needs no flush.
    past = machine.start_steps(flushed(applied))
    cluster.settle()
    assert machine.replies[past] == b"1"


def test_a_change_of_the_leader_is_heard_at_once() -> None:
    cluster = Cluster(3)
    leader, target = cluster.leader(), cluster.follower()
    moved = leader.start_steps(_move_leader(leader.running, target.running.id))
    cluster.settle()
    assert leader.replies[moved] == b""
    transfer_leadership(target.running)
    cluster.settle()
    assert not target.running.procedures.is_running(Exclusive.TRANSFER)
    assert not target.running.is_leader


def test_what_is_applied_is_waited_for_until_it_is_or_until_the_time_is_over() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    member = machine.running

    def caught_up() -> Steps:
        is_so = yield from applied_in_time(member)
        return b"%d" % is_so

    def begun() -> int:
        """Begin to wait for an entry that is committed and not applied."""
        member.replica.writer.is_keeping_commit = True
        machine.put(b"key")
        cluster.settle()
        assert member.state.applied < member.committed
        return machine.start_steps(caught_up())

    call = begun()
    cluster.settle()
    assert call not in machine.replies
    member.replica.writer.is_keeping_commit = False
    cluster.settle()
    assert machine.replies[call] == b"1"
    assert cluster.answer(machine, begun(), 2.0) == b"0"


@pytest.mark.parametrize("signal", Signal)
def test_a_signal_resumes_those_who_wait_for_it_once(signal: Signal) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    ended: list[str] = []

    def waiting(name: str, seconds: float) -> Steps:
        yield Signalled(signal, machine.now + seconds)
        ended.append(name)
        return None

    machine.start_steps(waiting("signalled", 3.0))
    machine.start_steps(waiting("out of time", 1.0))
    gone = machine.start_steps(waiting("gone", 2.0))
    cluster.pass_time(1.5)
    assert ended == ["out of time"]
    machine.running.cancel(gone)
    machine.running.procedures.signal(signal)
    cluster.settle()
    assert ended == ["out of time", "signalled"]
    cluster.pass_time(3.0)
    assert len(ended) == 2


def test_nothing_is_left_of_clients_that_give_up() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def waiting() -> Steps:
        yield Signalled(Signal.LEADER)
        return None

    for _ in range(10):
        call = machine.start_steps(waiting())
        machine.turn()
        machine.running.cancel(call)
    assert not machine.running.procedures._signalled[Signal.LEADER]
