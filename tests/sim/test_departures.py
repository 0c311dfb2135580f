"""Messages that leave in another order than raft's are noticed; those that never leave are not."""

from random import Random

import pytest

from kvorum.raft.config import Config
from kvorum.raft.core import Raft
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.storage import MemoryStorage
from kvorum.sim.departures import GUARANTEE, Departures
from kvorum.sim.logs import CollectedLogs
from kvorum.sim.violation import Violation
from kvorum.sim.world import World

OWN, PEER, OTHER = 1, 2, 3


def raft() -> Raft:
    return Raft(
        Config(
            id=OWN,
            storage=MemoryStorage(),
            logger=CollectedLogs(World(1), "m1"),
            election_ticks=10,
            heartbeat_ticks=1,
            random_below=Random(1).randrange,
        )
    )


def append(index: int, to: int = PEER) -> Message:
    return Message(MessageType.APP, to=to, sender=OWN, term=1, index=index)


def promise(index: int) -> Message:
    return Message(MessageType.APP_RESP, to=PEER, sender=OWN, term=1, index=index)


def test_the_order_is_kept_for_each_peer() -> None:
    departures, made = Departures(), raft()
    first, second, third = append(1), append(2), append(3)
    elsewhere = append(1, OTHER)
    made.messages = [first, elsewhere, second, third]
    departures.note(made)
    # Between two peers there is no order, and one may be lost.
    departures.left("m1", first)
    departures.left("m1", third)
    departures.left("m1", elsewhere)
    with pytest.raises(Violation, match=GUARANTEE):
        departures.left("m1", second)


def test_equal_messages_are_distinguished() -> None:
    departures, made = Departures(), raft()
    messages = [append(1), append(1)]
    made.messages = messages
    departures.note(made)
    departures.left("m1", messages[1])
    with pytest.raises(Violation, match=GUARANTEE):
        departures.left("m1", messages[0])


def test_promises_wait_for_the_disk() -> None:
    departures, made = Departures(), raft()
    early, late, message = promise(1), promise(2), append(1)
    made.messages_after_append = [early, late]
    departures.note(made)
    made.messages = [message]
    departures.note(made)
    departures.left("m1", message)
    # One that says more stands for both.
    departures.left("m1", late)
    with pytest.raises(Violation, match=GUARANTEE):
        departures.left("m1", early)


def test_what_raft_still_has_is_noted_once() -> None:
    departures, made = Departures(), raft()
    first, second, third = append(1), append(2), append(3)
    made.messages = [first]
    departures.note(made)
    made.messages.append(second)
    departures.note(made)
    departures.note(made)
    made.messages = [third]
    departures.note(made)
    for message in (first, second, third):
        departures.left("m1", message)
    # Made and sent within one turn: nobody looked between.
    departures.left("m1", append(4))
