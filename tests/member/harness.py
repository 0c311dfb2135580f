"""Members in one thread: virtual time, memory disks, messages handed over by a loop.

No faults but those a test asks for: a link can be cut, a job can be held or fail, and a member
can lose its power or be killed between any two calls of its disk.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from kvorum.backend.memory import MemoryEnvironments
from kvorum.files.interface import read_file
from kvorum.files.memory import MemoryFiles
from kvorum.member import requests
from kvorum.member.config import MemberConfig, Seams
from kvorum.member.jobs import Job, Place
from kvorum.member.member import Member
from kvorum.member.outbox import Question
from kvorum.member.questions import allowed_method, answer, meaning
from kvorum.member.ranges import range_response
from kvorum.member.recovery import open_member
from kvorum.member.transactions import read_txn
from kvorum.member.waits import Steps
from kvorum.raft.messages import Message
from kvorum.raft.wire import decode_message, encode_message
from kvorum.settings.checks import make_config
from kvorum.settings.member import member_config
from kvorum.snap import ReceivedDatabase

HEARTBEAT_SECONDS = 0.1
SEGMENT_BYTES = 64 * 1024


class Machine:
    """One member with its disk, and the jobs that run on it."""

    def __init__(self, cluster: "Cluster", name: str, config: MemberConfig) -> None:
        self.cluster = cluster
        self.name = name
        self.config = config
        self.files = MemoryFiles()
        self.files.make_directory("/data")
        self.files.sync_directory("/")
        self.environments = MemoryEnvironments(self.files)
        self.member: Member | None = None
        self.replies: dict[int, bytes | Status] = {}
        self.sends: list[tuple[int, bytes]] = []
        self.held: set[Place] = set()
        self.jobs: dict[Place, deque[Job]] = {place: deque() for place in Place}
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
        """What its clock says."""
        return self.cluster.now - self.asleep

    @property
    def running(self) -> Member:
        assert self.member is not None, f"{self.name} does not run"
        return self.member

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
        )
        self.jobs = {place: deque() for place in Place}
        self.member = open_member(self.config, seams)
        return self.member

    def kill(self) -> None:
        """End the process: what was written stays."""
        self.member = None
        self.environments.kill(lambda: True)
        self.files.kill()

    def lose_power(self, survives: Callable[[], bool]) -> None:
        """Keep what survives of what was not synced."""
        self.member = None
        files = self.files.after_power_cut(survives)
        self.environments = self.environments.after_power_cut(files, survives)
        self.files = files

    def turn(self) -> bool:
        """Take one turn and do everything that comes out of it; return whether there was
        anything."""
        member = self.running
        cluster = self.cluster
        is_active = member.turn(self.now, cluster.deadline() - self.asleep)
        out = member.out
        is_active |= any((out.replies, out.sends, out.messages, out.snapshots, out.questions))
        is_active |= any(job.place not in self.held for job in out.jobs)
        for call, result in member.out.take_replies():
            assert call not in self.replies, f"call {call} was answered twice"
            self.replies[call] = result
        self.sends += member.out.take_sends()
        for message in member.out.take_messages():
            cluster.send(self.name, message)
        for transfer in member.out.take_snapshots():
            image = read_file(self.files, transfer.path)
            is_sent = cluster.send(self.name, transfer.message, image)
            member.snapshot_sent(transfer, failed=not is_sent)
        for question in member.out.take_questions():
            cluster.ask(self, question)
        for job in member.out.take_jobs():
            self.jobs[job.place].append(job)
        self.run_jobs()
        return is_active

    def run_jobs(self) -> None:
        for place, waiting in self.jobs.items():
            while waiting and place not in self.held and self.member is not None:
                self.run_job(waiting.popleft())

    def run_job(self, job: Job) -> None:
        member = self.running
        if self.on_job is not None:
            self.on_job(job)
        try:
            result = job.run(self.files, self.environments)
        except Exception as error:
            member.failed(job, error)
        else:
            self.jobs_run.append(job)
            member.completed(job, result)
        for each in member.out.take_jobs():
            self.jobs[each.place].append(each)

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

    def propose(self, kind: int, body: bytes, decoded: object = None) -> int:
        call = self.cluster.next_call()
        self.running.propose(call, kind, body, decoded)
        return call

    def range(self, key: bytes, range_end: bytes = b"", **options: Any) -> int:
        request = RangeRequest(key=key, range_end=range_end, **options)
        decoded = decode_range(request.SerializeToString())
        call = self.cluster.next_call()
        is_linearizable = not request.serializable
        self.running.read(call, range_response, decoded, linearizable=is_linearizable)
        return call

    def read_txn(self, request: TxnRequest) -> int:
        decoded = decode_txn(request.SerializeToString())
        call = self.cluster.next_call()
        self.running.read(call, read_txn, decoded, linearizable=True)
        return call

    def start_steps(self, steps: Steps) -> int:
        call = self.cluster.next_call()
        self.running.start(call, steps)
        return call


class Cluster:
    """Machines, the time, and the links between them."""

    def __init__(self, size: int, **options: Any) -> None:
        self.now = 0.0
        self._next_tick = HEARTBEAT_SECONDS
        self._calls = 0
        self.cut: set[tuple[str, str]] = set()
        self.slices = 0  # how often a turn may look at the clock; 0: as often as it likes
        self._looks = 0
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
        """Return the time, which passes only by being read; a budget of reads ends a turn."""
        self._looks += 1
        if self.slices and self._looks >= self.slices:
            return self.now + 1.0
        return self.now + self._looks * 1e-6

    def deadline(self) -> float:
        self._looks = 0
        return self.now + 0.005

    # The network.

    def send(self, sender: str, message: Message, image: bytes | None = None) -> bool:
        """Send a message; return whether there is a link."""
        for machine in self:
            if machine.running.id == message.to:
                if (sender, machine.name) in self.cut:
                    return False
                data = encode_message(message)
                self.messages.append((sender, machine.name, data, image))
                return True
        return False

    def deliver(self) -> None:
        while self.messages:
            sent = self.messages.popleft()
            _, name, data, image = sent
            machine = self.machines[name]
            if machine.member is None:
                continue
            if machine.is_paused:
                machine.unread.append(sent)
                continue
            message = decode_message(data)
            if image is not None:
                assert message.snapshot is not None
                snap = f"{machine.config.directory}/snap"
                received = ReceivedDatabase(machine.files, snap, message.snapshot.index)
                received.write(image)
                received.finish()
            machine.running.receive(message)

    def ask(self, machine: Machine, question: Question) -> None:
        """Carry a question and its answer, as a transport does."""
        asking = machine.running
        peer = next((each for each in self if each.running.id == question.peer), None)
        if peer is None or peer.is_paused or self.is_cut(machine, peer):
            asking.told(question.number, None)
            return
        assert allowed_method(question.path) == question.method

        def serve() -> Steps:
            answered = yield from answer(peer.running, question.path, question.body)
            if machine.member is asking:
                is_lost = self.is_cut(machine, peer)
                told = meaning(question.path, answered.status, answered.body)
                asking.told(question.number, None if is_lost else told)
            return None

        peer.running.start(None, serve())

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
        """Let time pass, tick by tick."""
        end = self.now + seconds
        while self._next_tick <= end + 1e-9:
            self.now = self._next_tick
            self._next_tick += HEARTBEAT_SECONDS
            for machine in self.awake():
                machine.running.tick(machine.now)
            self.settle()
        self.now = max(self.now, end)
        self.settle()

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Let time pass until a condition holds; return its result."""
        end = self.now + seconds
        self.settle()
        while not (found := condition()):
            assert self.now < end, f"still not so after {seconds} s"
            self.pass_time(HEARTBEAT_SECONDS)
        return found

    def leader(self) -> Machine:
        """Wait for a leader that all reachable members know."""

        def found() -> Machine | None:
            for machine in self.awake():
                member = machine.running
                if member.is_leader and member.applied_term == member.term:
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
        """Wait for the answer to a call that is not refused."""
        answer = self.answer(machine, call, seconds)
        assert isinstance(answer, bytes), answer
        return answer


def keys_of(machine: Machine) -> list[bytes]:
    store = machine.running.store
    return [row for _, row in store.backend.scan_rows(0, 1 << 96, 10_000)]


def equal(cluster: Cluster) -> bool:
    """Return whether all members hold the same."""
    first, *others = [(machine.running.applied, keys_of(machine)) for machine in cluster]
    return all(other == first for other in others)


class PowerCutError(BaseException):
    """Not an Exception: nothing in the member may take it for a failure of its own."""
