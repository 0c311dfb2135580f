"""Proposals that wait for their entries to be applied here.

The member gathers proposals during a turn and hands them to raft as one batch. Without a leader a
batch waits; after the request timeout it fails with an error which says that it never started. A
batch that raft has taken and that is not applied in time has an unknown outcome.

The id in an entry identifies the waiter. An id alone does not prove that an entry is the proposed
one: it may be from an earlier run of this member, or of a member whose id ends alike. So unless the
data equals the proposal, no waiter is answered, and the member decodes the entry instead.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import NONE

if TYPE_CHECKING:
    from kvorum.member.procedures import Waiter
    from kvorum.raft.rawnode import RawNode
    from kvorum.state.apply.callers import Caller


Pending = tuple["Waiter", "Caller", int, Any, bytes, object]
"""The waiter, the caller, the kind of the request, the decoded request, the data of the entry, and
the turn's start by the stopwatch: one float object that all requests of a turn share."""


class ProposalBatch:
    """The proposals of one turn."""

    __slots__ = ("ids", "is_taken", "payloads", "started")

    def __init__(self, started: float, payloads: list[bytes], ids: list[bytes]) -> None:
        self.started = started
        self.payloads = payloads
        self.ids = ids
        self.is_taken = False


class Proposals:
    """All proposals of this member that are not yet answered."""

    __slots__ = ("_batches", "_untaken", "ids", "payloads", "pending")

    def __init__(self) -> None:
        # By the encoded id of the entry.
        self.pending: dict[bytes, Pending] = {}
        # Proposals since the last `submit`; `Replica.propose` itself adds to all three.
        self.payloads: list[bytes] = []
        self.ids: list[bytes] = []
        # Every batch that may have waiters, oldest first.
        self._batches: deque[ProposalBatch] = deque()
        self._untaken: deque[ProposalBatch] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether raft has yet to get a proposal."""
        return bool(self.payloads or self._untaken)

    def take(self, encoded_id: bytes, data: bytes) -> Pending | None:
        """Remove and return the proposal with this id, if its data is this entry's; else None."""
        pending = self.pending.get(encoded_id)
        if pending is None or pending[4] != data:
            return None
        del self.pending[encoded_id]
        return pending

    def submit(self, node: "RawNode", now: float) -> list[Pending]:
        """Hand the gathered batches to raft; return the proposals that raft dropped.

        Without a leader raft drops none: the proposals wait for a leader or their timeout.
        """
        if self.payloads:
            batch = ProposalBatch(now, self.payloads, self.ids)
            self.payloads, self.ids = [], []
            self._batches.append(batch)
            self._untaken.append(batch)
        refused: list[Pending] = []
        raft = node.raft
        untaken = self._untaken
        while untaken and raft.lead != NONE:
            batch = untaken.popleft()
            batch.is_taken = True
            try:
                raft.propose(batch.payloads)
            except ProposalDroppedError:
                refused += self._forget(batch)
            batch.payloads = []
        return refused

    def expire(self, started_before: float) -> list[tuple[ProposalBatch, list[Pending]]]:
        """Abandon batches that started before a moment; return their unanswered proposals."""
        expired = []
        batches = self._batches
        while batches and (batches[0].started <= started_before or self._is_done(batches[0])):
            batch = batches.popleft()
            if self._untaken and self._untaken[0] is batch:
                self._untaken.popleft()
            if waiting := self._forget(batch):
                expired.append((batch, waiting))
        return expired

    def abandon(self, kind: int) -> "list[Waiter]":
        """Abandon all proposals of a kind; return their waiters."""
        pending = self.pending
        ids = [encoded for encoded, waiting in pending.items() if waiting[2] == kind]
        return [pending.pop(encoded)[0] for encoded in ids]

    def _is_done(self, batch: ProposalBatch) -> bool:
        return self.pending.keys().isdisjoint(batch.ids)

    def _forget(self, batch: ProposalBatch) -> list[Pending]:
        pending = self.pending
        return [pending.pop(encoded) for encoded in batch.ids if encoded in pending]
