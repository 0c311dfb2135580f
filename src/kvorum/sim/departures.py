"""Messages leave a member in the order in which its raft made them.

Raft is safe whatever the order, and the network of half the runs keeps none. But a connection does,
and raft counts on it for speed: an append that overtakes another is refused, and all that follow
are sent once more. So the order is kept where it can be seen, between raft and the way out. Of two
messages to one peer the one that was made first leaves first; promises, which wait for the disk,
keep an order of their own. Some never leave: a later promise stands for those before it.
"""

from collections import deque

from kvorum.raft.core import Raft
from kvorum.raft.messages import Message, MessageType
from kvorum.sim.trace import describe
from kvorum.sim.violation import Violation

GUARANTEE = "messages leave in the order in which raft made them"
_OVERTAKEN_MAX = 100
"""How many messages are remembered that did not leave; a reversed one follows at once."""


class Departures:
    """What the raft of one process has made, and what of it has left."""

    __slots__ = ("_made", "_overtaken", "_seen")

    def __init__(self) -> None:
        # By receiver, and whether they are promises; those that have not left.
        self._made: dict[tuple[int, int], list[Message]] = {}
        self._overtaken: deque[Message] = deque(maxlen=_OVERTAKEN_MAX)
        # Raft's two lists as they were last seen, and how many messages were in them.
        self._seen: list[tuple[list[Message], int]] = [([], 0), ([], 0)]

    def note(self, raft: Raft) -> None:
        """Note what raft has made and not handed out yet."""
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
            # Snapshots have a way of their own, and promises to itself none.
            if message.type != MessageType.SNAP and message.to != sender:
                self._made.setdefault((message.to, kind), []).append(message)
        self._seen[kind] = made, len(made)

    def left(self, name: str, message: Message) -> None:
        """Check a message that leaves."""
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
