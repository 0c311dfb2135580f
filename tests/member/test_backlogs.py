"""What a member keeps of its log in memory, for others and for itself, is bounded in bytes."""

import pytest

from kvorum.api import errors
from kvorum.api.pb.etcdserverpb import Compare, PutRequest, RequestOp, TxnRequest
from kvorum.member.images import BuildImage
from kvorum.member.jobs import ExecutorKind
from tests.member.harness import Cluster, Machine, equal

VALUE = b"v" * 10_000
CATCH_UP_BYTES = 100_000
HELD_BYTES = 200_000
LOG_BYTES = 400_000
ONE_BYTES = 11_000


def bounded() -> tuple[Cluster, Machine, Machine]:
    cluster = Cluster(
        3,
        catch_up_bytes_max=CATCH_UP_BYTES,
        held_bytes_max=HELD_BYTES,
        log_bytes_max=LOG_BYTES,
    )
    leader, follower = cluster.leader(), cluster.follower()
    cluster.wait(lambda: all(each.running.is_published for each in cluster))
    return cluster, leader, follower


def write(cluster: Cluster, leader: Machine, count: int) -> None:
    """Put large values, with time for a flush after each."""
    for number in range(count):
        cluster.success(leader, leader.put(b"%d" % number, VALUE))
        cluster.pass_time(0.2)


def kept(machine: Machine) -> int:
    return machine.running.replica.storage.memory_bytes


def images(machine: Machine) -> int:
    return len([job for job in machine.jobs_run if isinstance(job.work, BuildImage)])


def test_what_is_kept_for_followers_is_bounded() -> None:
    cluster, leader, late = bounded()
    write(cluster, leader, 5)
    cluster.isolate(late)
    write(cluster, leader, 4)
    cluster.heal()
    cluster.wait(lambda: equal(cluster))
    assert images(leader) == 0
    cluster.isolate(late)
    for _ in range(5):
        write(cluster, leader, 4)
        assert kept(leader) <= CATCH_UP_BYTES + ONE_BYTES
    # Nor does it keep much less than it may.
    assert kept(leader) > CATCH_UP_BYTES // 2
    cluster.heal()
    cluster.wait(lambda: equal(cluster))
    assert images(leader) == 1


@pytest.mark.parametrize("count", [8, 30])
def test_what_is_kept_while_an_image_is_made_is_bounded(count: int) -> None:
    cluster, leader, late = bounded()
    cluster.isolate(late)
    write(cluster, leader, 15)
    leader.held.add(ExecutorKind.HELPER)
    cluster.heal()
    cluster.wait(lambda: leader.running.replica.snapshots.building)
    # The image holds what the backend has now, and is ready only after more was written.
    leader.run_job(leader.jobs[ExecutorKind.HELPER].popleft())
    built = leader.ended.pop()
    write(cluster, leader, count)
    assert CATCH_UP_BYTES < kept(leader) <= HELD_BYTES + ONE_BYTES
    leader.held.clear()
    leader.ended.append(built)
    cluster.wait(lambda: equal(cluster))
    # A second image brings what was too much to hold.
    assert images(leader) == (1 if count == 8 else 2)


def test_a_follower_takes_no_more_than_it_can_keep() -> None:
    cluster, leader, late = bounded()
    late.held.add(ExecutorKind.FLUSHER)
    write(cluster, leader, 60)
    assert LOG_BYTES < kept(late) <= LOG_BYTES + ONE_BYTES
    term = leader.running.term
    late.held.clear()
    cluster.wait(lambda: equal(cluster))
    assert leader.running.term == term
    write(cluster, leader, 1)
    assert kept(late) <= CATCH_UP_BYTES + ONE_BYTES


def test_proposals_are_refused_while_too_much_is_kept() -> None:
    cluster, leader, _ = bounded()
    leader.held.add(ExecutorKind.FLUSHER)
    calls = []
    for number in range(60):
        calls.append(leader.put(b"%d" % number, VALUE))
        cluster.pass_time(0.1)
    assert leader.replies[calls[-1]] == errors.REQUEST_TOO_MANY_REQUESTS
    assert LOG_BYTES < kept(leader) <= LOG_BYTES + 2 * ONE_BYTES
    leader.held.clear()
    cluster.pass_time(0.2)
    write(cluster, leader, 1)
    cluster.wait(lambda: equal(cluster))


def test_a_start_keeps_no_more_of_its_log_than_it_may() -> None:
    cluster = Cluster(
        1,
        catch_up_bytes_max=CATCH_UP_BYTES,
        held_bytes_max=HELD_BYTES,
        log_bytes_max=LOG_BYTES,
    )
    alone = cluster.leader()
    write(cluster, alone, 60)
    # All of it is durable, and no snapshot was due: the log on the disk has everything.
    alone.kill()
    alone.start()
    assert kept(alone) <= CATCH_UP_BYTES + ONE_BYTES
    cluster.leader()
    write(cluster, alone, 1)


def test_entries_without_an_effect_do_not_fill_the_memory_for_ever() -> None:
    cluster, leader, _ = bounded()
    refused = TxnRequest(
        compare=[Compare(key=b"k", target=Compare.VERSION, result=Compare.GREATER, version=5)],
        success=[RequestOp(request_put=PutRequest(key=b"k", value=VALUE))],
    )
    for _ in range(60):
        cluster.success(leader, leader.txn(refused))
        cluster.pass_time(0.2)
    write(cluster, leader, 1)
    cluster.wait(lambda: equal(cluster))
