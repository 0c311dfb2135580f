"""What a node wants done before it goes on; the embedder's whole view of its progress."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState, Message, Snapshot
from kvorum.raft.states import ReadState, SoftState


@dataclass(slots=True)
class Ready:
    """One batch of work. None or empty means that there is nothing of the kind to do."""

    soft_state: SoftState | None = None  # changed; need not be written
    hard_state: HardState | None = None  # write before the messages are sent
    read_states: Sequence[ReadState] = ()  # serve each once its index is applied
    entries: Sequence[Entry] = ()  # write before the messages are sent
    snapshot: Snapshot | None = None  # write, and give to the application first
    committed_entries: Sequence[Entry] = ()  # apply, in order
    messages: Sequence[Message] = ()  # send after the writes
    must_sync: bool = False  # hard state and entries must be durable, not only written
