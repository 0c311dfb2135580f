"""A quota of thirteen pages, which a real etcd can work with: filled, compacted, and used again."""

from mmap import PAGESIZE
from pathlib import Path
from typing import Any

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle, running_oracle

QUOTA = 13 * PAGESIZE
SMALL, LARGE = bytes(64), bytes(PAGESIZE)


def put(server: Harness | Oracle, key: bytes, value: bytes) -> Any:
    answer = server.ask("KV/Put", pb.PutRequest(key=key, value=value))
    if isinstance(server, Harness):
        server.pass_time(0.2)  # for a flush
    return answer


def status(server: Harness | Oracle) -> pb.StatusResponse:
    found = server.ask("Maintenance/Status", pb.StatusRequest())
    assert isinstance(found, pb.StatusResponse)
    return found


def fill_and_recover(server: Harness | Oracle) -> tuple[int, int]:
    """Return the size of the empty database, and how many large puts it has taken."""
    empty = status(server).dbSize
    assert not isinstance(put(server, b"1st", SMALL), Status)
    taken = 0
    while (answer := put(server, b"2nd", LARGE)) != errors.NO_SPACE:
        assert not isinstance(answer, Status)
        taken += 1
    assert put(server, b"3rd", SMALL) == errors.NO_SPACE
    header = status(server).header
    # Ours waits for the compaction when it defragments; etcd may copy what is about to be deleted.
    physical = isinstance(server, Oracle)
    server.ask("KV/Compact", pb.CompactionRequest(revision=header.revision, physical=physical))
    server.ask("Maintenance/Defragment", pb.DefragmentRequest())
    disarm = pb.AlarmRequest(
        action=pb.AlarmRequest.DEACTIVATE, memberID=header.member_id, alarm=pb.NOSPACE
    )
    server.ask("Maintenance/Alarm", disarm)
    assert not isinstance(put(server, b"4th", SMALL), Status)
    return empty, taken


def test_a_small_quota_holds_about_as_much_as_in_etcd(tmp_path: Path) -> None:
    with running_oracle(tmp_path / "etcd", f"--quota-backend-bytes={QUOTA}") as etcd:
        # It takes three if it commits between any two, more if not.
        their_size, their_puts = fill_and_recover(etcd)
    files = RealFiles()
    directory = str(tmp_path / "ours")
    files.make_directory(directory)
    harness = Harness(files, LmdbEnvironments(), f"{directory}/member", quota_bytes=QUOTA)
    harness.pass_time(5.0)
    size, puts = fill_and_recover(harness)
    assert abs(size - their_size) <= 3 * PAGESIZE
    assert 2 <= puts <= 4
    assert their_puts >= 2
    for number in range(20):
        assert not isinstance(put(harness, b"%d" % number, SMALL), Status), number
    harness.end()
