"""The log as raft's append thread: batches on their way to the disk, and what waits for them.

Writes gather while earlier ones are on their way, and at most two batches are. Messages that
promise something leave when the batch that holds it is durable, and so does the member's own
acknowledgement: nothing is committed before. A change of the commit index alone is not worth a
write, unless a change of the membership waits for it; its messages follow the batches before them.

A received snapshot is three steps, each begun when the one before is durable: its file, its
record, and the state with the commit index that makes the record count.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kvorum.files import Files
from kvorum.member.jobs import Done, Failed, Job, Place, Work
from kvorum.member.outbox import Outbox
from kvorum.raft.entries import Entry
from kvorum.raft.errors import PeerNotFoundError
from kvorum.raft.messages import ConfState, HardState, Message, MessageType, Snapshot
from kvorum.raft.rawnode import RawNode
from kvorum.raft.storage import MemoryStorage
from kvorum.snap import WriteSnap
from kvorum.wal import Log

BATCHES_ON_THEIR_WAY_MAX: Final = 2
BATCH_BYTES_MAX: Final = 4 << 20


class _Barrier:
    """A job that is done when those before it are."""

    def run(self, files: Files) -> None:
        """Do nothing."""


class LogWriter:
    """Turns raft's storage writes into jobs for the log, in order."""

    __slots__ = (
        "_install",
        "_installing",
        "_is_closed",
        "_is_preparing",
        "_log",
        "_node",
        "_out",
        "_snap_directory",
        "_storage",
        "_waiting",
        "_writing",
        "durable_appends",
        "durable_commit",
        "is_keeping_commit",
    )

    def __init__(
        self,
        log: Log,
        storage: MemoryStorage,
        node: RawNode,
        out: Outbox,
        snap_directory: str,
        install: Callable[[Snapshot], None],
    ) -> None:
        self._log = log
        self._storage = storage
        self._node = node
        self._out = out
        self._snap_directory = snap_directory
        # Called when a received snapshot and its record are durable.
        self._install = install
        self._waiting: deque[Message] = deque()
        # The writes of each batch on its way, oldest first.
        self._writing: deque[list[Message]] = deque()
        self._installing: Message | None = None
        self._is_preparing = False
        self._is_closed = False
        self.durable_appends = 0
        # The last index of which it was asked, and whether that is still on its way.
        self.durable_commit = 0
        self.is_keeping_commit = False

    def add(self, message: Message) -> None:
        """Take a storage write from raft."""
        self._waiting.append(message)

    def _submit(self, work: Work, done: Done, on_failure: Failed | None = None) -> None:
        # What ends after the log was given up begins nothing more: its files are closed.
        if not self._is_closed:
            self._out.jobs.append(Job(Place.LOG, work, done, on_failure))

    def write(self) -> None:
        """Make jobs of what waits, as far as it may go now."""
        waiting = self._waiting
        while waiting and self._installing is None:
            if waiting[0].snapshot is not None:
                if self._writing:
                    return
                self._write_snapshot(waiting.popleft())
                return
            if len(self._writing) >= BATCHES_ON_THEIR_WAY_MAX:
                return
            self._write_batch()

    def _write_batch(self) -> None:
        waiting = self._waiting
        messages: list[Message] = []
        entries: list[Entry] = []
        state: HardState | None = None
        size = 0
        while waiting and waiting[0].snapshot is None and size < BATCH_BYTES_MAX:
            message = waiting.popleft()
            messages.append(message)
            if message.entries:
                if not entries and not isinstance(message.entries, tuple):
                    entries = message.entries  # type: ignore[assignment]
                else:
                    entries = [*entries, *message.entries]
                size += sum([entry.size for entry in message.entries]) if waiting else 0
            if message.term:
                state = HardState(message.term, message.vote, message.commit)
        job = self._log.save(state, entries)
        if job is not None:
            self._writing.append(messages)
            self._submit(job, self._appended)
            self._cut_if_full()
        elif self._writing:
            self._writing[-1] += messages
        else:
            self._deliver(messages)

    def _cut_if_full(self) -> None:
        cut = self._log.cut()
        if cut is not None:
            self._submit(cut, _nothing)
            self.prepare_segment()

    def prepare_segment(self) -> None:
        """Make the next segment ready in advance."""
        job = None if self._is_preparing else self._log.prepare()
        if job is not None:
            self._is_preparing = True
            self._submit(job, self._prepared, self._not_prepared)

    def _prepared(self, result: object) -> None:
        assert isinstance(result, int)
        self._is_preparing = False
        self._log.prepared(result)

    def _not_prepared(self, error: Exception) -> None:
        self._is_preparing = False
        # The segment in use just grows; the duty of that name tries again.
        self._node.raft.logger.warning(f"cannot prepare the next segment of the log: {error}")

    def _appended(self, _result: object) -> None:
        self.durable_appends += 1
        self._deliver(self._writing.popleft())

    def _deliver(self, messages: list[Message]) -> None:
        """Let go what waited for a write that is durable now."""
        raft = self._node.raft
        own, unstable = raft.id, raft.log.unstable
        promises: list[Message] = []
        for message in messages:
            self._storage.append(message.entries)
            for response in message.responses:
                if response.to != own:
                    if promises and _covers(response, promises[-1]):
                        promises[-1] = response
                    else:
                        promises.append(response)
                    continue
                if (
                    response.type == MessageType.STORAGE_APPEND_RESP
                    and response.snapshot is None
                    and response.index < unstable.offset
                ):
                    # An earlier write said so already; raft would only log it.
                    continue
                # A member that was removed meanwhile is unknown to itself.
                with suppress(PeerNotFoundError):
                    self._node.step(response)
        self._out.messages += promises

    # Snapshots: those received, and the records of the own ones.

    def _write_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        assert snapshot is not None
        self._installing = message
        work = WriteSnap(self._snap_directory, snapshot)
        self._submit(work, self._snapshot_written)

    def _snapshot_written(self, _result: object) -> None:
        snapshot = self._received()
        record = self._log.save_snapshot(snapshot.index, snapshot.term, snapshot.conf_state)
        self._submit(record, self._snapshot_recorded)

    def _snapshot_recorded(self, _result: object) -> None:
        message = self._installing
        assert message is not None
        state = HardState(message.term, message.vote, message.commit) if message.term else None
        committed = self._log.save(state, message.entries)
        assert committed is not None, f"a snapshot came without its commit index: {message}"
        self._submit(committed, self._snapshot_committed)

    def _snapshot_committed(self, _result: object) -> None:
        self._install(self._received())

    def _received(self) -> Snapshot:
        assert self._installing is not None and self._installing.snapshot is not None
        return self._installing.snapshot

    def installed(self) -> None:
        """Tell raft that the snapshot it received is written and in use."""
        self._storage.apply_snapshot(self._received())
        message, self._installing = self._installing, None
        assert message is not None
        self._deliver([message])

    def record_snapshot(
        self, index: int, term: int, conf_state: ConfState, done: Callable[[object], None]
    ) -> None:
        """Write the record of an own snapshot, whose file is durable."""
        self._write_gathered()
        record = self._log.save_snapshot(index, term, conf_state)
        self._submit(record, done)

    def is_commit_durable(self, index: int) -> bool:
        """Tell whether a start would know that a committed entry is; if not, see to it.

        While that takes, `is_keeping_commit` is set. Raft has handed the entry out to be applied,
        so the state that commits it came before.
        """
        if index <= self.durable_commit:
            return True
        self._write_gathered()
        job = self._log.flush()
        self.is_keeping_commit = True
        # Without a job some batch before this one has it.
        work = _Barrier() if job is None else job
        self._submit(work, lambda _: self._commit_kept(index))
        return False

    def _commit_kept(self, index: int) -> None:
        self.durable_commit = index
        self.is_keeping_commit = False

    def _write_gathered(self) -> None:
        """Write what waits; the state that commits what is applied may be among it."""
        while self._waiting and self._waiting[0].snapshot is None and self._installing is None:
            self._write_batch()

    def release_to(self, index: int) -> None:
        """Give up the segments that a start from a snapshot at this index does not read."""
        job = self._log.release_to(index)
        if job is not None:
            self._submit(job, _nothing)

    def close(self, done: Callable[[object], None]) -> None:
        """End the log cleanly; `done` is called when its files are closed."""
        job = self._log.flush()
        if job is not None:
            self._submit(job, _nothing)
        self._submit(self._log.close(), done)
        self._is_closed = True


def _covers(later: Message, earlier: Message) -> bool:
    """Tell whether an acknowledgement says all that one before it says."""
    return (
        later.type == earlier.type == MessageType.APP_RESP
        and later.to == earlier.to
        and later.term == earlier.term
        and not later.reject
        and not earlier.reject
        and later.index >= earlier.index
    )


def _nothing(_result: object) -> None:
    """Take the result of a job that nobody waits for."""
