"""Bare cores and a network that loses only what it is told to, for tests of single rules."""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvorum.raft import membership
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.config import Config
from kvorum.raft.core import Raft
from kvorum.raft.entries import NO_LIMIT, Entry, EntryType
from kvorum.raft.errors import RaftError
from kvorum.raft.messages import ConfState, HardState, Message, MessageType, Snapshot
from kvorum.raft.rawnode import RawNode
from kvorum.raft.replication import broadcast_append
from kvorum.raft.states import Role
from kvorum.raft.storage import MemoryStorage

FOLLOWER, CANDIDATE, LEADER = Role.FOLLOWER, Role.CANDIDATE, Role.LEADER
PRE_CANDIDATE = Role.PRE_CANDIDATE

RANDOM = random.Random(4)


class Lines:
    """A logger that keeps every line with its level."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def debug(self, msg: str, /) -> None:
        self.lines.append(f"DEBUG {msg}")

    def info(self, msg: str, /) -> None:
        self.lines.append(f"INFO {msg}")

    def warning(self, msg: str, /) -> None:
        self.lines.append(f"WARN {msg}")

    def error(self, msg: str, /) -> None:
        self.lines.append(f"ERROR {msg}")

    def critical(self, msg: str, /) -> None:
        self.lines.append(f"FATAL {msg}")

    def take(self) -> list[str]:
        taken, self.lines = self.lines, []
        return taken


def lines_of(core: Raft) -> Lines:
    assert isinstance(core.logger, Lines)
    return core.logger


class StoredLog(MemoryStorage):
    """A storage made of terms; its members can be set without a snapshot."""

    def __init__(
        self,
        *terms: int,
        snapshot: Snapshot | None = None,
        hard_state: HardState | None = None,
    ) -> None:
        super().__init__()
        if snapshot is not None:
            self.apply_snapshot(snapshot)
        self.append(entries(self.first_index(), *terms))
        if hard_state is not None:
            self.set_hard_state(hard_state)

    def set_members(self, voters: Iterable[int], learners: Iterable[int] = ()) -> None:
        self._snapshot = replace(
            self._snapshot, conf_state=ConfState(tuple(voters), tuple(learners))
        )


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(EntryType.NORMAL, term, index) for index, term in enumerate(terms, first)]


def new_config(node: int, storage: MemoryStorage, **options: Any) -> Config:
    settings: dict[str, Any] = {
        "id": node,
        "storage": storage,
        "logger": Lines(),
        "random_below": RANDOM.randrange,
        "election_ticks": 10,
        "heartbeat_ticks": 1,
        "message_size_max": NO_LIMIT,
        "inflight_messages_max": 256,
    }
    return Config(**{**settings, **options})


def new_core(
    node: int,
    voters: Sequence[int] = (1,),
    *,
    learners: Sequence[int] = (),
    storage: StoredLog | None = None,
    **options: Any,
) -> Raft:
    storage = storage or StoredLog()
    if voters or learners:
        storage.set_members(voters, learners)
    return Raft(new_config(node, storage, **options))


def new_raw_node(
    node: int,
    voters: Sequence[int] = (1,),
    *,
    learners: Sequence[int] = (),
    storage: StoredLog | None = None,
    **options: Any,
) -> RawNode:
    storage = storage or StoredLog()
    if voters or learners:
        storage.set_members(voters, learners)
    return RawNode(new_config(node, storage, **options))


def storage_of(core: Raft) -> StoredLog:
    assert isinstance(core.log.storage, StoredLog)
    return core.log.storage


def lead(core: Raft) -> Raft:
    core.become_candidate()
    core.become_leader()
    return core


def flush(core: Raft) -> None:
    """Make everything appended so far durable."""
    while core.messages_after_append:
        waiting, core.messages_after_append = core.messages_after_append, []
        for message in waiting:
            if message.to == core.id:
                core.step(message)
            else:
                core.messages.append(message)


def read(core: Raft) -> list[Message]:
    flush(core)
    taken, core.messages = core.messages, []
    return taken


def next_entries(core: Raft) -> list[Entry]:
    """Write what is unstable, and apply what is committed."""
    storage = storage_of(core)
    storage.append(core.log.unstable.next_entries())
    term, index = core.log.last_entry_id()
    core.log.unstable.stable_to(term, index)
    flush(core)
    taken = core.log.next_committed(allow_unstable=True)
    core.log.applied_to(core.log.committed, 0)
    return taken


def hup(node: int) -> Message:
    return Message(MessageType.HUP, to=node, sender=node)


def beat(node: int) -> Message:
    return Message(MessageType.BEAT, to=node, sender=node)


def prop(node: int, data: bytes = b"somedata") -> Message:
    entry = Entry(EntryType.NORMAL, 0, 0, data)
    return Message(MessageType.PROP, to=node, sender=node, entries=[entry])


def transfer(target: int, at: int) -> Message:
    return Message(MessageType.TRANSFER_LEADER, to=at, sender=target)


def tick_through(core: Raft) -> None:
    for _ in range(core.randomized_election_timeout):
        core.tick()


def propose(core: Raft, data: bytes = b"somedata") -> None:
    core.step(prop(core.id, data))


def add_node(core: Raft, node: int) -> None:
    membership.apply_conf_change(core, ConfChange(ChangeType.ADD_NODE, node))


def add_learner(core: Raft, node: int) -> None:
    membership.apply_conf_change(core, ConfChange(ChangeType.ADD_LEARNER_NODE, node))


def remove_node(core: Raft, node: int) -> None:
    membership.apply_conf_change(core, ConfChange(ChangeType.REMOVE_NODE, node))


def all_entries(core: Raft) -> list[Entry]:
    first, last = core.log.first_index(), core.log.last_index()
    return core.log.slice(first, last + 1, NO_LIMIT)


def terms(core: Raft) -> list[int]:
    return [entry.term for entry in all_entries(core)]


class Net:
    """Cores that talk to each other; `None` in a place is a member that never answers."""

    def __init__(self, cores: Sequence[Raft | None]) -> None:
        self.cores = dict(enumerate(cores, 1))
        self.cut_links: set[tuple[int, int]] = set()
        self.ignored: set[int] = set()
        self.hook: Callable[[Message], bool] = lambda _: True
        voters = tuple(self.cores)
        for node, core in self.cores.items():
            if core is not None:
                self._adopt(core, node, voters)

    @staticmethod
    def _adopt(core: Raft, node: int, voters: tuple[int, ...]) -> None:
        learners = tuple(each for each, peer in core.tracker.progress.items() if peer.is_learner)
        core.id = node
        rest = tuple(voter for voter in voters if voter not in learners)
        membership.restore_config(core, ConfState(rest, learners))
        core.reset(core.term)

    @classmethod
    def of(cls, count: int, **options: Any) -> "Net":
        peers = range(1, count + 1)
        return cls([new_core(node, tuple(peers), **options) for node in peers])

    def __getitem__(self, node: int) -> Raft:
        core = self.cores[node]
        assert core is not None
        return core

    def send(self, *messages: Message) -> None:
        waiting = list(messages)
        while waiting:
            message = waiting.pop(0)
            core = self.cores.get(message.to)
            if core is None:
                continue
            with suppress(RaftError):
                core.step(message)
            waiting += self.filter(read(core))

    def filter(self, messages: Iterable[Message]) -> list[Message]:
        return [
            message
            for message in messages
            if (message.sender, message.to) not in self.cut_links
            and message.type not in self.ignored
            and message.type != MessageType.HUP
            and self.hook(message)
        ]

    def cut(self, one: int, other: int) -> None:
        self.cut_links |= {(one, other), (other, one)}

    def isolate(self, node: int) -> None:
        for other in self.cores:
            if other != node:
                self.cut(node, other)

    def recover(self) -> None:
        self.cut_links.clear()
        self.ignored.clear()
        self.hook = lambda _: True

    def roles(self) -> list[int]:
        return [self[node].role for node in self.cores]

    def terms(self) -> list[int]:
        return [self[node].term for node in self.cores]


def replicating_leader(node: int = 1, peers: tuple[int, ...] = (1, 2, 3)) -> Raft:
    """A leader whose first entry is committed, with every peer replicating."""
    core = lead(new_core(node, peers))
    broadcast_append(core)
    read(core)
    for peer in peers:
        if peer != node:
            core.step(Message(MessageType.APP_RESP, to=node, sender=peer, term=core.term, index=1))
    read(core)
    assert core.log.committed == 1
    return core
