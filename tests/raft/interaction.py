"""Runs the scenarios about whole groups: nodes, their storage, and messages on their way.

Everything a node logs and everything it hands out is printed, so that a scenario reads as the
transcript of a conversation.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvorum.raft.changes import ConfChange, ConfChangeV2, Transition
from kvorum.raft.config import Config, ReadOnlyOption
from kvorum.raft.describe import entry_text, message_text, ready_text
from kvorum.raft.entries import NO_LIMIT, Entry, EntryType
from kvorum.raft.errors import FatalError, RaftError
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
from kvorum.raft.names import MESSAGE_TYPE_NAMES
from kvorum.raft.rawnode import RawNode
from kvorum.raft.states import ROLE_NAMES
from kvorum.raft.storage import MemoryStorage
from kvorum.raft.wire import decode_conf_change
from tests.raft.changer_driver import TokenError, parse_changes
from tests.raft.datadriven import Case, parse_flag

LEVELS = ["DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE"]
TRANSITIONS = {
    "auto": Transition.AUTO,
    "implicit": Transition.JOINT_IMPLICIT,
    "explicit": Transition.JOINT_EXPLICIT,
}
THREADS = (APPEND_THREAD, APPLY_THREAD)


class ScenarioError(Exception):
    """A command that cannot be carried out; its text is the output."""


class Output:
    """What a scenario prints; the logger of every node."""

    def __init__(self) -> None:
        self.level = LEVELS.index("DEBUG")
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        if self.level < LEVELS.index("NONE"):
            self.parts.append(text)

    def text(self) -> str:
        return "".join(self.parts)

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer, self.parts = self.parts, []
        try:
            yield
        finally:
            inner, self.parts = self.text(), outer
            for line in inner.splitlines():
                self.write(f"  {line}\n")

    def _log(self, level: str, text: str) -> None:
        if self.level <= LEVELS.index(level):
            self.write(f"{level} {text}" + ("" if text.endswith("\n") else "\n"))

    def debug(self, msg: str, /) -> None:
        self._log("DEBUG", msg)

    def info(self, msg: str, /) -> None:
        self._log("INFO", msg)

    def warning(self, msg: str, /) -> None:
        self._log("WARN", msg)

    def error(self, msg: str, /) -> None:
        self._log("ERROR", msg)

    def critical(self, msg: str, /) -> None:
        self._log("FATAL", msg)


class HistoryStorage(MemoryStorage):
    """Its snapshot is always the newest state of the application."""

    def __init__(self, history: list[Snapshot]) -> None:
        super().__init__()
        self.history = history

    def snapshot(self) -> Snapshot:
        return self.history[-1]


@dataclass
class ScenarioNode:
    node: RawNode
    storage: MemoryStorage
    config: Config
    history: list[Snapshot]
    append_work: list[Message] = field(default_factory=list)
    apply_work: list[Message] = field(default_factory=list)


def is_local(message: Message) -> bool:
    ends = (message.sender, message.to)
    return message.sender == message.to or any(end in THREADS for end in ends)


class Interaction:
    """The environment of one scenario file."""

    def __init__(self) -> None:
        self.output = Output()
        self.nodes: list[ScenarioNode] = []
        self.messages: list[Message] = []
        self.random = random.Random(1)
        self.commands: dict[str, Callable[[Case], None]] = {
            "_breakpoint": lambda _: None,
            "add-nodes": self._add_nodes,
            "campaign": lambda case: self._first(case).node.campaign(),
            "propose": self._propose,
            "propose-conf-change": self._propose_conf_change,
            "process-ready": lambda case: self._each(case, "handling Ready", self._ready),
            "process-append-thread": lambda case: self._each(
                case, "processing append thread", self._append_thread
            ),
            "process-apply-thread": lambda case: self._each(
                case, "processing apply thread", self._apply_thread
            ),
            "deliver-msgs": self._deliver_messages,
            "stabilize": self._stabilize,
            "log-level": self._log_level,
            "raft-log": lambda case: self._raft_log(self._first(case)),
            "compact": self._compact,
            "raft-state": self._raft_state,
            "status": self._status,
            "tick-election": lambda case: self._tick(case, self._first(case).config.election_ticks),
            "tick-heartbeat": lambda case: self._tick(
                case, self._first(case).config.heartbeat_ticks
            ),
            "set-randomized-election-timeout": self._set_timeout,
            "transfer-leadership": self._transfer,
            "forget-leader": lambda case: self._first(case).node.forget_leader(),
            "report-unreachable": self._report_unreachable,
            "report-snapshot": self._report_snapshot,
            "read-index": self._read_index,
            "send-snapshot": self._send_snapshot,
        }

    def handle(self, case: Case) -> str:
        self.output.parts = []
        try:
            if case.command not in self.commands:
                raise ScenarioError("unknown command")
            self.commands[case.command](case)
        except (ScenarioError, TokenError, RaftError, FatalError) as error:
            if self.output.level == LEVELS.index("NONE"):
                return str(error)
            self.output.write(str(error))
        return self.output.text() or "ok"

    def _first(self, case: Case) -> ScenarioNode:
        return self.nodes[int(case.arguments[0][0]) - 1]

    def _each(self, case: Case, title: str, action: Callable[[int], None]) -> None:
        ids = case.positional()
        for node in ids:
            if len(ids) == 1:
                action(node)
            else:
                self._titled(node, title, action)

    def _titled(self, node: int, title: str, action: Callable[[int], None]) -> None:
        self.output.write(f"> {node} {title}\n")
        with self.output.indented():
            action(node)

    # Making nodes.

    def _add_nodes(self, case: Case) -> None:
        option = case.text("read-only", "safe")
        if option not in [each.value for each in ReadOnlyOption]:
            raise ScenarioError(f'invalid read-only option "{option}"')
        snapshot = Snapshot(0, 0)
        if any(case.has(name) for name in ("voters", "learners", "index")):
            if case.number("index") <= 1:
                raise ScenarioError("index must be specified as > 1 due to bootstrap")
            snapshot = Snapshot(
                case.number("index"),
                1,
                ConfState(
                    tuple(int(text) for text in case.values("voters")),
                    tuple(int(text) for text in case.values("learners")),
                ),
                case.text("content").encode(),
            )
        for _ in range(int(case.arguments[0][0])):
            history = [snapshot]
            storage = HistoryStorage(history)
            if snapshot.index:
                storage.apply_snapshot(snapshot)
            config = Config(
                id=len(self.nodes) + 1,
                storage=storage,
                logger=self.output,
                random_below=self.random.randrange,
                election_ticks=3,
                heartbeat_ticks=1,
                applied=snapshot.index,
                inflight_messages_max=case.number("inflight", (1 << 31) - 1),
                async_storage_writes=case.flag("async-storage-writes"),
                pre_vote=case.flag("prevote"),
                check_quorum=case.flag("checkquorum"),
                disable_conf_change_validation=case.flag("disable-conf-change-validation"),
                step_down_on_removal=case.flag("step-down-on-removal"),
                message_size_max=NO_LIMIT,
                committed_size_max=case.number("max-committed-size-per-ready"),
                uncommitted_size_max=case.number("max-uncommitted-size"),
                read_only_option=ReadOnlyOption(option),
            )
            self.nodes.append(ScenarioNode(RawNode(config), storage, config, history))

    # Asking nodes for something.

    def _propose(self, case: Case) -> None:
        (_, _), (data, _) = case.arguments
        self._first(case).node.propose(data.encode())

    def _propose_conf_change(self, case: Case) -> None:
        version_1, transition, asked = False, Transition.AUTO, False
        for name, values in case.arguments[1:]:
            if name == "v1":
                version_1 = parse_flag(values[0])
            elif name == "transition":
                if values[0] not in TRANSITIONS:
                    raise ScenarioError(f"unknown transition {values[0]}")
                transition = TRANSITIONS[values[0]]
                asked = transition != Transition.AUTO
            else:
                raise ScenarioError(f"unknown command {name}")
        changes = parse_changes(case.input)
        change: ConfChange | ConfChangeV2 = ConfChangeV2(transition, changes)
        if version_1:
            if len(changes) > 1 or asked:
                raise ScenarioError("v1 conf change can only have one operation and no transition")
            change = ConfChange(*changes[0])
        self._first(case).node.propose_conf_change(change)

    def _tick(self, case: Case, ticks: int) -> None:
        for _ in range(ticks):
            self._first(case).node.tick()

    def _set_timeout(self, case: Case) -> None:
        self._first(case).node.raft.randomized_election_timeout = case.number("timeout")

    def _transfer(self, case: Case) -> None:
        self.nodes[case.number("from") - 1].node.transfer_leader(case.number("to"))

    def _report_unreachable(self, case: Case) -> None:
        ids = case.positional()
        if len(ids) != 2:
            raise ScenarioError(
                "must specify exactly two node indexes: node on which to report, and reported node"
            )
        self.nodes[ids[0] - 1].node.report_unreachable(ids[1])

    def _report_snapshot(self, case: Case) -> None:
        reporter, peer = case.positional()
        self.nodes[reporter - 1].node.report_snapshot(peer, failed=case.flag("failed"))

    def _read_index(self, case: Case) -> None:
        (_, _), (context, _) = case.arguments
        self._first(case).node.read_index(context.encode())

    def _send_snapshot(self, case: Case) -> None:
        sender, to = case.positional()
        source = self.nodes[sender - 1]
        message = Message(
            MessageType.SNAP,
            to=to,
            sender=sender,
            term=source.node.basic_status().hard_state.term,
            snapshot=source.history[-1],
        )
        self.messages.append(message)
        self.output.write(message_text(message))

    # Showing nodes.

    def _log_level(self, case: Case) -> None:
        self._set_level(case.arguments[0][0])

    def _set_level(self, name: str) -> None:
        if name.upper() not in LEVELS:
            raise ScenarioError(f"log levels must be either of [{' '.join(LEVELS)}]")
        self.output.level = LEVELS.index(name.upper())

    def _raft_log(self, node: ScenarioNode) -> None:
        first, last = node.storage.first_index(), node.storage.last_index()
        if first > last:
            self.output.write(f"log is empty: first index={first}, last index={last}")
            return
        for entry in node.storage.entries(first, last + 1, NO_LIMIT):
            self.output.write(f"{entry_text(entry)}\n")

    def _compact(self, case: Case) -> None:
        node, index = case.positional()
        self.nodes[node - 1].storage.compact(index)
        self._raft_log(self.nodes[node - 1])

    def _raft_state(self, _case: Case) -> None:
        for node in self.nodes:
            status = node.node.status()
            voter = "Voter" if status.id in status.config.voters() else "Non-Voter"
            self.output.write(
                f"{status.id}: {ROLE_NAMES[status.soft_state.role]} ({voter}) "
                f"Term:{status.hard_state.term} Lead:{status.soft_state.lead}\n"
            )

    def _status(self, case: Case) -> None:
        for node, peer in self._first(case).node.status().progress.items():
            self.output.write(f"{node}: {peer}\n")

    # Doing what a Ready asks for.

    def _ready(self, number: int) -> None:
        node = self.nodes[number - 1]
        ready = node.node.ready()
        self.output.write(ready_text(ready))
        synchronous = not node.config.async_storage_writes
        if synchronous:
            entries = list(ready.entries)
            self._persist(node, ready.hard_state or NO_HARD_STATE, entries, ready.snapshot)
            self._apply(node, list(ready.committed_entries))
        for message in ready.messages:
            if message.to == APPEND_THREAD:
                node.append_work.append(message)
            elif message.to == APPLY_THREAD:
                node.apply_work.append(message)
            else:
                self.messages.append(message)
        if synchronous:
            node.node.advance()

    def _persist(
        self,
        node: ScenarioNode,
        hard_state: HardState,
        entries: list[Entry],
        snapshot: Snapshot | None,
    ) -> None:
        if hard_state != NO_HARD_STATE:
            node.storage.set_hard_state(hard_state)
        if snapshot is None:
            node.storage.append(entries)
            return
        if entries:
            raise ScenarioError("can't apply snapshot and entries at the same time")
        node.storage.apply_snapshot(snapshot)

    def _apply(self, node: ScenarioNode, entries: list[Entry]) -> None:
        for entry in entries:
            last = node.history[-1]
            payload, state = entry.data, last.conf_state
            if entry.type != EntryType.NORMAL:
                change = decode_conf_change(entry)
                payload, state = change.context, node.node.apply_conf_change(change)
            node.history.append(Snapshot(entry.index, entry.term, state, last.data + payload))

    def _append_thread(self, number: int) -> None:
        node = self.nodes[number - 1]
        if not node.append_work:
            self.output.write("no append work to perform")
            return
        message, responses = self._begin_work(node.append_work.pop(0))
        state = HardState(message.term, message.vote, message.commit)
        self._persist(node, state, list(message.entries), message.snapshot)
        self._end_work(responses)

    def _apply_thread(self, number: int) -> None:
        node = self.nodes[number - 1]
        if not node.apply_work:
            self.output.write("no apply work to perform")
            return
        message, responses = self._begin_work(node.apply_work.pop(0))
        self._apply(node, list(message.entries))
        self._end_work(responses)

    def _begin_work(self, message: Message) -> tuple[Message, list[Message]]:
        responses, message.responses = list(message.responses), ()
        self.output.write(f"Processing:\n{message_text(message)}\n")
        return message, responses

    def _end_work(self, responses: list[Message]) -> None:
        self.output.write("Responses:\n")
        for response in responses:
            self.output.write(f"{message_text(response)}\n")
        self.messages += responses

    # Carrying messages.

    def _deliver_messages(self, case: Case) -> None:
        kind = case.text("type") if case.has("type") else None
        count = 0
        delivered: set[int] = set()
        for name, values in case.arguments:
            if name == "drop":
                for node in map(int, values):
                    assert node not in delivered, f"{node} cannot get and lose its messages"
                    count += self._deliver(node, kind, drop=True)
            elif not values:
                delivered.add(int(name))
                count += self._deliver(int(name), kind, drop=False)
        if not count:
            self.output.write("no messages\n")

    def _deliver(self, to: int, kind: str | None, *, drop: bool) -> int:
        selected = [
            message
            for message in self.messages
            if message.to == to
            and kind in (None, MESSAGE_TYPE_NAMES[message.type])
            and not (drop and is_local(message))
        ]
        self.messages = [
            message for message in self.messages if not any(message is each for each in selected)
        ]
        for message in selected:
            self.output.write(f"{'dropped: ' if drop else ''}{message_text(message)}\n")
            if not drop:
                try:
                    self.nodes[to - 1].node.step(message)
                except RaftError as error:
                    self.output.write(f"{error}\n")
        return len(selected)

    def _stabilize(self, case: Case) -> None:
        level = self.output.level
        if case.has("log-level"):
            self._set_level(case.text("log-level"))
        try:
            ids = case.positional() or list(range(1, len(self.nodes) + 1))
            while self._stabilize_round(ids):
                pass
        finally:
            self.output.level = level

    def _stabilize_round(self, ids: list[int]) -> bool:
        worked = False
        for node in ids:
            if self.nodes[node - 1].node.has_ready():
                worked = True
                self._titled(node, "handling Ready", self._ready)
        for node in ids:
            if any(message.to == node for message in self.messages):
                worked = True
                self._titled(
                    node, "receiving messages", lambda to: void(self._deliver(to, None, drop=False))
                )
        for node in ids:
            if self.nodes[node - 1].append_work:
                worked = True
                self.output.write(f"> {node} processing append thread\n")
                while self.nodes[node - 1].append_work:
                    with self.output.indented():
                        self._append_thread(node)
        for node in ids:
            if self.nodes[node - 1].apply_work:
                worked = True
                self.output.write(f"> {node} processing apply thread\n")
                while self.nodes[node - 1].apply_work:
                    with self.output.indented():
                        self._apply_thread(node)
        return worked


def void(_value: object) -> None:
    """Discard a value where a function must not return one."""
