"""The work that a node asks its embedder to do; an embedder sees progress only through it."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState, Message, Snapshot
from kvorum.raft.states import ReadState, SoftState


@dataclass(slots=True)
class Ready:
    """One batch of work. None or an empty sequence means no work of that kind."""

    soft_state: SoftState | None = None  # changed; need not be written
    hard_state: HardState | None = None  # write before the messages are sent
    read_states: Sequence[ReadState] = ()  # serve each once its index is applied
    entries: Sequence[Entry] = ()  # write before the messages are sent
    snapshot: Snapshot | None = None  # write, and hand to the application first
    committed_entries: Sequence[Entry] = ()  # apply, in order
    messages: Sequence[Message] = ()  # send after the writes
    must_sync: bool = False  # the hard state and entries must be durable, not only written
