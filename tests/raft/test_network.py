"""A small group under a hostile network, driven by hypothesis: the safety of Raft, checked.

Messages are dropped, duplicated, reordered and held back; nodes are cut off, crash and come
back with what they had written; entries, changes of the membership and reads are proposed
anywhere. After every step:

- at most one leader is elected in a term (election safety);
- two logs that have the same entry agree on all before it (log matching);
- what was ever committed is in the log of every later leader (leader completeness);
- no two nodes apply different entries at an index (state-machine safety);
- a read never returns an index below one that was committed before it was asked for, so reads
  never go back.
"""

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvorum.raft.changes import Change, ConfChangeV2, Transition
from kvorum.raft.entries import NO_LIMIT, Entry, EntryType
from kvorum.raft.errors import RaftError
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    NO_HARD_STATE,
    ConfState,
    HardState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.rawnode import RawNode
from kvorum.raft.states import Role
from kvorum.raft.storage import MemoryStorage
from kvorum.raft.wire import decode_conf_change, decode_message, encode_message
from tests.raft.cores import new_config

FIRST = Snapshot(1, 1, ConfState((1, 2, 3)))
NODES = (1, 2, 3, 4)  # the fourth joins, if a change lets it


class Written(MemoryStorage):
    """What a member has written; on a restart its application names the members."""

    def __init__(self) -> None:
        super().__init__()
        self.members = ConfState()

    def initial_state(self) -> tuple[HardState, ConfState]:
        return super().initial_state()[0], self.members


class Member:
    """A node, what it has written, and its application: the entries it has applied."""

    def __init__(self, node: int, options: dict[str, Any]) -> None:
        self.id = node
        self.options = options
        self.storage = Written()
        if node in FIRST.conf_state.voters:
            self.storage.apply_snapshot(FIRST)
        # The application is durable with what it applied.
        self.applied_index = self.storage.snapshot().index
        self.conf_state = self.storage.snapshot().conf_state
        self.append_work: list[Message] = []
        self.apply_work: list[Message] = []
        self.start()

    def start(self) -> None:
        """Start, or start again after a crash: whatever was not written is lost."""
        self.append_work.clear()
        self.apply_work.clear()
        self.storage.members = self.conf_state
        # What was applied is committed, though the write that says so may have been lost.
        state = self.storage.initial_state()[0]
        if state.commit < self.applied_index > 1:
            self.storage.set_hard_state(state._replace(commit=self.applied_index))
        self.node = RawNode(
            new_config(
                self.id,
                self.storage,
                random_below=random.Random(self.id).randrange,
                election_ticks=3,
                applied=self.applied_index,
                **self.options,
            )
        )


nodes = st.sampled_from(NODES)


class Network(RuleBasedStateMachine):
    """The group, the messages on their way, and everything that was ever seen."""

    @initialize(
        pre_vote=st.booleans(),
        check_quorum=st.booleans(),
        asynchronous=st.booleans(),
        size=st.sampled_from([NO_LIMIT, 30]),
        window=st.sampled_from([1, 4]),
    )
    def begin(
        self,
        pre_vote: bool,
        check_quorum: bool,
        asynchronous: bool,
        size: int,
        window: int,
    ) -> None:
        options = {
            "pre_vote": pre_vote,
            "check_quorum": check_quorum,
            "async_storage_writes": asynchronous,
            "message_size_max": size,
            "inflight_messages_max": window,
            "step_down_on_removal": True,
            "tell_commit_to_voters": True,
        }
        self.asynchronous = asynchronous
        self.members = {node: Member(node, options) for node in NODES}
        self.wire: list[bytes] = []
        self.cut: set[int] = set()
        self.leaders: dict[int, int] = {}  # who led each term
        self.applied: dict[int, Entry] = {}  # what was applied at each index, by anyone
        self.committed = 1  # the greatest index that anyone knows to be committed
        self.reads: dict[bytes, int] = {}  # what was committed when each read was asked for
        self.count = 0
        # A group that leads and commits is the more interesting one to disturb.
        self.campaign(1)
        self.settle(8)

    # What happens.

    @rule(node=nodes, count=st.integers(1, 6))
    def tick(self, node: int, count: int) -> None:
        for _ in range(count):
            self.members[node].node.tick()
        self._work(node)

    @rule(node=nodes)
    def campaign(self, node: int) -> None:
        self.members[node].node.campaign()
        self._work(node)

    @rule(node=nodes, count=st.integers(1, 3))
    def propose(self, node: int, count: int) -> None:
        payloads = []
        for _ in range(count):
            self.count += 1
            payloads.append(b"%d" % self.count)
        self._try(node, lambda raw: raw.propose_batch(payloads))

    @rule(
        node=nodes,
        changes=st.lists(
            st.builds(Change, st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3
        ),
        transition=st.sampled_from([Transition.AUTO, Transition.JOINT_IMPLICIT]),
    )
    def change_members(self, node: int, changes: list[Change], transition: int) -> None:
        # Node 1 always stays a voter, so that no change removes all of them.
        kept = tuple(change for change in changes if change.node_id != 1)
        if kept:
            self._try(node, lambda raw: raw.propose_conf_change(ConfChangeV2(transition, kept)))

    @rule(node=nodes)
    def read(self, node: int) -> None:
        self.count += 1
        context = b"read %d" % self.count
        self.reads[context] = self.committed
        self._try(node, lambda raw: raw.read_index(context))

    @rule(node=nodes, peer=nodes)
    def transfer(self, node: int, peer: int) -> None:
        self._try(node, lambda raw: raw.transfer_leader(peer))

    @rule(node=nodes)
    def forget_leader(self, node: int) -> None:
        self._try(node, lambda raw: raw.forget_leader())

    @rule(node=nodes, peer=nodes)
    def report_unreachable(self, node: int, peer: int) -> None:
        self._try(node, lambda raw: raw.report_unreachable(peer))

    @rule(node=nodes, peer=nodes, failed=st.booleans())
    def report_snapshot(self, node: int, peer: int, failed: bool) -> None:
        self._try(node, lambda raw: raw.report_snapshot(peer, failed=failed))

    @rule(node=nodes)
    def isolate(self, node: int) -> None:
        self.cut.add(node)

    @rule()
    def heal(self) -> None:
        self.cut.clear()

    @rule(node=nodes)
    def crash(self, node: int) -> None:
        self.members[node].start()
        self._work(node)

    @rule(node=nodes)
    def compact(self, node: int) -> None:
        member = self.members[node]
        index = member.applied_index
        if index > member.storage.snapshot().index and index <= member.storage.last_index():
            member.storage.create_snapshot(index, member.conf_state, b"")
            member.storage.compact(index)

    @rule(
        positions=st.lists(st.integers(0, 9), min_size=1, max_size=12),
        fate=st.sampled_from(["arrive", "arrive twice", "get lost"]),
    )
    def deliver(self, positions: list[int], fate: str) -> None:
        """Some messages of those on their way, not always the oldest."""
        for position in positions:
            if self.wire:
                position %= len(self.wire)
                twice = fate == "arrive twice"
                frame = self.wire[position] if twice else self.wire.pop(position)
                if fate != "get lost":
                    self._carry(frame)

    @rule(rounds=st.integers(1, 8))
    def settle(self, rounds: int) -> None:
        """Everything is written and arrives, in order."""
        for _ in range(rounds):
            for node in NODES:
                self.write(node, 3)
            frames, self.wire = self.wire, []
            for frame in frames:
                self._carry(frame)

    @rule(node=nodes, count=st.integers(1, 3))
    def write(self, node: int, count: int) -> None:
        """The storage threads of a node get some work done."""
        member = self.members[node]
        for _ in range(count):
            for queue in (member.append_work, member.apply_work):
                if queue:
                    self._finish(member, queue.pop(0))
        self._work(node)

    # How it happens.

    def _try(self, node: int, call: Any) -> None:
        with suppress(RaftError):
            call(self.members[node].node)
        self._work(node)

    def _carry(self, frame: bytes) -> None:
        message = decode_message(frame)
        if message.to in self.members and not {message.sender, message.to} & self.cut:
            self._try(message.to, lambda raw: raw.step(message))

    def _work(self, node: int) -> None:
        member = self.members[node]
        while member.node.has_ready():
            ready = member.node.ready()
            for state in ready.read_states:
                assert state.index >= self.reads[state.context], f"{state} went back"
            if not self.asynchronous:
                self._write(
                    member, ready.hard_state or NO_HARD_STATE, ready.entries, ready.snapshot
                )
            for message in ready.messages:
                if message.to == APPEND_THREAD:
                    member.append_work.append(message)
                elif message.to == APPLY_THREAD:
                    member.apply_work.append(message)
                else:
                    self.wire.append(encode_message(message))
            if not self.asynchronous:
                self._apply(member, ready.committed_entries)
                member.node.advance()
        self._look(member)

    def _finish(self, member: Member, work: Message) -> None:
        if work.type == MessageType.STORAGE_APPEND:
            state = HardState(work.term, work.vote, work.commit)
            self._write(member, state, work.entries, work.snapshot)
        else:
            self._apply(member, work.entries)
        for response in work.responses:
            if response.to == member.id:
                with suppress(RaftError):  # removed meanwhile
                    member.node.step(response)
            else:
                self.wire.append(encode_message(response))

    def _write(
        self, member: Member, state: HardState, entries: Any, snapshot: Snapshot | None
    ) -> None:
        if state != NO_HARD_STATE:
            member.storage.set_hard_state(state)
        if snapshot is not None:
            member.storage.apply_snapshot(snapshot)
            member.applied_index, member.conf_state = snapshot.index, snapshot.conf_state
        member.storage.append(entries)

    def _apply(self, member: Member, entries: Any) -> None:
        for entry in entries:
            if self.asynchronous and entry.index <= member.applied_index:
                continue  # a snapshot was written while this waited
            assert entry.index == member.applied_index + 1, f"{entry} after {member.applied_index}"
            known = self.applied.setdefault(entry.index, entry)
            assert known == entry, f"{member.id} applied {entry}, another one {known}"
            if entry.type != EntryType.NORMAL:
                member.conf_state = member.node.apply_conf_change(decode_conf_change(entry))
            member.applied_index = entry.index

    def _look(self, member: Member) -> None:
        raft = member.node.raft
        self.committed = max(self.committed, raft.log.committed)
        if raft.role == Role.LEADER:
            known = self.leaders.setdefault(raft.term, member.id)
            assert known == member.id, f"{known} and {member.id} lead term {raft.term}"

    # What must hold.

    @invariant()
    def logs_match(self) -> None:
        if not hasattr(self, "members"):
            return
        logs = {node: log_of(member) for node, member in self.members.items()}
        for node, log in logs.items():
            for other, their_log in logs.items():
                shared = [index for index in log if log[index] == their_log.get(index)]
                if node < other and shared:
                    below = [index for index in log if index < shared[-1] and index in their_log]
                    assert all(log[index] == their_log[index] for index in below), (log, their_log)

    @invariant()
    def leaders_are_complete(self) -> None:
        if not hasattr(self, "members"):
            return
        newest = max((member.node.raft.term for member in self.members.values()), default=0)
        for member in self.members.values():
            raft = member.node.raft
            if raft.role == Role.LEADER and raft.term == newest:
                assert raft.log.last_index() >= self.committed
                log = log_of(member)
                for index, entry in self.applied.items():
                    assert index not in log or log[index] == entry.term, f"{entry} is lost"

    @invariant()
    def nothing_goes_back(self) -> None:
        if not hasattr(self, "members"):
            return
        for member in self.members.values():
            log = member.node.raft.log
            assert log.applied <= log.applying <= log.committed <= log.last_index()


def log_of(member: Member) -> dict[int, int]:
    """The terms of a log, by index."""
    log = member.node.raft.log
    first, last = log.first_index(), log.last_index()
    return {entry.index: entry.term for entry in log.slice(first, last + 1, NO_LIMIT)}


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def act_at_random(network: Network, source: random.Random) -> None:
    """Take one of the steps above; the ones that move the group on are the most likely."""
    node, peer = source.choice(NODES), source.choice(NODES)
    changes = [
        Change(source.randrange(4), source.randint(2, 4)) for _ in range(source.randint(1, 3))
    ]
    fate = source.choice(["arrive", "arrive", "arrive", "arrive twice", "get lost"])
    positions = [source.randrange(10) for _ in range(source.randint(1, 12))]
    steps = {
        20: lambda: network.settle(source.randint(1, 4)),
        19: lambda: network.deliver(positions, fate),
        18: lambda: network.write(node, source.randint(1, 3)),
        17: lambda: network.tick(node, source.randint(1, 4)),
        12: lambda: network.propose(node, source.randint(1, 3)),
        10: lambda: network.read(node),
        8: lambda: network.heal(),
        5: lambda: network.isolate(node),
        4: lambda: network.change_members(node, changes, source.randint(0, 1)),
        3: lambda: network.compact(node),
        2.5: lambda: network.crash(node),
        2: lambda: network.transfer(node, peer),
        1.5: lambda: network.campaign(node),
        1.2: lambda: network.report_snapshot(node, peer, source.random() < 0.5),
        1.1: lambda: network.report_unreachable(node, peer),
        1.0: lambda: network.forget_leader(node),
    }
    source.choices(list(steps.values()), weights=list(steps))[0]()


@pytest.mark.long
@given(st.integers(0, 1 << 32))
def test_long_histories(seed: int) -> None:
    source = random.Random(seed)
    network = Network()
    network.begin(
        source.random() < 0.5,
        source.random() < 0.5,
        source.random() < 0.5,
        source.choice([NO_LIMIT, 30]),
        source.choice([1, 4]),
    )
    for _ in range(250):
        act_at_random(network, source)
        network.logs_match()
        network.leaders_are_complete()
        network.nothing_goes_back()
    assert commits_in_peace(network), "the group is stuck"


def commits_in_peace(network: Network) -> bool:
    """Without faults, the group elects a leader and commits something new.

    A removed node that does not know it would disturb the others for ever, if not for the two
    options against that.
    """
    network.heal()
    for member in network.members.values():
        config = member.node.raft.config
        config.pre_vote = config.check_quorum = True
    before = network.committed
    for _ in range(300):
        for node in NODES:
            network.tick(node, 1)
            network.propose(node, 1)
            # A peer that was added later than the snapshot would refuse it.
            network.compact(node)
            for peer in NODES:
                network.report_snapshot(node, peer, failed=True)
        network.settle(4)
        if network.committed > before + 2:
            return True
    return removed_leader_took_its_vote(network)


def removed_leader_took_its_vote(network: Network) -> bool:
    """Tell whether the group waits for one that has left it: a known hole of the protocol.

    A leader that removed itself may be the only one to know, with entries behind the change.
    Those left still need its vote, which it refuses to their shorter logs, and it does not
    stand itself. Its refusal tells them of the change, unless it has compacted what they share;
    then an operator has to bring it back, or to force a new group.
    """
    cores = [member.node.raft for member in network.members.values()]
    newest = max(cores, key=lambda core: core.log.committed)
    voters = newest.tracker.config.voters()
    longest = max(core.log.last_entry_id() for core in cores if core.id in voters)
    return any(core.log.last_entry_id() > longest for core in cores if core.id not in voters)
