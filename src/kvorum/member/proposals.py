"""What was proposed and waits for its entry to be applied here.

Proposals are gathered during a turn and handed to raft as one batch. A batch that raft does not
take for want of a leader waits; after the time for requests it fails with the text that says
it never began. One that was taken and is not applied in time has an unknown outcome.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from kvorum.member.requests import Token
from kvorum.raft.errors import ProposalDroppedError
from kvorum.raft.messages import NONE

if TYPE_CHECKING:
    from kvorum.member.procedures import Procedure
    from kvorum.raft.rawnode import RawNode


Pending = tuple["int | Procedure | None", int, Any]
"""Who waits, the kind of the request, and the request as it was decoded already."""


class Batch:
    """Proposals that were made in one turn."""

    __slots__ = ("is_taken", "payloads", "started", "tokens")

    def __init__(self, started: float, payloads: list[bytes], tokens: list[Token]) -> None:
        self.started = started
        self.payloads = payloads
        self.tokens = tokens
        self.is_taken = False


class Proposals:
    """Everything proposed by this member and not yet answered."""

    __slots__ = ("_batches", "_untaken", "payloads", "pending", "tokens")

    def __init__(self) -> None:
        self.pending: dict[Token, Pending] = {}
        # What was proposed since the last turn; `Member.propose` adds to all three by itself.
        self.payloads: list[bytes] = []
        self.tokens: list[Token] = []
        # Oldest first; every batch that may have someone waiting.
        self._batches: deque[Batch] = deque()
        self._untaken: deque[Batch] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether something has yet to be given to raft."""
        return bool(self.payloads or self._untaken)

    def submit(self, node: "RawNode", now: float) -> list[Pending]:
        """Give raft what was gathered; return what it refused for good.

        Without a leader nothing is refused: it waits for one, or for its time to end.
        """
        if self.payloads:
            batch = Batch(now, self.payloads, self.tokens)
            self.payloads, self.tokens = [], []
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
        """Give up the batches that began before a moment; return who still waited in them."""
        expired = []
        batches = self._batches
        while batches and (batches[0].started <= started_before or self._is_done(batches[0])):
            batch = batches.popleft()
            if self._untaken and self._untaken[0] is batch:
                self._untaken.popleft()
            if waiting := self._forget(batch):
                expired.append((batch, waiting))
        return expired

    @property
    def oldest(self) -> float | None:
        """When the oldest batch that may be waited for began."""
        return self._batches[0].started if self._batches else None

    def give_up(self, kind: int) -> list[Pending]:
        """Give up all proposals of a kind; return who waited for them."""
        pending = self.pending
        tokens = [token for token, waiting in pending.items() if waiting[1] == kind]
        return [pending.pop(token) for token in tokens]

    def _is_done(self, batch: Batch) -> bool:
        return self.pending.keys().isdisjoint(batch.tokens)

    def _forget(self, batch: Batch) -> list[Pending]:
        pending = self.pending
        return [pending.pop(token) for token in batch.tokens if token in pending]
