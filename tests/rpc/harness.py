"""A whole member behind its services, in one thread and without a network.

Time stands still until it is told to pass. Jobs run where they are taken. Calls are made with
messages or bytes; each is answered by the same code that serves the real edge.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from kvorum.api.descriptors import Method, methods
from kvorum.api.errors import Status
from kvorum.backend.environment import Environments
from kvorum.backend.memory import MemoryEnvironments
from kvorum.edge.interface import Event, EventKind, Headers, Metadata, Request
from kvorum.files import Files
from kvorum.files.memory import MemoryFiles
from kvorum.member.config import Seams
from kvorum.member.member import Member
from kvorum.member.recovery import open_member
from kvorum.rpc.services import Services
from kvorum.settings.checks import make_config
from kvorum.settings.member import member_config

METHODS: dict[str, Method] = {method.path: method for method in methods()}
NUMBERS = {path: number for number, (path, _) in enumerate(Services.METHODS)}
TURNS_MAX = 10_000
STEP_SECONDS = 0.01


class RecordingEdge:
    """Records what is sent and how calls end, by call."""

    def __init__(self) -> None:
        self.replies: dict[int, bytes | Status] = {}
        self.sent: dict[int, list[bytes]] = {}
        self.finished: dict[int, Status] = {}
        self.waiting: set[int] = set()
        self.pending: dict[int, int] = {}

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        for call, result in batch:
            assert call not in self.replies, f"call {call} is answered twice"
            self.replies[call] = result

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        for call, message in batch:
            assert call not in self.finished, f"call {call} has ended"
            self.sent.setdefault(call, []).append(message)
            if call in self.pending:
                self.pending[call] += len(message)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:  # noqa: ARG002
        assert call not in self.finished, f"call {call} ends twice"
        self.finished[call] = status

    def pending_bytes(self, call: int) -> int:
        """Bytes count as taken at once, unless the call is in `pending`."""
        return self.pending.get(call, 0)

    def mark_waiting(self, call: int) -> None:
        self.waiting.add(call)


class Stream:
    """The client's side of a streaming call."""

    def __init__(self, harness: "Harness", call: int, method: Method) -> None:
        self._harness = harness
        self._method = method
        self._taken = 0
        self.call = call

    def send(self, message: Message | bytes) -> None:
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        self._harness.happen((EventKind.MESSAGE, self.call, payload))

    def half_close(self) -> None:
        self._harness.happen((EventKind.HALF_CLOSED, self.call, None))

    def cancel(self) -> None:
        self._harness.happen((EventKind.ENDED, self.call, None))

    def writable(self) -> None:
        self._harness.happen((EventKind.WRITABLE, self.call, None))

    def received(self) -> list[Any]:
        """Return what arrived since the last call."""
        sent = self._harness.edge.sent.get(self.call, [])
        fresh = sent[self._taken :]
        self._taken = len(sent)
        return [self._method.response.FromString(each) for each in fresh]

    @property
    def status(self) -> Status | None:
        return self._harness.edge.finished.get(self.call)


class Harness:
    """One member, alone in its cluster, that leads before the first call."""

    def __init__(
        self,
        files: Files | None = None,
        environments: Environments | None = None,
        directory: str = "/data/member",
        **options: Any,
    ) -> None:
        if files is None:
            memory = MemoryFiles()
            memory.make_directory("/data")
            files, environments = memory, MemoryEnvironments(memory)
        assert environments is not None
        self.now = 1000.0
        self.looks_max = 0
        """After so many reads of the clock a turn's time is over; 0: it never is."""
        self._looks = 0
        self.failing: tuple[type, ...] = ()
        """Kinds of work that fail."""
        self._files = files
        self._environments = environments
        self.edge = RecordingEdge()
        services = {name: options.pop(name) for name in ("operations_max",) if name in options}
        urls = ("http://127.0.0.1:2",)
        # Small, because a disk in memory is filled with zeros when a segment is prepared.
        options.setdefault("segment_bytes", 1 << 20)
        defaults = member_config(make_config({}), directory)
        config = replace(defaults, initial_cluster={"default": urls}, **options)
        seams = Seams(
            files=files,
            environments=environments,
            logger=logging.getLogger("member"),
            clock=self._clock,
            boot_clock=lambda: self.now,
            random_below=_zero,
            unix_seconds=1_700_000_000.0,
        )
        self.member: Member = open_member(config, seams)
        self.services = Services(self.member, self.edge, **services)
        self._calls = 0
        self._jobs: deque[Any] = deque()
        self.until(lambda: self.member.is_leader and self.member.lessor.is_primary)

    # Time and turns.

    def _clock(self) -> float:
        self._looks += 1
        return self.now + 1.0 if 0 < self.looks_max <= self._looks else self.now

    def begin_turn(self) -> None:
        """Give a turn all its reads of the clock."""
        self._looks = 0

    def turn(self) -> bool:
        """Let the member work once at this moment; return whether there is more to do."""
        self.begin_turn()
        more = self.member.turn(self.now, self.now + 1.0)
        self.services.deliver(self.now)
        jobs = self.member.out.take_jobs()
        for job in jobs:
            try:
                if isinstance(job.work, self.failing):
                    raise OSError("the disk does not answer")
                result = job.run(self._files, self._environments)
            except Exception as error:
                self.member.failed(job, error)
            else:
                self.member.completed(job, result)
        return more or bool(jobs)

    def settle(self) -> None:
        """Let the member work until there is nothing to do at this moment."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError(f"the member is not done after {TURNS_MAX} turns")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in steps, with the ticks that belong to it."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            before = self.now
            self.now = min(end, self.now + STEP_SECONDS)
            heartbeat = self.member.config.heartbeat_seconds
            if int(self.now / heartbeat) > int(before / heartbeat):
                self.member.tick(self.now)
            self.settle()

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let time pass until a condition holds."""
        self.settle()
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"not so after {seconds} seconds"
            self.pass_time(STEP_SECONDS)

    # Calls.

    def begin(self, path: str, request: Message | bytes, metadata: Metadata | None = None) -> int:
        """Send a unary request; return the call's number."""
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        self._calls += 1
        requests: list[Request] = [(self._calls, NUMBERS[path], payload, metadata)]
        self.services.serve(requests, [])
        self.settle()
        return self._calls

    def begin_all(self, path: str, payloads: list[bytes]) -> list[int]:
        """Send many unary requests in one batch; return their numbers."""
        first = self._calls + 1
        self._calls += len(payloads)
        calls = list(range(first, self._calls + 1))
        number = NUMBERS[path]
        self.services.serve(
            [(call, number, payload, None) for call, payload in zip(calls, payloads, strict=True)],
            [],
        )
        return calls

    def answer(self, call: int) -> bytes | Status:
        """Wait for the end of a unary call."""
        self.until(lambda: call in self.edge.replies)
        return self.edge.replies[call]

    def ask_bytes(self, path: str, payload: bytes) -> bytes | Status:
        return self.answer(self.begin(path, payload))

    def ask(self, name: str, request: Message, metadata: Metadata | None = None) -> Any:
        """Make a unary call, given as `Service/Method`; return the response or the status."""
        method = by_name(name)
        result = self.answer(self.begin(method.path, request, metadata))
        return result if isinstance(result, Status) else method.response.FromString(result)

    def open(self, name: str, metadata: Metadata | None = None) -> Stream:
        """Open a stream, given as `Service/Method`."""
        method = by_name(name)
        self._calls += 1
        stream = Stream(self, self._calls, method)
        self.happen((EventKind.OPENED, self._calls, (NUMBERS[method.path], metadata)))
        return stream

    def happen(self, event: Event) -> None:
        """Give the services an event of the edge."""
        self.services.serve([], [event])
        self.settle()


def by_name(name: str) -> Method:
    """Return a method by `Service/Method`, e.g. `KV/Put`."""
    (found,) = [method for path, method in METHODS.items() if path.split(".")[-1] == name]
    return found


def _zero(_below: int) -> int:
    return 0
