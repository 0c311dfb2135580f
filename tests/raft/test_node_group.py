"""Five Nodes in their loops: progress, pauses, and restarts from what was written."""

from kvorum.raft.entries import NO_LIMIT
from kvorum.raft.errors import RaftError
from kvorum.raft.messages import Message
from kvorum.raft.node import restart_node, start_node
from kvorum.raft.wire import decode_conf_change
from tests.raft.cores import StoredLog, new_config

PEERS = [(node, b"") for node in (1, 2, 3, 4, 5)]


class Group:
    """Nodes, their storages, and the messages between them. Each tick is one round."""

    def __init__(self) -> None:
        self.storages = {node: StoredLog() for node, _ in PEERS}
        self.nodes = {
            node: start_node(new_config(node, self.storages[node]), PEERS, self.wake)
            for node, _ in PEERS
        }
        self.paused: set[int] = set()
        self.wire: list[Message] = []
        self.accepted = 0

    @staticmethod
    def wake() -> None:
        """The loop below never sleeps."""

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for node in self.nodes:
                if node not in self.paused:
                    self.nodes[node].tick()
                    self.work(node)
            waiting, self.wire = self.wire, []
            for message in waiting:
                if message.to in self.nodes and message.to not in self.paused:
                    self.nodes[message.to].step(message)

    def work(self, number: int) -> None:
        node, storage = self.nodes[number], self.storages[number]
        while (ready := node.poll()) is not None:
            if ready.hard_state is not None:
                storage.set_hard_state(ready.hard_state)
            storage.append(ready.entries)
            self.wire += ready.messages
            for entry in ready.committed_entries:
                if entry.type:
                    node.apply_conf_change(decode_conf_change(entry))
            node.advance()

    def propose(self, node: int, count: int) -> None:
        for number in range(count):
            self.nodes[node].propose(b"%d" % number, self._note)

    def _note(self, error: RaftError | None) -> None:
        self.accepted += error is None

    def crash(self, node: int) -> None:
        self.nodes[node].stop()
        del self.nodes[node]

    def restart(self, node: int) -> None:
        self.nodes[node] = restart_node(new_config(node, self.storages[node]), self.wake)

    def leader(self) -> int:
        return next(iter(self.nodes.values())).status().soft_state.lead

    def commits(self) -> set[int]:
        return {node.status().hard_state.commit for node in self.nodes.values()}

    def logs(self) -> list[list[bytes]]:
        return [
            [entry.data for entry in log.entries(1, log.last_index() + 1, NO_LIMIT)]
            for log in self.storages.values()
        ]


def elected() -> Group:
    group = Group()
    group.run(60)
    assert group.leader()
    return group


def test_progress() -> None:
    group = elected()
    group.propose(1, 100)
    group.run(30)
    (commit,) = group.commits()
    assert group.accepted == 100
    assert commit > 100
    assert all(log == group.logs()[0] for log in group.logs())


def followers(group: Group) -> list[int]:
    return [node for node in group.nodes if node != group.leader()]


def test_pause() -> None:
    group = elected()
    leader = group.leader()
    group.propose(leader, 30)
    group.run(5)
    first, second = followers(group)[:2]
    group.paused = {first, second}
    group.propose(leader, 90)
    group.run(20)
    assert group.accepted == 120
    assert len(group.commits()) > 1
    group.paused.clear()
    group.run(30)
    (commit,) = group.commits()
    assert commit > 120


def test_restart() -> None:
    group = elected()
    leader = group.leader()
    first, second = followers(group)[:2]
    group.propose(leader, 30)
    group.run(5)
    group.crash(first)
    group.propose(leader, 30)
    group.run(5)
    group.crash(second)
    group.propose(leader, 30)
    group.run(5)
    group.restart(second)
    group.propose(leader, 30)
    group.run(5)
    group.restart(first)
    group.run(30)
    (commit,) = group.commits()
    assert commit > 120
    assert all(log == group.logs()[0] for log in group.logs())
