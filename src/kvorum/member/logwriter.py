"""Raft's append thread: batches log writes and releases the messages that wait for them.

Writes gather while `log_batches_in_flight_max` earlier batches are being written. Messages that
promise a write leave when its batch is durable, and so does the member's own acknowledgement:
nothing is committed before. A new commit index alone causes no write, unless a membership change
waits for it; messages that come with one leave when the batches before it are durable.

A write that holds a snapshot stands alone: the writer exposes it as `received` once everything
before it is durable, and writes nothing after it until `finish_received`.
"""

from collections import deque
from contextlib import suppress

from kvorum.api.limits import WorkLimits
from kvorum.member.jobs import Done, ExecutorKind, Failed, Job, Nothing, Work, ignore
from kvorum.member.outbox import Outbox
from kvorum.raft.entries import Entry
from kvorum.raft.errors import PeerNotFoundError
from kvorum.raft.messages import ConfState, HardState, Message, MessageType
from kvorum.raft.rawnode import RawNode
from kvorum.raft.storage import MemoryStorage
from kvorum.storage.wal import Log


class LogWriter:
    """Turns raft's storage writes into jobs for the log, in order."""

    __slots__ = (
        "_is_closed",
        "_is_preparing",
        "_limits",
        "_log",
        "_node",
        "_out",
        "_storage",
        "_waiting",
        "_writing",
        "durable_commit",
        "is_keeping_commit",
        "received",
    )

    def __init__(
        self, log: Log, storage: MemoryStorage, node: RawNode, out: Outbox, limits: WorkLimits
    ) -> None:
        self._log = log
        self._storage = storage
        self._node = node
        self._out = out
        self._limits = limits
        self._waiting: deque[Message] = deque()
        # The writes of each batch that is being written, oldest first.
        self._writing: deque[list[Message]] = deque()
        self._is_preparing = False
        self._is_closed = False
        # The last commit index made durable on request, and whether another is being written.
        self.durable_commit = 0
        self.is_keeping_commit = False
        # The write that holds a snapshot, until the installation calls `finish_received`.
        self.received: Message | None = None

    def add_write(self, message: Message) -> None:
        """Take a storage write from raft."""
        self._waiting.append(message)

    def submit(self, work: Work, done: Done = ignore, on_failure: Failed | None = None) -> None:
        """Submit work to the log's executor; after `close`, which ends its files, drop the work."""
        if not self._is_closed:
            self._out.jobs.append(Job(ExecutorKind.LOG, work, done, on_failure))

    def submit_writes(self) -> None:
        """Turn waiting writes into jobs, as far as batches and snapshots allow."""
        waiting = self._waiting
        while waiting and self.received is None:
            if waiting[0].snapshot is not None:
                if not self._writing:
                    self.received = waiting.popleft()
                return
            if len(self._writing) >= self._limits.log_batches_in_flight_max:
                return
            self._write_batch()

    def _write_batch(self) -> None:
        waiting, bytes_max = self._waiting, self._limits.log_batch_bytes_max
        messages: list[Message] = []
        entries: list[Entry] = []
        state: HardState | None = None
        size = 0
        while waiting and waiting[0].snapshot is None and size < bytes_max:
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
            self.submit(job, self._finish_append)
            self._cut_if_full()
        elif self._writing:
            self._writing[-1] += messages
        else:
            self._deliver(messages)

    def _cut_if_full(self) -> None:
        cut = self._log.cut()
        if cut is not None:
            self.submit(cut)
            self.prepare_segment()

    def prepare_segment(self) -> None:
        """Prepare the next segment in advance."""
        job = None if self._is_preparing else self._log.prepare()
        if job is not None:
            self._is_preparing = True
            self.submit(job, self._take_segment, self._report_unprepared)

    def _take_segment(self, result: object) -> None:
        assert isinstance(result, int)
        self._is_preparing = False
        self._log.take_spare(result)

    def _report_unprepared(self, error: Exception) -> None:
        self._is_preparing = False
        # The segment in use just grows; a duty retries.
        self._node.raft.logger.warning(f"cannot prepare the next segment of the log: {error}")

    def _finish_append(self, _result: object) -> None:
        self._deliver(self._writing.popleft())

    def _deliver(self, messages: list[Message]) -> None:
        """Release the messages that waited for writes which are now durable."""
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
                    # An earlier write already reported this index; raft would only log it.
                    continue
                # Raft does not know its own member after that member's removal.
                with suppress(PeerNotFoundError):
                    self._node.step(response)
        self._out.messages += promises

    # Snapshots.

    def record_snapshot(self, index: int, term: int, conf_state: ConfState, done: Done) -> None:
        """Write the record of a snapshot whose file is durable."""
        self._write_gathered()
        record = self._log.save_snapshot(index, term, conf_state)
        self.submit(record, done)

    def save_received(self, done: Done) -> None:
        """Write the received snapshot's hard state, which makes the snapshot's record count."""
        message = self.received
        assert message is not None, "no snapshot was received"
        state = HardState(message.term, message.vote, message.commit) if message.term else None
        job = self._log.save(state, message.entries)
        assert job is not None, f"a snapshot came without its commit index: {message}"
        self.submit(job, done)

    def finish_received(self) -> None:
        """Tell raft that the write with a snapshot is done, and allow later writes."""
        message, self.received = self.received, None
        assert message is not None and message.snapshot is not None
        self._storage.apply_snapshot(message.snapshot)
        self._deliver([message])

    def is_commit_durable(self, index: int) -> bool:
        """Return whether a restart would know that an entry is committed; if not, start a write.

        `is_keeping_commit` is set during the write. Raft hands out an entry for applying only after
        the hard state that commits it, so that state has already reached this writer.
        """
        if index <= self.durable_commit:
            return True
        self._write_gathered()
        job = self._log.flush()
        self.is_keeping_commit = True
        # Without a job, a batch that is being written holds the hard state.
        work = Nothing() if job is None else job
        self.submit(work, lambda _: self._note_durable_commit(index))
        return False

    def _note_durable_commit(self, index: int) -> None:
        self.durable_commit = index
        self.is_keeping_commit = False

    def _write_gathered(self) -> None:
        """Submit all waiting writes, which may hold the hard state that commits an entry."""
        while self._waiting and self._waiting[0].snapshot is None and self.received is None:
            self._write_batch()

    def release_to(self, index: int) -> None:
        """Release the segments that a start from a snapshot at this index does not read."""
        job = self._log.release_to(index)
        if job is not None:
            self.submit(job)

    def close(self, done: Done) -> None:
        """Close the log cleanly; the runner calls `done` when its files are closed."""
        job = self._log.flush()
        if job is not None:
            self.submit(job)
        self.submit(self._log.close(), done)
        self._is_closed = True


def _covers(later: Message, earlier: Message) -> bool:
    """Return whether an acknowledgement makes an earlier one redundant."""
    return (
        later.type == earlier.type == MessageType.APP_RESP
        and later.to == earlier.to
        and later.term == earlier.term
        and not later.reject
        and not earlier.reject
        and later.index >= earlier.index
    )
