"""Measure the log: framing on the loop, and whole batches made durable on this disk.

Framing, from entries and state to a job, runs on the loop; it is counted in processor time, so that
other load on the machine does not matter. Writing is one write and one fdatasync per batch, done by
the job itself, and counted in real time, because it is mostly waiting. Run it as `make bench-wal`.
"""

import gc
import tempfile
import time

from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import Log, SnapshotRecord, create_log, read_log

BATCHES = (1, 20, 200)
FRAMING_US_MAX = 2.0  # per record
PAYLOAD = b"v" * 300  # a put of 256 bytes, with its key and header
FRAMED, ROUNDS = 4_000, 50
WRITE_SECONDS = 1.5


def entries(first: int, count: int) -> list[Entry]:
    """Return entries as a busy leader produces them."""
    return [Entry(0, 2, first + each, PAYLOAD) for each in range(count)]


def framing_us(log: Log, batch: int) -> float:
    """Return processor microseconds per record, the best of several rounds.

    Each batch has a state with another commit index, which is a record as well.
    """
    first = 10_000_000
    made = [
        (HardState(2, 1, index), entries(index, batch))
        for index in range(first, first + FRAMED, batch)
    ]
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for state, each in made:
            log.save(state, each)
        best = min(best, time.process_time() - start)
    return best / (FRAMED + len(made)) * 1e6


def written_per_second(files: RealFiles, log: Log, first: int, batch: int) -> tuple[float, int]:
    """Return the rate at which records became durable, and their number."""
    total = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < WRITE_SECONDS:
        job = log.save(None, entries(first + total, batch))
        assert job is not None
        job.run(files)
        cut = log.cut()
        if cut is not None:
            cut.run(files)
        prepare = log.prepare()
        if prepare is not None:
            log.take_spare(prepare.run(files))
        total += batch
    return total / elapsed, total


def main() -> None:
    """Print a table, and then the speed of reading the written log."""
    files = RealFiles()
    gc.disable()  # as in the server
    with tempfile.TemporaryDirectory(dir=".") as directory:
        scratch = create_log(files, f"{directory}/scratch", b"")
        log = create_log(files, f"{directory}/wal", b"")
        count = 0
        print("batch   framing us/record   durable records/s")
        for batch in BATCHES:
            framing = framing_us(scratch, batch)
            rate, written = written_per_second(files, log, count + 1, batch)
            count += written
            verdict = "" if framing <= FRAMING_US_MAX else f"   above {FRAMING_US_MAX} us"
            print(f"{batch:5}   {framing:17.2f}   {rate:17,.0f}{verdict}")
        for each in (scratch, log):
            each.close().run(files)
        start = time.perf_counter()
        content = read_log(files, f"{directory}/wal", SnapshotRecord())
        seconds = time.perf_counter() - start
        assert len(content.entries) == count
        print(f"reading: {seconds / count * 1e6:.2f} us/record, {count:,} records")


if __name__ == "__main__":
    main()
