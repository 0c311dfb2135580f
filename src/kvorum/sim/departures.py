"""Messages leave a member in the order in which its raft made them.

Raft is safe whatever the order, and the network of half the runs keeps none. But a connection does,
and raft counts on it for speed: a follower refuses an append that overtakes another, and the leader
sends it and all that follow once more. So the order is checked where it can be seen, between raft
and the transport. Of two messages to one peer the one that raft made first leaves first; promises,
which wait for the disk, keep an order of their own. Some messages never leave: a later promise
stands for those before it.
"""

from collections import deque

from kvorum.raft.core import Raft
from kvorum.raft.messages import Message, MessageType
from kvorum.sim.trace import describe
from kvorum.sim.violation import Violation

GUARANTEE = "messages leave in the order in which raft made them"
_OVERTAKEN_MAX = 100
"""How many overtaken messages are remembered; a message out of order follows at once."""


class Departures:
    """The messages that the raft of one process has made, and that have not left yet."""

    __slots__ = ("_made", "_overtaken", "_seen")

    def __init__(self) -> None:
        # Messages that have not left, by receiver and by whether they are promises.
        self._made: dict[tuple[int, int], list[Message]] = {}
        self._overtaken: deque[Message] = deque(maxlen=_OVERTAKEN_MAX)
        # Raft's two lists at the last call, and how many messages were in them.
        self._seen: list[tuple[list[Message], int]] = [([], 0), ([], 0)]

    def note(self, raft: Raft) -> None:
        """Record the messages that raft has made and not handed out yet."""
        made, promised = raft.messages, raft.messages_after_append
        seen, count = self._seen[0]
        if made is not seen or len(made) != count:
            self._add(0, made, raft.id)
        seen, count = self._seen[1]
        if promised is not seen or len(promised) != count:
            self._add(1, promised, raft.id)

    def _add(self, kind: int, made: list[Message], sender: int) -> None:
        seen, count = self._seen[kind]
        for message in made[count if seen is made else 0 :]:
            # Snapshots take another path, and promises to itself never leave.
            if message.type != MessageType.SNAP and message.to != sender:
                self._made.setdefault((message.to, kind), []).append(message)
        self._seen[kind] = made, len(made)

    def left(self, name: str, message: Message) -> None:
        """Require that a message leaves before those to the same peer that were made later."""
        for kind in range(len(self._seen)):
            made = self._made.get((message.to, kind), [])
            for place, each in enumerate(made):
                if each is message:
                    self._overtaken += made[:place]
                    del made[: place + 1]
                    return
        if any(each is message for each in self._overtaken):
            raise Violation(
                GUARANTEE, f"{name} sends {describe(message)} after what was made later"
            )
