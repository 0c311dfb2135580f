"""A rotation that fails half-way, and what it may leave: what was reported stays."""

import errno

import pytest

from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.tools.backup.archive import Archive, rotate
from kvorum.tools.backup.names import MANIFEST_ENDING
from kvorum.tools.backup.points import find_point
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.taking import count_snapshot, keep_snapshot
from kvorum.tools.backup.verifying import find_problems
from tests.tools.backup.archives import CLUSTER, Scribe, Source

MANIFEST_CALLS = 5
"""How many calls write a manifest."""


@pytest.mark.parametrize("calls", range(12))
def test_a_snapshot_counts_although_older_ones_cannot_be_removed(calls: int) -> None:
    """Whatever call of a rotation fails: the archive has what was reported, and tells why."""
    left = [1 << 30]

    def before(call: DiskCall) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, "Input/output error", call.path)

    files = MemoryFiles(before)
    store = DirectoryStore(files, "/archive")
    source = Source(5)
    scribe = Scribe(store, source)
    for _ in range(3):
        scribe.record(2)
        scribe.snapshot(keep=9)
    scribe.record(2)
    with store.spool() as spool:
        spool.add(source.snapshot())
        spool.sync()
        origin = (CLUSTER, scribe.now, "3.7.0")
        received = keep_snapshot(store, spool, scribe.history, origin, 1)
    left[0] = MANIFEST_CALLS + 1 + calls
    taken = count_snapshot(store, received, 1, has_log=True)
    assert left[0] <= 0 and taken.problem is not None
    assert taken.name == Archive(store).snapshots[-1]
    assert find_point(Archive(store), None, None, print).revision == source.revision
    assert find_problems(Archive(store), lambda _: None) == []


def test_a_manifest_without_its_snapshot_is_reported_and_removed() -> None:
    store = DirectoryStore(MemoryFiles(), "/archive")
    scribe = Scribe(store, Source(6))
    for _ in range(2):
        scribe.record(2)
        scribe.snapshot(keep=9)
    lost = Archive(store).snapshots[0]
    store.delete(str(lost))
    assert Archive(store).orphans == [f"{lost}{MANIFEST_ENDING}"]
    assert (
        "is missing, but its manifest is there" in find_problems(Archive(store), lambda _: None)[0]
    )
    rotate(store, 9, scribe.history)
    assert Archive(store).orphans == []
    assert find_problems(Archive(store), lambda _: None) == []
