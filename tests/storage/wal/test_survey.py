"""A log that is read once: what is passed, what is kept, and what is written again."""

from typing import Any, cast

import pytest

from kvorum.network.edge import native_skim
from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, HardState
from kvorum.storage.files import Files
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.wal import Log, SnapshotRecord, create_log, open_newest, read_log
from kvorum.storage.wal.reading import survey_log
from kvorum.storage.wal.segments import list_segments
from kvorum.storage.wal.skimming import Skim

WAL = "/wal"
MEMBERS = ConfState((1,))


@pytest.fixture(params=["python", "native"])
def skim(request: pytest.FixtureRequest) -> Skim | None:
    found = native_skim()
    if request.param == "native" and found is None:
        pytest.skip("the native edge is not built")
    return found if request.param == "native" else None


class Written:
    """A log with batches of entries, one after the other."""

    def __init__(self) -> None:
        self.calls: list[DiskCall] = []
        self.files = MemoryFiles(self.calls.append)
        self.log: Log = create_log(self.files, WAL, b"whose", 4096)

    def save(self, first: int, count: int, term: int, commit: int) -> None:
        batch = [Entry(0, term, first + each, b"d" * 50) for each in range(count)]
        self.run(self.log.save(HardState(term, 1, commit), batch))
        cut = self.log.cut()
        if cut is not None:
            self.run(cut)
        prepare = self.log.prepare()
        if prepare is not None:
            self.log.take_spare(prepare.run(self.files))

    def snapshot(self, index: int, term: int) -> SnapshotRecord:
        self.run(self.log.save_snapshot(index, term, MEMBERS))
        return SnapshotRecord(index, term, MEMBERS)

    def run(self, job: object) -> None:
        assert job is not None
        job.run(self.files)  # type: ignore[attr-defined]

    def end(self) -> None:
        self.run(self.log.close())
        self.calls.clear()


class Reading:
    """Files that count what is read."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files
        self.bytes_read = 0

    def pread(self, descriptor: int, offset: int, length: int) -> bytes:
        data = self._files.pread(descriptor, offset, length)
        self.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_every_segment_is_read_once(skim: Skim | None) -> None:
    written = Written()
    for number in range(100):
        written.save(number * 2 + 1, 2, 1, number * 2)
    record = written.snapshot(150, 1)
    written.save(201, 2, 1, 201)
    written.end()
    counting = Reading(written.files)
    files = cast("Files", counting)
    names = [each.name for each in list_segments(files, WAL)]
    total = sum(len(read_file(written.files, f"{WAL}/{name}")) for name in names)
    _, content = open_newest(files, WAL, record, lambda _: (record, None), 4096, skim)
    assert [each.index for each in content.entries] == list(range(151, 203))
    # Beside the segments, the head of the last one, and what is written again.
    assert (
        len(names) > 3 and counting.bytes_read <= total + 4096 + content.end - content.durable_end
    )
    assert written.files.open_descriptors() == len(content.segments)


def test_a_replaced_entry_is_not_found_again(skim: Skim | None) -> None:
    """Entries that were not committed are replaced from one before the snapshot on."""
    written = Written()
    written.save(1, 60, 1, 10)  # 31 to 60 are never committed
    written.save(11, 5, 2, 12)
    written.save(16, 15, 2, 30)
    record = written.snapshot(30, 2)
    written.end()
    valid, content = survey_log(written.files, WAL, record, skim)
    assert valid[-1] == record and content is not None and content.entries == []
    assert read_log(written.files, WAL, record).entries == []
    assert read_log(written.files, WAL, SnapshotRecord()).entries[-1] == Entry(0, 2, 30, b"d" * 50)


def test_an_unexpected_snapshot_is_read_again(skim: Skim | None) -> None:
    written = Written()
    written.save(1, 20, 1, 20)
    record = written.snapshot(10, 1)
    written.save(21, 1, 1, 20)
    written.end()
    expected = SnapshotRecord(15, 1, MEMBERS)  # it has a file, but no record
    _, content = open_newest(written.files, WAL, expected, lambda _: (record, None), 4096, skim)
    assert [each.index for each in content.entries] == list(range(11, 22))


def test_only_what_may_not_be_durable_is_written_again(skim: Skim | None) -> None:
    written = Written()
    for number in range(10):
        written.save(number + 1, 1, 1, number)
    written.end()
    whole = read_file(written.files, f"{WAL}/{list_segments(written.files, WAL)[-1].name}")
    expected = SnapshotRecord()
    log, content = open_newest(written.files, WAL, expected, lambda _: (expected, None), 4096, skim)
    (again,) = [call for call in written.calls if call.name == "pwrite"]
    assert 0 < content.durable_end < content.end < 4096
    # The state before the last entry, that entry and its state.
    assert whole[content.durable_end : content.end].count(b"d" * 50) == 1
    log.close().run(written.files)
    assert again.path.endswith(".wal")
