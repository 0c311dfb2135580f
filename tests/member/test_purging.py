"""What a purge must leave: a snapshot that is still to be installed, and the last that counts."""

from kvorum.member.duties import _purge
from kvorum.storage.files import Purge
from kvorum.storage.files.interface import write_file
from kvorum.storage.snap import database_path
from tests.member.harness import Cluster, Machine


def purged_endings(machine: Machine) -> list[str]:
    """Let the member purge; return which kinds of files it does that for."""
    _purge(machine.running, machine.now)
    jobs = [job.work for job in machine.running.out.jobs]
    return [work.ending for work in jobs if isinstance(work, Purge)]


def test_a_database_that_is_not_installed_yet_is_kept_however_many_follow() -> None:
    cluster = Cluster(1, snapshots_kept=1)
    machine = cluster.leader()
    member, files = machine.running, machine.files
    indexes = [1, member.state.applied, member.state.applied + 10, member.state.applied + 20]
    paths = [database_path(member.replica.snap_directory, index) for index in indexes]
    for path in paths:
        write_file(files, path, b"a database")
    cluster.pass_time(1.0)  # until everything applied is durable
    _purge(member, machine.now)
    cluster.settle()
    assert [files.exists(path) for path in paths] == [False, True, True, True]


def test_a_snapshot_is_not_purged_for_one_that_does_not_count_yet() -> None:
    machine = Cluster(1, snapshots_kept=1).leader()
    assert ".snap" in purged_endings(machine)
    machine.running.out.jobs.clear()
    machine.running.replica.snapshots.writing = True
    assert ".snap" not in purged_endings(machine)
