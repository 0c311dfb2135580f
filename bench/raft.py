"""Measure how many entries per second three nodes in one process commit and apply.

Messages pass through lists and logs stay in memory, so the result is the cost of the consensus code
alone, for three nodes on one core. Seconds are processor time, and the cyclic garbage collector is
off, as in the server. On a shared machine rounds differ much; the best one is the nearest to the
code's own cost. Run it as `python -m bench.raft`; `--profile` shows where the time goes.
"""

import argparse
import cProfile
import gc
import logging
import pstats
import random
import statistics
import time

from kvorum.raft.config import Config
from kvorum.raft.entries import EntryType
from kvorum.raft.messages import ConfState, Message, Snapshot
from kvorum.raft.rawnode import RawNode
from kvorum.raft.storage import MemoryStorage

PAYLOAD = bytes(256)
GOALS = {200: 150_000, 1: 8_000}  # entries per second, by the size of a batch
ROUNDS = 9


class Group:
    """Three nodes that handle each Ready immediately."""

    def __init__(self, log_length: int = 0) -> None:
        logger = logging.getLogger("bench.raft")
        logger.setLevel(logging.ERROR)
        source = random.Random(1)
        members = Snapshot(1, 1, ConfState((1, 2, 3)))
        self.inboxes: dict[int, list[Message]] = {1: [], 2: [], 3: []}
        self.storages: dict[int, MemoryStorage] = {}
        self.nodes: dict[int, RawNode] = {}
        self.applied = dict.fromkeys(self.inboxes, 0)
        for node in self.inboxes:
            self.storages[node] = MemoryStorage()
            self.storages[node].apply_snapshot(members)
            self.nodes[node] = RawNode(
                Config(
                    id=node,
                    storage=self.storages[node],
                    logger=logger,
                    random_below=source.randrange,
                    election_ticks=10,
                    heartbeat_ticks=1,
                    applied=1,
                    message_size_max=1 << 20,
                    inflight_messages_max=512,
                    check_quorum=True,
                    pre_vote=True,
                )
            )
        self.nodes[1].campaign()
        self.settle()
        for _ in range(log_length // 1000):
            self.propose(1000)

    def propose(self, count: int) -> None:
        """Propose entries on the leader, and wait until all nodes have applied them."""
        self.nodes[1].propose_batch([PAYLOAD] * count)
        self.settle()

    def settle(self) -> None:
        """Deliver messages until no node has work left."""
        busy = True
        while busy:
            busy = False
            for identity, node in self.nodes.items():
                inbox = self.inboxes[identity]
                if inbox:
                    self.inboxes[identity] = []
                    for message in inbox:
                        node.step(message)
                if node.has_ready():
                    busy = True
                    self._handle(identity, node)

    def _handle(self, identity: int, node: RawNode) -> None:
        ready = node.ready()
        storage = self.storages[identity]
        if ready.hard_state is not None:
            storage.set_hard_state(ready.hard_state)
        if ready.entries:
            storage.append(ready.entries)
        for message in ready.messages:
            self.inboxes[message.to].append(message)
        for entry in ready.committed_entries:
            if entry.type == EntryType.NORMAL and entry.data:
                self.applied[identity] += 1
        node.advance()


def rate(group: Group, batch: int, seconds: float) -> float:
    """Return the rate of entries that all three nodes applied."""
    before = dict(group.applied)
    start = time.process_time()
    proposed = 0
    while time.process_time() - start < seconds:
        group.propose(batch)
        proposed += batch
    elapsed = time.process_time() - start
    for node, applied in group.applied.items():
        assert applied - before[node] == proposed, f"node {node} applied {applied - before[node]}"
    return proposed / elapsed


def main() -> None:
    """Run the measurements, with profiles if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of each round")
    options = parser.parse_args()
    gc.disable()
    print(f"{'log before':>12} {'batch':>6} {'best/s':>10} {'median/s':>10} {'goal/s':>8}")
    for log_length in (0, 1_000_000):
        group = Group(log_length)
        for batch, goal in GOALS.items():
            if options.profile:
                profiler = cProfile.Profile()
                profiler.runcall(rate, group, batch, options.seconds)
                pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
            rates = [rate(group, batch, options.seconds) for _ in range(ROUNDS)]
            best, median = max(rates), statistics.median(rates)
            print(f"{log_length:>12,} {batch:>6} {best:>10,.0f} {median:>10,.0f} {goal:>8,}")


if __name__ == "__main__":
    main()
