"""A whole server with one member, in one thread and without a network.

Time stands still until it is told to pass. Jobs run where they are taken. Calls are made with
messages or bytes; each is answered by the same code that serves the real edge.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nextafter
from typing import Any

from google.protobuf.message import Message

from kvorum.api.descriptors import Method, methods
from kvorum.api.errors import Status
from kvorum.member.config import Seams
from kvorum.member.jobs import Job
from kvorum.member.member import Member
from kvorum.member.recovery import open_member
from kvorum.network.dialer.interface import DialEvent
from kvorum.network.edge.interface import EdgeEventKind, Event, Metadata, Request
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.member import member_config
from kvorum.server.interface import Peers
from kvorum.server.jobs import Ended
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.server import Server
from kvorum.server.shutdown import ServerPhase
from kvorum.state.auth.tokens import SimpleTokens, Tokens
from kvorum.storage.backend.environment import Environments
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files import Files
from kvorum.storage.files.memory import MemoryFiles
from tests.server.seams import SETTINGS, NoPeers, RecordingEdge, RecordingLogger, run_job

METHODS: dict[str, Method] = {method.path: method for method in methods()}
TURNS_MAX = 10_000
STEP_SECONDS = 0.01
TURN_SECONDS = 1.0
SETTINGS_NAMES = (
    "operations_max",
    "client_cert_identifies_user",
    "message_bytes_max",
    "stops_for_defragmentation",
)
"""Options of the server; all others are the member's."""


class Stream:
    """The client's side of a streaming call."""

    def __init__(self, harness: "Harness", call: int, method: Method) -> None:
        self._harness = harness
        self._method = method
        self._taken = 0
        self.call = call

    def send(self, message: Message | bytes) -> None:
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        self._harness.happen((EdgeEventKind.MESSAGE, self.call, payload))

    def half_close(self) -> None:
        self._harness.happen((EdgeEventKind.HALF_CLOSED, self.call, None))

    def cancel(self) -> None:
        self._harness.happen((EdgeEventKind.ENDED, self.call, None))

    def writable(self) -> None:
        self._harness.happen((EdgeEventKind.WRITABLE, self.call, None))

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
        make_peers: Callable[[Member, RecordingEdge], Peers] | None = None,
        on_tick: Callable[[bool], None] | None = None,
        tokens: Tokens | None = None,
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
        self.logger = RecordingLogger()
        settings = {name: options.pop(name) for name in SETTINGS_NAMES if name in options}
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
            wall_clock=lambda: 1_700_000_000.0 + self.now,
            tokens=SimpleTokens(300.0) if tokens is None else tokens,
        )
        self.member: Member = open_member(config, seams)
        peers = make_peers(self.member, self.edge) if make_peers else NoPeers(self.member)
        self.server = Server(
            self.member, self.edge, peers, self.logger, replace(SETTINGS, **settings), on_tick
        )
        self.server.turn_seconds = TURN_SECONDS
        self.services = self.server.services
        self._calls = 0
        self.until(lambda: self.member.is_leader and self.member.state.lessor.is_primary)

    # Time and turns.

    def _clock(self) -> float:
        """Return the time: it stands still in a turn, unless reads of the clock are counted."""
        self._looks += 1
        turns = self._looks // self.looks_max if self.looks_max else 0
        return self.now + turns * TURN_SECONDS

    def begin_turn(self) -> None:
        """Give a turn all its reads of the clock."""
        self._looks = 0

    def turn(
        self,
        requests: Sequence[Request] = (),
        events: Sequence[Event] = (),
        dialed: Sequence[DialEvent] = (),
    ) -> bool:
        """Hand in what arrived, take a turn with its jobs; return whether there is more to do."""
        server = self.server
        if server.phase is ServerPhase.ENDED:
            return False
        assert not (requests or events) or min(server.room) > 0, "there is no room for more"
        self.begin_turn()
        server.turn(self.now, requests, list(events), dialed, ())
        while jobs := server.take_jobs():
            ended = [self._run(job) for job in jobs]
            self.begin_turn()
            server.resume_turn(self.now, ended)
        return server.is_busy

    def _run(self, job: Job) -> Ended:
        if isinstance(job.work, self.failing):
            return job, None, OSError("the disk does not answer")
        return run_job(job, self._files, self._environments)

    def settle(self) -> None:
        """Take turns until there is nothing to do at this moment."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError(f"the server is not done after {TURNS_MAX} turns")

    def pass_time(self, seconds: float) -> None:
        """Let time pass, from one moment at which the server wants to be woken to the next."""
        self.settle()
        end = self.now + seconds
        while self.now < end:
            moment = max(self.server.wake_at(self.now), nextafter(self.now, end))
            self.now = min(end, moment)
            self.settle()

    def end(self) -> None:
        """End cleanly."""
        self.server.drain(self.now)
        self.until(lambda: self.server.phase is ServerPhase.ENDED)

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
        self.arrive([(self._calls, NUMBERS[path], payload, metadata)])
        return self._calls

    def begin_all(self, path: str, payloads: list[bytes]) -> list[int]:
        """Send many unary requests in one batch, which take one turn; return their numbers."""
        first = self._calls + 1
        self._calls += len(payloads)
        calls = list(range(first, self._calls + 1))
        number = NUMBERS[path]
        self.turn(
            [(call, number, payload, None) for call, payload in zip(calls, payloads, strict=True)]
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
        self.happen((EdgeEventKind.OPENED, self._calls, (NUMBERS[method.path], metadata)))
        return stream

    def happen(self, event: Event) -> None:
        """Let an event of the edge arrive, and settle."""
        self.arrive((), [event])

    def arrive(self, requests: Sequence[Request], events: Sequence[Event] = ()) -> None:
        """Let a batch arrive, and settle."""
        if self.turn(requests, events):
            self.settle()


def by_name(name: str) -> Method:
    """Return a method by `Service/Method`, e.g. `KV/Put`."""
    (found,) = [method for path, method in METHODS.items() if path.split(".")[-1] == name]
    return found


def _zero(_below: int) -> int:
    return 0
