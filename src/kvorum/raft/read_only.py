"""Linearizable reads that wait for a quorum to confirm the leader.

Reads are numbered within one leadership. Heartbeats carry the number of the newest waiting read. A
peer that echoes the number confirms that this node was still its leader after that read, and all
earlier ones, had arrived. This module assigns the number, so callers may reuse a context, and a
late response never confirms a read that came after it.
"""

from collections import deque

from kvorum.raft.messages import Message


class ReadOnly:
    """The waiting reads, in order."""

    __slots__ = ("acknowledged", "confirmed", "unconfirmed")

    def __init__(self) -> None:
        self.confirmed = 0  # the number of the last answered read
        # Element k has the number confirmed + 1 + k. It holds the request, and the commit index at
        # its arrival.
        self.unconfirmed: deque[tuple[Message, int]] = deque()
        self.acknowledged: dict[int, int] = {}  # the highest number that each node echoed

    def add(self, request: Message, commit: int, node: int) -> None:
        """Queue a read. `node` is this leader, which confirms itself."""
        self.unconfirmed.append((request, commit))
        self.acknowledge(node, self._newest())

    def acknowledge(self, node: int, number: int) -> None:
        """Record the number that a node echoed."""
        # A number above the newest was never sent, so it confirms nothing.
        number = min(number, self._newest())
        self.acknowledged[node] = max(number, self.acknowledged.get(node, 0))

    def context(self) -> bytes:
        """Return the context of heartbeats: the number of the newest waiting read, or nothing."""
        return self._newest().to_bytes(8, "little") if self.unconfirmed else b""

    def confirm_up_to(self, number: int) -> list[tuple[Message, int]]:
        """Remove and return the reads that a quorum has confirmed, in order."""
        count = min(number - self.confirmed, len(self.unconfirmed))
        if count <= 0:
            return []
        self.confirmed += count
        return [self.unconfirmed.popleft() for _ in range(count)]

    def _newest(self) -> int:
        return self.confirmed + len(self.unconfirmed)
