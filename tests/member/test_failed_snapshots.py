"""A received snapshot whose file cannot be written: what would follow it is not written either."""

import errno

import pytest

from kvorum.api.pb.etcdserverpb import RangeResponse
from kvorum.member.errors import MemberStopped
from kvorum.member.jobs import ExecutorKind
from kvorum.raft.entries import Entry
from kvorum.raft.messages import Snapshot
from kvorum.storage.files.interface import write_file
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.snap import WriteSnap, database_path
from kvorum.storage.wal import (
    AppendLog,
    CorruptLogError,
    SnapshotRecord,
    open_log,
    read_log,
    valid_snapshots,
)
from tests.member.harness import SEGMENT_BYTES, Cluster, Machine

KEYS = [b"%02d" % number for number in range(40)]


class Stopped:
    """A follower that was behind, and could not write the file of the snapshot it was sent."""

    def __init__(self) -> None:
        self.cluster = cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5)
        leader = cluster.leader()
        self.machine = machine = cluster.follower()
        cluster.pass_time(1.0)
        cluster.isolate(machine)
        for key in KEYS:
            cluster.success(leader, leader.put(key))
        cluster.pass_time(1.0)

        def before(call: DiskCall) -> None:
            if call.name == "pwrite" and call.path.endswith(".snap.tmp"):
                raise OSError(errno.ENOSPC, "No space left on device", call.path)

        machine.files.before = before
        cluster.heal()
        with pytest.raises(MemberStopped, match="No space left"):
            cluster.pass_time(5.0)
        machine.files.before = None
        machine.kill()
        self.wal = f"{machine.config.directory}/wal"

    def snapshot(self) -> Snapshot:
        """Return the snapshot that it was sent, with the members as the leader has them."""
        machine = self.machine
        names = machine.files.list(f"{machine.config.directory}/snap")
        (index,) = [int(name[:16], 16) for name in names if name.endswith(".snap.db")]
        state = read_log(machine.files, self.wal, SnapshotRecord()).state
        voters = self.cluster.leader().running.conf_state
        return Snapshot(index, state.term, voters, b"{}")

    def record(self, behind: list[Entry]) -> None:
        """Write what comes after the file all the same, and then the entries given."""
        snapshot, files = self.snapshot(), self.machine.files
        log, content = open_log(files, self.wal, SnapshotRecord(), SEGMENT_BYTES)
        state = content.state._replace(commit=snapshot.index)
        jobs = [
            log.save_snapshot(snapshot.index, snapshot.term, snapshot.conf_state),
            log.save(state, []),
        ]
        if behind:
            jobs.append(log.save(None, behind))
        for job in jobs:
            assert job is not None
            job.run(files)
        log.close().run(files)

    def restarted(self) -> Machine:
        self.machine.start()
        member = self.machine.running
        leader = self.cluster.leader()
        self.cluster.wait(lambda: member.state.applied == leader.running.state.applied)
        return self.machine


def keys(cluster: Cluster, machine: Machine) -> list[bytes]:
    found = cluster.success(machine, machine.range(b"\0", b"\0"))
    return [kv.key for kv in RangeResponse.FromString(found).kvs]


def test_without_its_file_a_snapshot_is_not_recorded() -> None:
    stopped = Stopped()
    machine = stopped.machine
    index = stopped.snapshot().index
    assert all(each.index < index for each in valid_snapshots(machine.files, stopped.wal))
    content = read_log(machine.files, stopped.wal, SnapshotRecord())
    assert content.state.commit < index
    assert keys(stopped.cluster, stopped.restarted()) == KEYS


def test_a_start_keeps_no_image_that_was_not_installed() -> None:
    stopped = Stopped()
    image = database_path(f"{stopped.machine.config.directory}/snap", stopped.snapshot().index)
    write_file(stopped.machine.files, image, b"of another cluster")
    assert keys(stopped.cluster, stopped.restarted()) == KEYS


def test_each_step_of_a_received_snapshot_waits_for_the_one_before() -> None:
    cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5)
    leader, machine = cluster.leader(), cluster.follower()
    cluster.isolate(machine)
    for key in KEYS:
        cluster.success(leader, leader.put(key))
    cluster.pass_time(1.0)
    waiting = machine.jobs[ExecutorKind.LOG]
    machine.held.add(ExecutorKind.LOG)
    cluster.heal()
    cluster.wait(lambda: any(isinstance(job.work, WriteSnap) for job in waiting))
    while not isinstance(waiting[0].work, WriteSnap):
        machine.run_job(waiting.popleft())
    for expected in (WriteSnap, AppendLog, AppendLog):
        cluster.pass_time(0.5)
        assert not machine.running.is_installing
        assert [type(job.work) for job in waiting] == [expected]
        machine.run_job(waiting.popleft())
    machine.turn()
    assert machine.running.is_installing


def test_a_record_without_its_file_and_its_backend_is_withdrawn() -> None:
    stopped = Stopped()
    before = read_log(stopped.machine.files, stopped.wal, SnapshotRecord())
    stopped.record([])
    with pytest.raises(CorruptLogError, match="was committed"):
        read_log(stopped.machine.files, stopped.wal, SnapshotRecord())
    machine = stopped.restarted()
    assert keys(stopped.cluster, machine) == KEYS
    # Power cuts and further starts find a log that is whole.
    machine.lose_power(lambda: False)
    assert keys(stopped.cluster, stopped.restarted()) == KEYS
    assert machine.running.state.applied > before.state.commit


def test_a_log_that_goes_on_behind_such_a_record_is_refused() -> None:
    stopped = Stopped()
    snapshot = stopped.snapshot()
    stopped.record([Entry(0, snapshot.term, snapshot.index + 1, b"")])
    with pytest.raises(CorruptLogError, match="goes on behind the record of the snapshot"):
        stopped.machine.start()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_record_with_its_file_is_installed_and_without_it_withdrawn(*, is_whole: bool) -> None:
    """The process ended before the installation; the file may have been lost since."""
    cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5)
    leader, machine = cluster.leader(), cluster.follower()
    cluster.isolate(machine)
    for key in KEYS:
        cluster.success(leader, leader.put(key))
    cluster.pass_time(1.0)
    machine.held.add(ExecutorKind.FLUSHER)
    cluster.heal()
    snap = f"{machine.config.directory}/snap"
    cluster.wait(lambda: machine.running.is_installing)
    machine.kill()
    machine.held.clear()
    (name,) = [name for name in machine.files.list(snap) if name.endswith(".snap")]
    if not is_whole:
        machine.files.flip(f"{snap}/{name}", 20, 1)
    machine.start()
    leader = cluster.leader()
    assert (machine.running.state.applied > 30) == is_whole
    cluster.wait(lambda: machine.running.state.applied == leader.running.state.applied)
    assert keys(cluster, machine) == KEYS
