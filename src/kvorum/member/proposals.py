"""Proposals that wait for their entries to be applied here.

Proposals are gathered during a turn and handed to raft as one batch. A batch that raft does not
take for lack of a leader waits; after the time for requests it fails with the text that says
it never began. One that was taken and is not applied in time has an unknown outcome.

A waiter is found by the id in the entry. An id alone does not prove that an entry is the one that
was proposed: it may be from an earlier run of this member, or of one whose id ends alike. So unless
the data is what was proposed, nobody is answered, and the request is decoded anew.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import NONE

if TYPE_CHECKING:
    from kvorum.member.callers import Caller
    from kvorum.member.procedures import Waiter
    from kvorum.raft.rawnode import RawNode


Pending = tuple["Waiter", "Caller", int, Any, bytes, object]
"""The waiter, the caller, the kind of the request, the decoded request, the data of the entry, and
the turn's start by the stopwatch: one float for all requests of a turn, so that no other is made
for each."""


class Batch:
    """Proposals that were made in one turn."""

    __slots__ = ("ids", "is_taken", "payloads", "started")

    def __init__(self, started: float, payloads: list[bytes], ids: list[bytes]) -> None:
        self.started = started
        self.payloads = payloads
        self.ids = ids
        self.is_taken = False


class Proposals:
    """Everything proposed by this member and not yet answered."""

    __slots__ = ("_batches", "_untaken", "ids", "payloads", "pending")

    def __init__(self) -> None:
        # By the encoded id of the entry.
        self.pending: dict[bytes, Pending] = {}
        # What was proposed since the last turn; `Member.propose` itself adds to all three.
        self.payloads: list[bytes] = []
        self.ids: list[bytes] = []
        # Oldest first; every batch that may have waiters.
        self._batches: deque[Batch] = deque()
        self._untaken: deque[Batch] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether something has yet to be given to raft."""
        return bool(self.payloads or self._untaken)

    def take(self, encoded_id: bytes, data: bytes) -> Pending | None:
        """Return what was proposed under an id, and forget it; None unless it is this entry."""
        pending = self.pending.get(encoded_id)
        if pending is None or pending[4] != data:
            return None
        del self.pending[encoded_id]
        return pending

    def submit(self, node: "RawNode", now: float) -> list[Pending]:
        """Give raft what was gathered; return what it refused for good.

        Without a leader nothing is refused: proposals wait for one, or until their time is over.
        """
        if self.payloads:
            batch = Batch(now, self.payloads, self.ids)
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

    def expire(self, started_before: float) -> list[tuple[Batch, list[Pending]]]:
        """Give up the batches that began before a moment; return what was left of them."""
        expired = []
        batches = self._batches
        while batches and (batches[0].started <= started_before or self._is_done(batches[0])):
            batch = batches.popleft()
            if self._untaken and self._untaken[0] is batch:
                self._untaken.popleft()
            if waiting := self._forget(batch):
                expired.append((batch, waiting))
        return expired

    def give_up(self, kind: int) -> "list[Waiter]":
        """Give up all proposals of a kind; return their waiters."""
        pending = self.pending
        ids = [encoded for encoded, waiting in pending.items() if waiting[2] == kind]
        return [pending.pop(encoded)[0] for encoded in ids]

    def _is_done(self, batch: Batch) -> bool:
        return self.pending.keys().isdisjoint(batch.ids)

    def _forget(self, batch: Batch) -> list[Pending]:
        pending = self.pending
        return [pending.pop(encoded) for encoded in batch.ids if encoded in pending]
