"""A member's storage without the member: appends, cuts, snapshots and purges, driven by a seed.

Beside the disk it keeps a model of what was reported durable, and can check that a recovery agrees
with it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kvorum.network.edge import native_skim
from kvorum.raft.entries import Entry
from kvorum.raft.messages import NO_HARD_STATE, ConfState, HardState, Snapshot
from kvorum.storage.files import Files, Purge
from kvorum.storage.files.interface import read_file
from kvorum.storage.snap import (
    ReceivedDatabase,
    ReleaseDatabases,
    RemoveLeftovers,
    WriteSnap,
    load_newest,
    newest_whole,
)
from kvorum.storage.wal import (
    Log,
    LogContent,
    SnapshotRecord,
    create_log,
    exists,
    open_newest,
    read_log,
    valid_snapshots,
)

WAL, SNAP = "/member/wal", "/member/snap"
SEGMENT_BYTES = 4096
METADATA = b"\x08\x01\x10\x02"
MEMBERS = ConfState((1, 2, 3))
DATABASE = bytes(range(1, 200)) * 7

Result = TypeVar("Result")


def make_directories(files: Files) -> None:
    files.make_directory("/member")
    files.sync_directory("/")
    files.make_directory(SNAP)
    files.sync_directory("/member")


@dataclass
class Recovered:
    log: Log
    content: LogContent
    snapshot: Snapshot | None
    databases: set[int]


def record_of(snapshot: Snapshot | None) -> SnapshotRecord:
    return SnapshotRecord(snapshot.index, snapshot.term) if snapshot else SnapshotRecord()


def recover(files: Files) -> Recovered | None:
    """Do what a member does at its start; None if there was no log yet."""
    if not exists(files, WAL):
        return None
    RemoveLeftovers(SNAP).run(files)
    snapshot: Snapshot | None = None
    separately: LogContent | None = None

    def choose(valid: list[SnapshotRecord]) -> tuple[SnapshotRecord, None]:
        nonlocal snapshot, separately
        assert valid == valid_snapshots(files, WAL)
        snapshot, _ = load_newest(files, SNAP, {(each.index, each.term) for each in valid})
        separately = read_log(files, WAL, record_of(snapshot))
        return record_of(snapshot), None

    expected = record_of(newest_whole(files, SNAP))
    log, content = open_newest(files, WAL, expected, choose, SEGMENT_BYTES, native_skim())
    # What proves records durable may lie where compiled code did not look.
    assert separately is not None and separately.durable_end >= content.durable_end
    assert content == separately._replace(durable_end=content.durable_end)
    names = [name for name in files.list(SNAP) if name.endswith(".snap.db")]
    assert all(read_file(files, f"{SNAP}/{name}") == DATABASE for name in names)
    return Recovered(log, content, snapshot, {int(name[:16], 16) for name in names})


@dataclass
class Model:
    """What is promised. `log[i]` is the entry of index i + 1; None if a snapshot stands for it."""

    state: HardState = NO_HARD_STATE
    log: list[Entry | None] = field(default_factory=list)
    snapshot_index: int = 0
    created: bool = False
    # What is being written: it may be found completely, in part or not at all.
    next_state: HardState = NO_HARD_STATE
    batch: list[Entry] = field(default_factory=list)
    next_snapshot: int = 0
    databases: set[int] = field(default_factory=set)

    def settle(self) -> None:
        if self.batch:
            del self.log[self.batch[0].index - 1 :]
            self.log += self.batch
            self.batch = []
        self.state = self.next_state
        self.snapshot_index = max(self.snapshot_index, self.next_snapshot)
        if self.next_snapshot > len(self.log):
            self.log += [None] * (self.next_snapshot - len(self.log))

    def check(self, found: Recovered | None) -> None:
        if found is None:
            assert not self.created, "the log is gone"
            return
        start = found.snapshot.index if found.snapshot else 0
        assert start >= self.snapshot_index, "a snapshot is gone"
        useful = {index for index in self.databases if index >= self.next_snapshot}
        assert useful <= found.databases, "a database is gone"
        state, entries = found.content.state, found.content.entries
        assert [each.index for each in entries] == list(range(start + 1, start + 1 + len(entries)))
        assert (state.term, state.vote) in (self.state[:2], self.next_state[:2])
        assert start <= state.commit <= start + len(entries)
        assert any(entries == log[start:] for log in self._possible_logs(start)), (
            f"{entries} is neither {self.log} nor on the way to {self.batch}"
        )

    def _possible_logs(self, start: int) -> list[list[Entry | None]]:
        first = self.batch[0].index if self.batch else 0
        logs = [self.log] + [
            [*self.log[: first - 1], *self.batch[: count + 1]] for count in range(len(self.batch))
        ]
        # A received snapshot replaces a log that does not reach it.
        return [log for log in logs if len(log) >= start] or [[None] * start]


class Storage:
    """Runs a random history on a disk; every job settles the model when it is done."""

    def __init__(self, files: Files, seed: int) -> None:
        self.files = files
        self.random = random.Random(seed)
        self.model = Model()
        self.log = create_log(files, WAL, METADATA, SEGMENT_BYTES)
        self.model.created = True
        self.term = 1
        self.commit = 0
        self.given = HardState()

    def run(self, job: Callable[[Files], Result]) -> Result:
        return job(self.files)

    def last_index(self) -> int:
        return len(self.model.log)

    def save(self, state: HardState | None, batch: list[Entry]) -> None:
        if state is not None:
            self.given = state
        job = self.log.save(state, batch)
        if job is not None:
            self.model.next_state, self.model.batch = self.given, batch
            self.run(job.run)
            self.model.settle()
        self.maintain()

    def maintain(self) -> None:
        cut = self.log.cut()
        if cut is not None:
            self.model.next_state = self.given
            self.run(cut.run)
            self.model.settle()
        prepare = self.log.prepare()
        if prepare is not None:
            self.log.take_spare(self.run(prepare.run))

    def append(self) -> None:
        first = self.last_index() + 1
        if self.random.random() < 0.2:  # a new leader replaces what was not committed
            self.term += 1
            first = self.random.randint(self.commit + 1, first)
        count = self.random.randint(1, 5)
        batch = [
            Entry(0, self.term, first + place, self.random.randbytes(self.random.choice(SIZES)))
            for place in range(count)
        ]
        commit = self.random.randint(self.commit, first - 1 + count)
        self.commit = max(self.commit, min(commit, first - 1 + count))
        self.save(HardState(self.term, 1, self.commit), batch)

    def vote(self) -> None:
        self.term += 1
        self.save(HardState(self.term, self.random.randint(0, 3), self.commit), [])

    def commit_only(self) -> None:
        self.commit = self.random.randint(self.commit, self.last_index())
        self.save(HardState(self.term, self.given.vote, self.commit), [])

    def take_snapshot(self) -> None:
        self.commit_only()
        if self.commit > self.model.snapshot_index:
            index = self.random.randint(self.model.snapshot_index + 1, self.commit)
            entry = self.model.log[index - 1]
            if entry is not None:
                self.keep_snapshot(Snapshot(index, entry.term, MEMBERS, b"{}"))

    def receive_snapshot(self) -> None:
        index = self.last_index() + self.random.randint(1, 20)
        database = ReceivedDatabase(self.files, SNAP, index)
        database.write(DATABASE[:700])
        database.write(DATABASE[700:])
        database.finish()
        self.model.databases.add(index)
        snapshot = Snapshot(index, self.term, MEMBERS, b"{}")
        self.commit = index
        self.keep_snapshot(snapshot)

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """File first, then its record, then the state that makes the record count."""
        self.run(WriteSnap(SNAP, snapshot).run)
        job = self.log.save_snapshot(snapshot.index, snapshot.term, snapshot.conf_state)
        self.model.next_state, self.model.next_snapshot = self.given, snapshot.index
        self.run(job.run)
        if snapshot.index <= self.given.commit:
            self.model.settle()
        self.save(HardState(self.term, self.given.vote, self.commit), [])
        self.model.settle()
        release = self.log.release_to(snapshot.index)
        if release is not None:
            self.run(release.run)
        self.run(ReleaseDatabases(SNAP, snapshot.index).run)
        self.run(Purge(WAL, ".wal", 1).run)
        self.run(Purge(SNAP, ".snap", 2).run)

    def step(self) -> None:
        steps = [self.append] * 8 + [self.vote, self.commit_only, self.take_snapshot]
        self.random.choice([*steps, self.receive_snapshot])()

    def close(self) -> None:
        flush = self.log.flush()
        if flush is not None:
            self.run(flush.run)
        self.run(self.log.close().run)


SIZES = (0, 1, 30, 300, 511, 512, 700, 1500)
