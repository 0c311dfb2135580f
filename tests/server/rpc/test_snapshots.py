"""Snapshot calls: clients that take nothing are ended, and only few may wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api import errors
from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.server.rpc.snapshot import IMAGES_MAX, WAITING_MAX
from kvorum.server.rpc.streams import AWAITED_SECONDS_MAX, TAKING_SECONDS_MAX
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.server.rpc.harness import Harness, Stream


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    files = RealFiles()
    harness = Harness(files, LmdbEnvironments(), str(tmp_path / "member"))
    for number in range(40):
        harness.ask("KV/Put", pb.PutRequest(key=b"%d" % number, value=bytes(100_000)))
    yield harness
    harness.member.close()
    harness.settle()


def begin(harness: Harness, *, takes: bool) -> Stream:
    stream = harness.open("Maintenance/Snapshot")
    if not takes:
        # The client takes nothing of what is sent.
        harness.edge.pending[stream.call] = 0
    stream.send(pb.SnapshotRequest())
    return stream


def images(harness: Harness) -> list[Path]:
    return list(Path(harness.member.replica.snap_directory).glob("tmp.snapshot.*"))


def leap(harness: Harness, seconds: float) -> None:
    """Let time pass in one step."""
    harness.now += seconds
    harness.pass_time(0.1)


def test_who_takes_nothing_makes_room_for_the_next(harness: Harness) -> None:
    stuck = [begin(harness, takes=False) for _ in range(IMAGES_MAX)]
    next_one = begin(harness, takes=True)
    harness.pass_time(0.2)
    assert len(images(harness)) == IMAGES_MAX
    assert [stream.status for stream in (*stuck, next_one)] == [None] * 3
    leap(harness, AWAITED_SECONDS_MAX)
    assert [stream.status for stream in stuck] == [errors.TIMEOUT] * 2
    harness.until(lambda: next_one.status is not None)
    assert next_one.status is not None and next_one.status.code == Code.OK
    assert not images(harness)


def test_who_takes_nothing_is_left_alone_for_longer_while_nobody_waits(harness: Harness) -> None:
    stuck = begin(harness, takes=False)
    harness.until(lambda: bool(stuck.received()))
    leap(harness, AWAITED_SECONDS_MAX)
    leap(harness, TAKING_SECONDS_MAX - 3 * AWAITED_SECONDS_MAX)
    assert stuck.status is None
    leap(harness, 3 * AWAITED_SECONDS_MAX)
    assert stuck.status == errors.TIMEOUT


def test_who_takes_something_is_not_ended_although_another_waits(harness: Harness) -> None:
    slow = [begin(harness, takes=False) for _ in range(IMAGES_MAX)]
    next_one = begin(harness, takes=True)
    harness.until(lambda: all(stream.received() for stream in slow))
    while next_one.status is None:
        leap(harness, AWAITED_SECONDS_MAX / 2)
        for stream in slow:
            if stream.status is None:
                harness.edge.pending[stream.call] = 0
                stream.writable()
    codes = {stream.status.code for stream in (*slow, next_one) if stream.status is not None}
    assert codes == {Code.OK}


def test_who_takes_slowly_is_not_ended(harness: Harness) -> None:
    slow = begin(harness, takes=False)
    harness.until(lambda: bool(slow.received()))
    while slow.status is None:
        leap(harness, TAKING_SECONDS_MAX / 2)
        harness.edge.pending[slow.call] = 0
        slow.writable()
    assert slow.status.code == Code.OK


def test_only_so_many_wait(harness: Harness) -> None:
    stuck = [begin(harness, takes=False) for _ in range(IMAGES_MAX)]
    waiting = [begin(harness, takes=True) for _ in range(WAITING_MAX)]
    refused = begin(harness, takes=True)
    assert refused.status == errors.REQUEST_TOO_MANY_REQUESTS
    waiting[0].cancel()
    another = begin(harness, takes=True)
    assert another.status is None
    for stream in stuck:
        stream.cancel()
    harness.until(lambda: all(stream.status is not None for stream in (*waiting[1:], another)))
    assert {stream.status.code for stream in (*waiting[1:], another) if stream.status} == {Code.OK}
