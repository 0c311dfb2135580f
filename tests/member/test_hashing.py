"""What the helper is given to hash: where to read, and not the rows that wait for the disk."""

from collections.abc import Callable

import pytest

from kvorum.api.pb.etcdserverpb import CompactionRequest
from kvorum.member.hashing import hash_kv
from kvorum.member.jobs import ExecutorKind, Job
from kvorum.member.waits import Steps
from kvorum.server.rpc.kv import _compact_physically
from kvorum.state.apply import requests
from kvorum.state.mvcc.hashes import HashRows
from tests.member.harness import Cluster, Machine


def busy() -> tuple[Cluster, Machine, list[HashRows]]:
    """Return a member with rows that wait for the disk, and what the helper is given to hash."""
    cluster = Cluster(1, flush_seconds=1000.0)
    machine = cluster.leader()
    for number in range(500):
        machine.put(b"%03d" % number, bytes(1000))
    cluster.settle()
    assert machine.running.state.backend.pending_bytes > 500_000
    given = []

    def note(job: Job) -> None:
        if isinstance(job.work, HashRows):
            given.append(job.work)

    machine.on_job = note
    return cluster, machine, given


def hashed(machine: Machine, revision: int = 0) -> int:
    def steps() -> Steps:
        found = yield from hash_kv(machine.running, revision)
        return b"%d" % found.found.hash

    return machine.start_steps(steps())


def test_a_hash_is_computed_from_the_disk() -> None:
    cluster, machine, given = busy()
    cluster.success(machine, hashed(machine))
    assert [work.pending for work in given] == [{}]


def test_hashes_are_computed_one_after_the_other() -> None:
    cluster, machine, given = busy()
    machine.held.add(ExecutorKind.HELPER)
    calls = [hashed(machine) for _ in range(5)]
    cluster.pass_time(1.0)
    assert (
        len([job for job in machine.jobs[ExecutorKind.HELPER] if isinstance(job.work, HashRows)])
        == 1
    )
    machine.held.clear()
    assert len({cluster.success(machine, call) for call in calls}) == 1
    assert len(given) == 5


def test_who_gives_up_does_not_make_room_for_another() -> None:
    """The helper keeps working: a hundred hashes, each given up, would be a hundred jobs."""
    cluster, machine, given = busy()
    machine.held.add(ExecutorKind.HELPER)
    for _ in range(10):
        call = hashed(machine)
        cluster.pass_time(0.2)
        machine.running.cancel(call)
    assert (
        len([job for job in machine.jobs[ExecutorKind.HELPER] if isinstance(job.work, HashRows)])
        == 1
    )
    # What the helper reads is not compacted meanwhile.
    body = CompactionRequest(revision=400).SerializeToString()
    cluster.success(machine, machine.propose(requests.COMPACTION, body))
    cluster.pass_time(1.0)
    assert not machine.running.state.store.compaction.is_runnable
    machine.held.clear()
    cluster.success(machine, hashed(machine))
    cluster.wait(lambda: not machine.running.state.store.compaction.is_pending)
    assert len(given) == 3


def test_a_compaction_is_hashed_from_the_disk() -> None:
    cluster, machine, given = busy()
    body = CompactionRequest(revision=400).SerializeToString()
    cluster.success(machine, machine.propose(requests.COMPACTION, body))
    cluster.wait(lambda: not machine.running.state.store.compaction.is_pending)
    assert [(work.is_compaction, work.pending) for work in given] == [(True, {})]
    assert machine.running.state.store.compaction.hashes()


@pytest.mark.parametrize("slow", range(3))
def test_two_quick_compactions_leave_the_same_hash_on_a_slower_member(slow: int) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    for number in range(30):
        cluster.success(leader, leader.put(b"%02d" % (number % 10), b"%d" % number))
    machines = list(cluster)
    machines[slow].held.add(ExecutorKind.HELPER)
    for revision in (12, 20):
        body = CompactionRequest(revision=revision).SerializeToString()
        cluster.success(leader, leader.propose(requests.COMPACTION, body))
        quick = [each.running.state.store.compaction for each in machines if not each.held]
        cluster.wait(lambda quick=quick: not any(each.is_pending for each in quick))  # type: ignore[misc]
    assert machines[slow].running.state.store.compaction.is_pending
    calls = [hashed(machine, 20) for machine in machines]
    cluster.settle()
    machines[slow].held.clear()
    found = [cluster.success(*each) for each in zip(machines, calls, strict=True)]
    assert len(set(found)) == 1
    kept = [machine.running.state.store.compaction.hash_of(20) for machine in machines]
    assert [each and b"%d" % each.hash for each in kept] == found


def physically_compacted(machine: Machine, revision: int) -> int:
    request = CompactionRequest(revision=revision, physical=True)
    return machine.start_steps(_compact_physically(machine.running, request))


@pytest.mark.parametrize("ask", [hashed, physically_compacted])
def test_who_waits_for_a_compaction_does_not_wait_for_later_ones(
    ask: Callable[[Machine, int], int],
) -> None:
    cluster, machine, _ = busy()
    first, second = (CompactionRequest(revision=each).SerializeToString() for each in (200, 300))

    def hold(job: Job) -> None:
        """Let the helper hash for the first compaction, and no more."""
        if job.executor is ExecutorKind.HELPER:
            machine.held.add(ExecutorKind.HELPER)

    machine.held.add(ExecutorKind.HELPER)
    cluster.success(machine, machine.propose(requests.COMPACTION, first))
    call = ask(machine, 200)
    cluster.settle()
    cluster.success(machine, machine.propose(requests.COMPACTION, second))
    machine.on_job = hold
    machine.held.clear()
    cluster.answer(machine, call)
    compaction = machine.running.state.store.compaction
    assert compaction.is_done(200) and not compaction.is_done(300)


def test_a_hash_that_waits_for_a_compaction_is_given_up_with_its_client() -> None:
    cluster, machine, given = busy()
    machine.held.add(ExecutorKind.HELPER)
    body = CompactionRequest(revision=400).SerializeToString()
    cluster.success(machine, machine.propose(requests.COMPACTION, body))
    call = hashed(machine, 400)
    cluster.pass_time(1.0)
    machine.running.cancel(call)
    machine.held.clear()
    cluster.wait(lambda: not machine.running.state.store.compaction.is_pending)
    cluster.settle()
    assert len(given) == 1
