"""Measure how long the loop is held: the longest single call into a server, by kind of request.

Two servers run in one thread, with real LMDB in a temporary directory and log appends that complete
immediately. Jobs do not count unless the loop would wait for them. Times are processor time of this
thread, so that other load on the machine does not matter. Peers receive nothing during a call, so
no call may take nearly as long as a heartbeat interval, and a turn should end after five
milliseconds.
"""

import argparse
import gc
import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from kvorum.api.codec import length_delimited
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseLeasesRequest,
    LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
    PutRequest,
    RangeRequest,
    TxnRequest,
)
from kvorum.api.requests import decode_txn, parse_put
from kvorum.member.config import Seams
from kvorum.member.jobs import Job
from kvorum.member.member import Member
from kvorum.member.outbox import Question, SnapshotTransfer
from kvorum.member.recovery import open_member
from kvorum.network.edge.interface import EdgeEventKind, Event, Request
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.member import member_config
from kvorum.raft.messages import Message
from kvorum.server.jobs import Ended
from kvorum.server.rpc.table import NUMBERS, RPCS
from kvorum.server.server import Server
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.state.auth.tokens import SimpleTokens
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import AppendLog
from tests.server.seams import (
    LINK,
    SETTINGS,
    LoopPeers,
    RecordingEdge,
    RecordingLogger,
    run_job,
    store_image,
)

BATCH = 200
URLS = {"m0": ("http://m0:2380",), "m1": ("http://m1:2380",)}


class Longest:
    """The longest duration of calls, by the method called."""

    def __init__(self) -> None:
        self.calls: dict[str, float] = {}

    def timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call, and record how long it took."""
        began = time.thread_time()
        try:
            return call(*arguments)
        finally:
            took = time.thread_time() - began
            self.calls[name] = max(took, self.calls.get(name, 0.0))


class Output(RecordingEdge):
    """An edge that keeps unary answers, and drops the messages of streams."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """Drop messages of streams."""


class Machine:
    """A server with its jobs and its pending input."""

    def __init__(self, cluster: "Pair", name: str, directory: str) -> None:
        Path(directory).mkdir()
        self.cluster = cluster
        self.files = RealFiles()
        self.environments = LmdbEnvironments()
        config = replace(
            member_config(make_config({}), f"{directory}/member"),
            name=name,
            initial_cluster=URLS,
            snapshot_entries=20_000,
            catch_up_entries=1_000,
            quota_bytes=8 << 30,
            unapplied_entries_max=1 << 30,
        )
        logger = logging.getLogger("bench")
        logger.setLevel(logging.ERROR)
        seams = Seams(
            files=self.files,
            environments=self.environments,
            logger=logger,
            clock=time.monotonic,
            boot_clock=time.monotonic,
            random_below=Random(name).randrange,
            unix_seconds=1.7e9,
            wall_clock=time.time,
            tokens=SimpleTokens(300.0),
        )
        self.longest = Longest()
        self.member: Member = open_member(config, seams)
        self.edge = Output()
        peers = LoopPeers(self.member, cluster)
        self.server = Server(self.member, self.edge, peers, RecordingLogger(), SETTINGS)
        self.jobs: deque[Job] = deque()
        self.requests: list[Request] = []
        self.events: list[Event] = []
        self.calls = 0

    def turn(self) -> bool:
        """Run a turn and one of the waiting jobs; return whether work is left."""
        server, timed = self.server, self.longest.timed
        requests, events = self.requests, self.events
        if min(server.room) > 0:
            self.requests, self.events = [], []
        else:
            requests, events = [], []
        timed("turn", server.turn, time.monotonic(), requests, events, (), ())
        self.jobs.extend(server.take_jobs())
        if not self.jobs:
            return server.is_busy
        job = self.jobs.popleft()
        ended = self._run(job)
        name = f"turn after {type(job.work).__name__}"
        timed(name, server.resume_turn, time.monotonic(), [ended])
        self.jobs.extend(server.take_jobs())
        return True

    def _run(self, job: Job) -> Ended:
        if isinstance(job.work, AppendLog):
            return job, None, None
        if job.is_awaited:
            name = f"awaited {type(job.work).__name__}"
            ended: Ended = self.longest.timed(name, run_job, job, self.files, self.environments)
            return ended
        return run_job(job, self.files, self.environments)

    def begin(self, path: str, request: Any) -> int:
        """Start a call, which the next turn serves."""
        self.calls += 1
        number = NUMBERS[path]
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        if RPCS[number].is_stream:
            self.events.append((EdgeEventKind.OPENED, self.calls, (number, None)))
            self.events.append((EdgeEventKind.MESSAGE, self.calls, payload))
        else:
            self.requests.append((self.calls, number, payload, None))
        return self.calls


class Pair:
    """Two servers, and the messages between them."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.messages: list[Message] = []
        self.transfers: list[tuple[Member, SnapshotTransfer]] = []
        self.machines = [Machine(self, name, f"{directory}/{name}") for name in URLS]

    def send(self, sender: Member, message: Message) -> None:
        """Queue a message for delivery."""
        del sender
        self.messages.append(message)

    def send_snapshot(self, sender: Member, transfer: SnapshotTransfer) -> None:
        """Queue a snapshot for delivery."""
        self.transfers.append((sender, transfer))

    def ask(self, asking: Member, question: Question) -> None:
        """Report to the asking member that no peer answers."""
        asking.take_answer(question.number, None)

    def step(self) -> bool:
        """Run a turn of each server and deliver messages; return whether work is left."""
        turns = [machine.turn() for machine in self.machines]
        messages, self.messages = self.messages, []
        transfers, self.transfers = self.transfers, []
        by_id = {machine.member.id: machine for machine in self.machines}
        for sender, transfer in transfers:
            message = transfer.message
            image = read_file(sender.seams.files, transfer.path)
            store_image(by_id[message.to].member, message, image)
            sender.report_snapshot(transfer, failed=False)
            messages.append(message)
        for message in messages:
            by_id[message.to].events.append((EdgeEventKind.MESSAGE, LINK, message))
        return any(turns) or bool(messages)

    def until(self, condition: Callable[[], Any]) -> None:
        """Run turns until a condition holds."""
        while not condition():
            if not self.step():
                time.sleep(0.0005)

    @property
    def leader(self) -> Machine:
        """The machine whose member leads."""
        return next(machine for machine in self.machines if machine.member.is_leader)

    def reset(self) -> None:
        """Forget the recorded durations."""
        for machine in self.machines:
            machine.longest.calls.clear()

    def report(self, name: str) -> None:
        """Print the longest calls of both members, the worst first."""
        found: dict[str, float] = {}
        for machine in self.machines:
            for call, took in machine.longest.calls.items():
                found[call] = max(took, found.get(call, 0.0))
        worst = sorted(found.items(), key=lambda each: -each[1])[:4]
        told = ", ".join(f"{call} {took * 1000:.1f} ms" for call, took in worst)
        print(f"{name:<40} {told}", flush=True)

    def measure(self, name: str, path: str, request: Any) -> Any:
        """Make a call at the leader, wait until both members have applied it, and report."""
        self.settle()
        self.reset()
        leader = self.leader
        call = leader.begin(path, request)
        edge = leader.edge
        self.until(lambda: call in edge.replies or call in edge.finished)
        self.settle()
        self.report(name)
        return edge.replies.pop(call, None)

    def settle(self) -> None:
        """Wait until both members have applied everything and run no jobs."""
        one, other = self.machines
        self.until(
            lambda: (
                one.member.state.applied
                == other.member.state.applied
                == self.leader.member.committed
                and not one.jobs
                and not other.jobs
                and not one.member.state.backend.is_flushing
                and not other.member.state.backend.is_flushing
            )
        )


def load(pair: Pair, keys: int, prefix: bytes = b"key", lease: int = 0) -> None:
    """Put `keys` keys at the leader, in batches."""
    leader = pair.leader
    random = Random(3)
    for start in range(0, keys, BATCH):
        for number in range(start, min(start + BATCH, keys)):
            value = b"%030d" % random.randrange(1 << 60)
            body = PutRequest(key=b"%b-%08d" % (prefix, number), value=value, lease=lease)
            payload = body.SerializeToString()
            leader.member.replica.propose(None, MEMBER, requests.PUT, payload, parse_put(payload))
        pair.step()
        while any(machine.jobs for machine in pair.machines):
            pair.step()
    pair.settle()


def main() -> None:
    """Run and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--only", default="", help="names that contain this")
    arguments = parser.parse_args()
    keys = arguments.keys
    gc.disable()
    everything: dict[str, Any] = {"key": b"key", "range_end": b"kez"}

    def wanted(name: str) -> bool:
        return arguments.only in name

    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(directory)
        pair.until(lambda: all(machine.member.is_published for machine in pair.machines))
        pair.reset()
        load(pair, keys)
        pair.report(f"puts of {keys} keys")
        if wanted("install"):
            install(pair)
        ranges: dict[str, dict[str, Any]] = {
            "range": {},
            "range, keys only": {"keys_only": True},
            "range, count only": {"count_only": True},
            "range by value": {"sort_target": 4, "sort_order": 1},
            "range by version, descending": {"sort_target": 1, "sort_order": 2},
            "range of an old revision": {"revision": 1000},
            "range of revisions": {"min_mod_revision": 5},
        }
        for name, options in ranges.items():
            if wanted(name):
                request = RangeRequest(**everything, **options)
                pair.measure(name, "/etcdserverpb.KV/Range", request)
        if wanted("range stream"):
            request = RangeRequest(**everything)
            pair.measure("range stream", "/etcdserverpb.KV/RangeStream", request)
        if wanted("txn"):
            txn(pair)
        if wanted("snapshot"):
            snapshot(pair)
        if wanted("hash"):
            pair.measure("hash", "/etcdserverpb.Maintenance/HashKV", b"")
        if wanted("defragment"):
            pair.measure("defragment", "/etcdserverpb.Maintenance/Defragment", b"")
        if wanted("lease"):
            leases(pair, keys // 5)
        if wanted("delete"):
            deletion = DeleteRangeRequest(**everything, prev_kv=True)
            pair.measure("delete", "/etcdserverpb.KV/DeleteRange", deletion)
            revision = pair.leader.member.state.store.revision
            compaction = CompactionRequest(revision=revision, physical=True)
            pair.measure("delete, then compaction", "/etcdserverpb.KV/Compact", compaction)


def txn(pair: Pair) -> None:
    """Run a transaction that compares and reads everything."""
    request = TxnRequest()
    compare = request.compare.add()
    compare.key, compare.range_end = b"key", b"kez"
    compare.target, compare.result, compare.version = 0, 1, 0  # type: ignore[assignment]
    operation = request.success.add().request_range
    operation.key, operation.range_end = b"key", b"kez"
    request.success.add().request_put.key = b"put"
    decode_txn(request.SerializeToString())
    pair.measure("txn over all keys", "/etcdserverpb.KV/Txn", request)


def install(pair: Pair) -> None:
    """Replace the follower by one with an empty disk, which needs a snapshot instead of the log."""
    pair.settle()
    leader = pair.leader
    place = next(each for each, machine in enumerate(pair.machines) if machine is not leader)
    name = pair.machines[place].member.config.name
    behind = pair.machines[place] = Machine(pair, name, f"{pair.directory}/{name}-again")
    # The new follower has not acknowledged what the old one did.
    leader.events.clear()
    storage, member = leader.member.replica.storage, leader.member
    storage.create_snapshot(member.state.applied, member.conf_state, b"")
    storage.compact(member.state.applied)
    progress = member.replica.node.raft.tracker.progress[behind.member.id]
    progress.become_probe()
    progress.match, progress.next = 0, 1
    pair.reset()
    payload = length_delimited(b"\x0a", b"after")
    member.replica.propose(None, MEMBER, requests.PUT, payload, parse_put(payload))
    pair.until(lambda: behind.member.state.applied == leader.member.state.applied)
    pair.settle()
    pair.report("install of a snapshot")


def snapshot(pair: Pair) -> None:
    """Save a snapshot while puts continue."""
    pair.settle()
    pair.reset()
    leader = pair.leader
    call = leader.begin("/etcdserverpb.Maintenance/Snapshot", b"")
    number = 0
    while call not in leader.edge.finished:
        for _ in range(BATCH):
            number += 1
            payload = PutRequest(key=b"load-%d" % (number % 5000)).SerializeToString()
            leader.member.replica.propose(None, MEMBER, requests.PUT, payload, parse_put(payload))
        pair.step()
    pair.settle()
    pair.report("snapshot save under load")


def leases(pair: Pair, count: int) -> None:
    """Measure one lease with many keys, and many leases."""
    leader = pair.leader
    grant = "/etcdserverpb.Lease/LeaseGrant"
    pair.measure("lease grant", grant, LeaseGrantRequest(ID=7, TTL=10_000))
    load(pair, count, b"leased", 7)
    request = LeaseTimeToLiveRequest(ID=7, keys=True)
    pair.measure(f"lease, keys of {count}", "/etcdserverpb.Lease/LeaseTimeToLive", request)
    pair.measure(
        f"lease, revoke of {count} keys",
        "/etcdserverpb.Lease/LeaseRevoke",
        LeaseRevokeRequest(ID=7),
    )
    many = count // 2
    for start in range(0, many, BATCH):
        for number in range(start, start + BATCH):
            body = LeaseGrantRequest(ID=100 + number, TTL=10_000).SerializeToString()
            leader.member.replica.propose(None, MEMBER, requests.LEASE_GRANT, body)
        pair.step()
    pair.settle()
    pair.measure(f"lease, list of {many}", "/etcdserverpb.Lease/LeaseLeases", LeaseLeasesRequest())
    pair.reset()
    other = next(machine for machine in pair.machines if machine is not leader)
    leader.member.replica.node.transfer_leader(other.member.id)
    pair.until(lambda: other.member.state.lessor.is_primary)
    pair.settle()
    pair.report(f"lease, new leader counts {many}")


if __name__ == "__main__":
    main()
