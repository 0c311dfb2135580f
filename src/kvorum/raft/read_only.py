"""Linearizable reads that wait for a quorum to confirm the leader.

Reads are numbered within one leadership. Heartbeats carry the number of the newest waiting read; a
peer that echoes it confirms that this node was still its leader after that read, and all earlier
ones, had arrived. The number is made here, so a caller's context may repeat, and a late answer
never confirms a read that came after it.
"""

from collections import deque

from kvorum.raft.messages import Message


class ReadOnly:
    """The reads that wait, in order."""

    __slots__ = ("acknowledged", "confirmed", "unconfirmed")

    def __init__(self) -> None:
        self.confirmed = 0  # the number of the last read that was answered
        # Read number confirmed + 1 + k is element k: the request, and the commit index it saw.
        self.unconfirmed: deque[tuple[Message, int]] = deque()
        self.acknowledged: dict[int, int] = {}  # the highest number each node echoed

    def add(self, request: Message, commit: int, node: int) -> None:
        """Let a read wait; this node, the leader, confirms itself."""
        self.unconfirmed.append((request, commit))
        self.acknowledge(node, self._newest())

    def acknowledge(self, node: int, number: int) -> None:
        """Note the number that a node echoed."""
        # What was never asked for cannot have been confirmed.
        number = min(number, self._newest())
        self.acknowledged[node] = max(number, self.acknowledged.get(node, 0))

    def context(self) -> bytes:
        """Return what heartbeats carry: the newest waiting read, nothing if none waits."""
        return self._newest().to_bytes(8, "little") if self.unconfirmed else b""

    def confirm_up_to(self, number: int) -> list[tuple[Message, int]]:
        """Return the reads that a quorum has confirmed, in order, and forget them."""
        count = min(number - self.confirmed, len(self.unconfirmed))
        if count <= 0:
            return []
        self.confirmed += count
        return [self.unconfirmed.popleft() for _ in range(count)]

    def _newest(self) -> int:
        return self.confirmed + len(self.unconfirmed)
