"""Old files are removed; what a received snapshot waits for is not old, however many there are."""

from kvorum.member.duties import PURGE_SECONDS
from kvorum.snap import ReceivedDatabase
from tests.member.harness import Cluster


def test_received_databases_are_removed_once_the_backend_is_past_them() -> None:
    cluster = Cluster(1, snapshots_kept=1)
    alone = cluster.leader()
    for number in range(10):
        cluster.success(alone, alone.put(b"%d" % number))
    cluster.pass_time(1.0)
    directory = alone.running.snap_directory
    durable = alone.running.backend.durable_index
    for index in (1, durable - 1, durable + 1000, durable + 2000, durable + 3000):
        received = ReceivedDatabase(alone.files, directory, index)
        received.write(b"image")
        received.finish()
    cluster.pass_time(2 * PURGE_SECONDS)
    left = [name for name in alone.files.list(directory) if name.endswith(".snap.db")]
    # Any of the newer ones may be about to be installed.
    assert left == [f"{durable + each:016x}.snap.db" for each in (1000, 2000, 3000)]
