"""Defragmenting that fails: the operator is told, the member goes on; damage stops the member."""

import errno

import pytest

from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.errors import MemberStopped
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.rpc.table import NUMBERS
from kvorum.storage.backend.defragment import CopyDatabase
from kvorum.storage.backend.errors import CorruptionError
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from tests.server.rpc.harness import Harness


def fresh() -> tuple[MemoryFiles, Harness]:
    files = MemoryFiles()
    files.make_directory("/data")
    harness = Harness(files, MemoryEnvironments(files))
    for number in range(50):
        harness.ask("KV/Put", pb.PutRequest(key=b"k%d" % number, value=b"v"))
    return files, harness


def test_a_disk_without_room_for_the_copy() -> None:
    files, harness = fresh()

    def refuse(call: DiskCall) -> None:
        if "backend/backend.2" in call.path:
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    files.before = refuse
    answer = harness.ask("Maintenance/Defragment", pb.DefragmentRequest())
    assert isinstance(answer, Status)
    assert answer.code is Code.UNKNOWN
    assert "No space left on device" in answer.text
    files.before = None
    harness.ask("KV/Put", pb.PutRequest(key=b"later", value=b"v"))
    done = harness.ask("Maintenance/Defragment", pb.DefragmentRequest())
    assert done == pb.DefragmentResponse()
    found = harness.ask("KV/Range", pb.RangeRequest(key=b"\0", range_end=b"\0"))
    assert found.count == 51


def test_damage_that_the_copy_finds_stops_the_member() -> None:
    files, harness = fresh()

    def find_damage(call: DiskCall) -> None:
        if "backend/backend.2" in call.path:
            raise CorruptionError("backend.1", "revision 2", "its checksum does not fit")

    files.before = find_damage
    with pytest.raises(MemberStopped, match="checksum does not fit"):
        harness.ask("Maintenance/Defragment", pb.DefragmentRequest())


def test_damage_that_a_snapshot_finds_stops_the_member() -> None:
    files, harness = fresh()

    def find_damage(call: DiskCall) -> None:
        if "tmp.snapshot" in call.path:
            raise CorruptionError("backend.1", "revision 2", "its checksum does not fit")

    files.before = find_damage
    stream = harness.open("Maintenance/Snapshot")
    with pytest.raises(MemberStopped, match="checksum does not fit"):
        stream.send(pb.SnapshotRequest())


# gRPC's health service meanwhile.

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
WATCH = 900
"""The number of a call that watches the server's health."""


def health_around(harness: Harness) -> list[bytes]:
    """Return what a watch of the server's health is told of a defragmentation."""
    method = NUMBERS["/grpc.health.v1.Health/Watch"]
    harness.happen((EdgeEventKind.OPENED, WATCH, (method, None)))
    harness.happen((EdgeEventKind.MESSAGE, WATCH, b""))
    harness.happen((EdgeEventKind.HALF_CLOSED, WATCH, None))
    done = harness.ask("Maintenance/Defragment", pb.DefragmentRequest())
    assert done == pb.DefragmentResponse()
    assert harness.ask_bytes("/grpc.health.v1.Health/Check", b"") == SERVING
    return harness.edge.sent[WATCH]


def test_health_says_that_nothing_is_served_if_the_gate_is_open() -> None:
    harness = Harness(stops_for_defragmentation=True)
    assert health_around(harness) == [SERVING, NOT_SERVING, SERVING]


def test_health_says_nothing_of_it_otherwise() -> None:
    assert health_around(Harness()) == [SERVING]


def test_health_is_well_again_after_a_defragmentation_that_failed() -> None:
    harness = Harness(stops_for_defragmentation=True)
    harness.failing = (CopyDatabase,)
    method = NUMBERS["/grpc.health.v1.Health/Watch"]
    harness.happen((EdgeEventKind.OPENED, WATCH, (method, None)))
    harness.happen((EdgeEventKind.MESSAGE, WATCH, b""))
    assert isinstance(harness.ask("Maintenance/Defragment", pb.DefragmentRequest()), Status)
    assert harness.edge.sent[WATCH] == [SERVING, NOT_SERVING, SERVING]
