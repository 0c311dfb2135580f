"""Servers in one thread: virtual time, memory disks, messages handed over by a loop.

No faults but those a test asks for: a link can be cut, a job can be held or fail, and a member
can lose its power or be killed between any two calls to its disk.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf, nextafter
from random import Random
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    TxnRequest,
)
from kvorum.api.requests import decode_delete_range, decode_put, decode_range, decode_txn
from kvorum.member.config import MemberConfig, Seams
from kvorum.member.jobs import ExecutorKind, Job
from kvorum.member.member import Member
from kvorum.member.outbox import Question, SnapshotTransfer
from kvorum.member.peer_requests import allowed_method, answer_request, interpret_answer
from kvorum.member.recovery import open_member
from kvorum.member.waits import Steps
from kvorum.network.edge.interface import EdgeEventKind, Event, Request
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.member import member_config
from kvorum.raft.messages import Message
from kvorum.raft.wire import decode_message, encode_message
from kvorum.server.jobs import Ended
from kvorum.server.server import Server
from kvorum.server.shutdown import ServerPhase
from kvorum.state.apply import requests
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.apply.ranges import range_response
from kvorum.state.apply.transactions import read_txn
from kvorum.state.auth.tokens import SimpleTokens
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.memory import MemoryFiles
from tests.server.seams import (
    LINK,
    SETTINGS,
    LoopPeers,
    RecordingEdge,
    RecordingLogger,
    run_job,
    store_image,
)

HEARTBEAT_SECONDS = 0.1
SEGMENT_BYTES = 64 * 1024

CLIENT = Caller(Front.GRPC)
PEER = Caller(Front.PEER)


class Machine:
    """One server with its disk, and the jobs that run on it."""

    def __init__(self, cluster: "Cluster", name: str, config: MemberConfig) -> None:
        self.cluster = cluster
        self.name = name
        self.config = config
        self.files = MemoryFiles()
        self.files.make_directory("/data")
        self.files.sync_directory("/")
        self.environments = MemoryEnvironments(self.files)
        self.member: Member | None = None
        self.server: Server
        self.edge = RecordingEdge()
        self.logger = RecordingLogger()
        self.settings = replace(SETTINGS, advance_ticks=False)
        # What the next turn is given.
        self.requests: list[Request] = []
        self.events: list[Event] = []
        self.ended: list[Ended] = []
        self.held: set[ExecutorKind] = set()
        self.jobs: dict[ExecutorKind, deque[Job]] = {place: deque() for place in ExecutorKind}
        self.jobs_run: list[Job] = []
        self.on_job: Callable[[Job], None] | None = None
        self.starts = 0
        # A paused process: it takes no turn, and what is sent to it waits.
        self.is_paused = False
        # How long it was suspended, during which its clock stood still.
        self.asleep = 0.0
        self.unread: list[tuple[str, str, bytes, bytes | None]] = []

    @property
    def now(self) -> float:
        """The time by its own clock."""
        return self.cluster.now - self.asleep

    @property
    def running(self) -> Member:
        assert self.member is not None, f"{self.name} does not run"
        return self.member

    @property
    def replies(self) -> dict[int, bytes | Status]:
        """The answers to calls that have ended."""
        return self.edge.replies

    @property
    def sends(self) -> list[tuple[int, bytes]]:
        """What was sent on streams."""
        return self.edge.sends

    def start(self) -> Member:
        self.starts += 1
        seams = Seams(
            files=self.files,
            environments=self.environments,
            logger=logging.getLogger(f"member.{self.name}"),
            clock=lambda: self.cluster.clock() - self.asleep,
            boot_clock=lambda: self.cluster.now,
            random_below=Random(f"{self.name}/{self.starts}").randrange,
            unix_seconds=1_700_000_000.0 + self.cluster.now,
            wall_clock=lambda: 1_700_000_000.0 + self.cluster.now,
            tokens=SimpleTokens(300.0),
        )
        self.jobs = {place: deque() for place in ExecutorKind}
        self.requests, self.events, self.ended = [], [], []
        self.edge.is_draining = False
        self.member = open_member(self.config, seams)
        self.peers = LoopPeers(self.member, self.cluster)
        self.server = Server(self.member, self.edge, self.peers, self.logger, self.settings)
        return self.member

    def kill(self) -> None:
        """End the process: what was written stays."""
        self.member = None
        self.environments.kill(lambda: True)
        self.files.kill()

    def lose_power(self, survives: Callable[[], bool]) -> None:
        """Lose what was not synced, except what `survives` keeps."""
        self.member = None
        files = self.files.after_power_cut(survives)
        self.environments = self.environments.after_power_cut(files, survives)
        self.files = files

    def turn(self) -> bool:
        """Take one turn and run its jobs, which end in the next; return whether there is more."""
        server, said = self.server, self.peers.said
        requests, events, ended = self.requests, self.events, self.ended
        self.requests, self.events, self.ended = [], [], []
        with self.cluster.turning():
            server.turn(self.now, requests, events, (), ended)
        for job in server.take_jobs():
            self.jobs[job.executor].append(job)
        self.run_jobs()
        if server.phase is ServerPhase.ENDED:
            self.member = None
            return False
        return server.is_busy or self.peers.said > said or bool(self.ended)

    def run_jobs(self) -> None:
        for place, waiting in self.jobs.items():
            while waiting and place not in self.held and self.member is not None:
                self.run_job(waiting.popleft())

    def run_job(self, job: Job) -> None:
        if self.on_job is not None:
            self.on_job(job)
        ended = run_job(job, self.files, self.environments)
        self.ended.append(ended)
        if ended[2] is None:
            self.jobs_run.append(job)

    # Requests, as a front makes them.

    def put(self, key: bytes, value: bytes = b"", **options: Any) -> int:
        body = PutRequest(key=key, value=value, **options).SerializeToString()
        return self.propose(requests.PUT, body, decode_put(body))

    def delete(self, key: bytes, range_end: bytes = b"", **options: Any) -> int:
        request = DeleteRangeRequest(key=key, range_end=range_end, **options)
        body = request.SerializeToString()
        return self.propose(requests.DELETE_RANGE, body, decode_delete_range(body))

    def txn(self, request: TxnRequest) -> int:
        body = request.SerializeToString()
        return self.propose(requests.TXN, body, decode_txn(body))

    def propose(
        self, kind: int, body: bytes, decoded: object = None, caller: Caller = CLIENT
    ) -> int:
        call = self.cluster.next_call()
        self.running.replica.propose(call, caller, kind, body, decoded)
        return call

    def range(self, key: bytes, range_end: bytes = b"", **options: Any) -> int:
        request = RangeRequest(key=key, range_end=range_end, **options)
        decoded = decode_range(request.SerializeToString())
        call = self.cluster.next_call()
        is_linearizable = not request.serializable
        self.running.replica.read(
            call, CLIENT, range_response, decoded, linearizable=is_linearizable
        )
        return call

    def read_txn(self, request: TxnRequest) -> int:
        decoded = decode_txn(request.SerializeToString())
        call = self.cluster.next_call()
        self.running.replica.read(call, CLIENT, read_txn, decoded, linearizable=True)
        return call

    def start_steps(self, steps: Steps) -> int:
        call = self.cluster.next_call()
        self.running.start(call, CLIENT, steps)
        return call


class Cluster:
    """Machines, the time, and the links between them."""

    def __init__(self, size: int, **options: Any) -> None:
        self.now = 0.0
        self._calls = 0
        self.cut: set[tuple[str, str]] = set()
        self.slices = 0  # how often a turn may look at the clock; 0: as often as it likes
        self._looks = 0
        self._is_turning = False
        urls = {f"m{each}": (f"http://m{each}:2380",) for each in range(size)}
        self.options: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES} | options
        self.machines = {
            name: Machine(self, name, self.config(name, initial_cluster=urls)) for name in urls
        }
        self.messages: deque[tuple[str, str, bytes, bytes | None]] = deque()
        for machine in self.machines.values():
            machine.start()

    def config(self, name: str, **options: Any) -> MemberConfig:
        return replace(
            member_config(make_config({}), "/data/member"),
            name=name,
            client_urls=(f"http://{name}:2379",),
            heartbeat_seconds=HEARTBEAT_SECONDS,
            **(self.options | options),
        )

    def __getitem__(self, number: int) -> Machine:
        return list(self.machines.values())[number]

    def __iter__(self) -> Iterator[Machine]:
        return iter([machine for machine in self.machines.values() if machine.member is not None])

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def clock(self) -> float:
        """Return the time. In a turn every look lets some pass, and a budget of looks ends it."""
        if not self._is_turning:
            return self.now
        self._looks += 1
        passed = self._looks * 1e-6
        if self.slices:
            passed += self._looks // self.slices
        return self.now + passed

    @contextmanager
    def turning(self) -> Iterator[None]:
        """Let time pass by looks at the clock."""
        self._looks, self._is_turning = 0, True
        try:
            yield
        finally:
            self._is_turning = False

    # The network.

    def send(self, sender: Member, message: Message, image: bytes | None = None) -> bool:
        """Put a message on its way; return whether there is a link."""
        for machine in self:
            if machine.running.id == message.to:
                name = self._machine(sender).name
                if (name, machine.name) in self.cut:
                    return False
                self.messages.append((name, machine.name, encode_message(message), image))
                return True
        return False

    def send_snapshot(self, sender: Member, transfer: SnapshotTransfer) -> None:
        """Put a snapshot and its file on their way."""
        image = read_file(sender.seams.files, transfer.path)
        is_sent = self.send(sender, transfer.message, image)
        sender.report_snapshot(transfer, failed=not is_sent)

    def deliver(self) -> None:
        """Let what is on its way arrive: members take it in their next turns."""
        while self.messages:
            sent = self.messages.popleft()
            _, name, data, image = sent
            machine = self.machines[name]
            if machine.is_paused:
                machine.unread.append(sent)
            elif machine.member is not None:
                message = decode_message(data)
                if image is not None:
                    store_image(machine.member, message, image)
                machine.events.append((EdgeEventKind.MESSAGE, LINK, message))

    def ask(self, asking: Member, question: Question) -> None:
        """Carry a question and its answer, as a transport does."""
        machine = self._machine(asking)
        peer = next((each for each in self if each.running.id == question.peer), None)
        if peer is None or peer.is_paused or self.is_cut(machine, peer):
            asking.take_answer(question.number, None)
            return
        assert allowed_method(question.path) == question.method

        def serve() -> Steps:
            answered = yield from answer_request(
                peer.running, question.path, question.body, dict(question.headers)
            )
            if machine.member is asking:
                is_lost = self.is_cut(machine, peer)
                told = interpret_answer(question.path, answered.status, answered.body)
                asking.take_answer(question.number, None if is_lost else told)
            return None

        peer.running.start(None, PEER, serve())

    def _machine(self, member: Member) -> Machine:
        return next(each for each in self if each.member is member)

    def is_cut(self, one: Machine, other: Machine) -> bool:
        """Return whether a question or its answer would be lost."""
        return not self.cut.isdisjoint({(one.name, other.name), (other.name, one.name)})

    def awake(self) -> list[Machine]:
        """Return the machines that run and are not paused."""
        return [machine for machine in self if not machine.is_paused]

    def wake(self, machine: Machine) -> None:
        """Resume a paused machine. What was sent to it arrives after its turn."""
        machine.is_paused = False
        self.messages.extend(machine.unread)
        machine.unread.clear()

    def isolate(self, machine: Machine) -> None:
        for other in self.machines:
            self.cut |= {(machine.name, other), (other, machine.name)}

    def heal(self) -> None:
        self.cut.clear()

    # Time.

    def settle(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(100_000):
            # All of them take a turn, even if only one has something to do.
            active = [machine.turn() for machine in self.awake() if machine.member is not None]
            if not any(active) and not self.messages:
                return
            self.deliver()
        raise AssertionError("the members do not come to rest")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, from one moment at which a server wants to be woken to the next."""
        self.settle()
        end = self.now + seconds
        idle = 0
        while (moment := self._next_moment()) <= end + 1e-9:
            idle = idle + 1 if moment - self.now < 1e-9 else 0
            assert idle < 10, "a server is woken for nothing"
            self.now = moment
            self.settle()
        self.now = max(self.now, end)
        self.settle()

    def _next_moment(self) -> float:
        wakes = [each.server.wake_at(each.now) + each.asleep for each in self.awake()]
        # With a machine that was suspended the sum may be rounded down.
        return max(min(wakes, default=inf), nextafter(self.now, inf))

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Let time pass until a condition holds; return its result."""
        end = self.now + seconds
        self.settle()
        while not (found := condition()):
            assert self.now < end, f"still not so after {seconds} s"
            self.pass_time(HEARTBEAT_SECONDS)
        return found

    def leader(self) -> Machine:
        """Wait for a leader that has applied an entry of its own term; return it."""

        def found() -> Machine | None:
            for machine in self.awake():
                member = machine.running
                if member.is_leader and member.state.applied_term == member.term:
                    return machine
            return None

        machine: Machine = self.wait(found)
        return machine

    def follower(self) -> Machine:
        leader = self.leader()
        return next(machine for machine in self.awake() if machine is not leader)

    def answer(self, machine: Machine, call: int, seconds: float = 30.0) -> bytes | Status:
        """Wait for the answer to a call."""
        self.wait(lambda: call in machine.replies, seconds)
        return machine.replies[call]

    def success(self, machine: Machine, call: int, seconds: float = 30.0) -> bytes:
        """Wait for the answer to a call, which may not be refused."""
        answer = self.answer(machine, call, seconds)
        assert isinstance(answer, bytes), answer
        return answer


def keys_of(machine: Machine) -> list[bytes]:
    store = machine.running.state.store
    return [row for _, row in store.backend.scan_rows(0, 1 << 96, 10_000)]


def equal(cluster: Cluster) -> bool:
    """Return whether all members hold the same."""
    first, *others = [(machine.running.state.applied, keys_of(machine)) for machine in cluster]
    return all(other == first for other in others)


class PowerCutError(BaseException):
    """Not an Exception: nothing in the member may take it for a failure of its own."""
