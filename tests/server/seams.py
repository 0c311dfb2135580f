"""What a server without a network is made with: an edge that records, the peers of a member that is
alone, peers in the same thread, and jobs that run at once.
"""

from collections.abc import Container, Sequence
from math import inf
from typing import Any, Protocol

from kvorum.api.errors import Status
from kvorum.member.jobs import Job
from kvorum.member.member import Member
from kvorum.member.outbox import Question, SnapshotTransfer
from kvorum.network.edge.interface import Headers
from kvorum.process.settings.checks import make_config
from kvorum.raft.messages import Message
from kvorum.server.jobs import Ended
from kvorum.server.settings import server_settings
from kvorum.sim.surroundings import WithoutPort
from kvorum.storage.backend.environment import Environments
from kvorum.storage.files import Files
from kvorum.storage.snap import ReceivedDatabase

SETTINGS = server_settings(make_config({}))
"""The options of a server without flags."""
LINK = -1
"""The number of the call with which messages of `LoopPeers` arrive."""


class RecordingEdge:
    """Keeps what is sent and how calls end, by call."""

    def __init__(self) -> None:
        self.peers: dict[int, str] = {}
        self.replies: dict[int, bytes | Status] = {}
        self.sent: dict[int, list[bytes]] = {}
        self.sends: list[tuple[int, bytes]] = []
        """Messages on all streams, in order."""
        self.finished: dict[int, Status] = {}
        self.ended: list[int] = []
        """Calls in the order in which they ended."""
        self.responses: dict[int, tuple[int, bytes | None]] = {}
        """Status and body of the answers to HTTP requests."""
        self.waiting: set[int] = set()
        self.pending: dict[int, int] = {}
        self.paused: set[int] = set()
        """HTTP calls of whose bodies no more is read."""
        self.is_draining = False
        self.confirms = True
        """Whether clients confirm that they know of the end."""
        self.closes = True
        """Whether clients close their connections after that."""
        self.certificate: bytes | None = None
        """What every client shows, in DER."""

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        for call, result in batch:
            assert call not in self.replies, f"call {call} is answered twice"
            self.replies[call] = result
            self.ended.append(call)

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        for call, message in batch:
            assert call not in self.finished, f"call {call} has ended"
            self.sends.append((call, message))
            self.sent.setdefault(call, []).append(message)
            if call in self.pending:
                self.pending[call] += len(message)

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:  # noqa: ARG002
        assert call not in self.finished, f"call {call} ends twice"
        self.finished[call] = status
        self.ended.append(call)

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        del headers
        assert call not in self.responses, f"call {call} is answered twice"
        self.responses[call] = status, body
        self.ended.append(call)

    def pending_bytes(self, call: int) -> int:
        """Bytes count as taken at once, unless the call is in `pending`."""
        return self.pending.get(call, 0)

    def mark_waiting(self, call: int) -> None:
        self.waiting.add(call)

    def has_room(self, call: int, is_long: bool = False) -> bool:
        del call, is_long
        return True

    def peer(self, call: int) -> str:
        return self.peers.get(call, f"127.0.0.1:{call}")

    def peer_certificate(self, call: int) -> bytes | None:
        del call
        return self.certificate

    def pause(self, call: int) -> None:
        assert call not in self.paused, f"call {call} is paused twice"
        self.paused.add(call)

    def resume(self, call: int) -> None:
        self.paused.remove(call)

    def drain(self) -> None:
        assert not self.is_draining
        self.is_draining = True

    def is_quiet(self) -> bool:
        return self.is_draining and self.confirms

    def is_drained(self) -> bool:
        return self.is_draining and self.closes


class RecordingLogger:
    """Keeps the lines of a server."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, message: str, /, **fields: object) -> None:
        self.lines.append((message, fields))

    warning = info


class NoPeers(WithoutPort):
    """The peers of a member that is alone; its messages are lost."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.is_stopped = False

    def pass_time(self, now: float) -> float:
        del now
        return inf

    def deliver(self, now: float) -> None:
        del now
        self.member.out.take_messages()

    def stop(self) -> None:
        self.is_stopped = True


class Network(Protocol):
    """Carries messages between members that run in one thread."""

    def send(self, sender: Member, message: Message) -> object:
        """Put a message on its way; it arrives as (`EventKind.MESSAGE`, `LINK`, message)."""

    def send_snapshot(self, sender: Member, transfer: SnapshotTransfer) -> None:
        """Carry a snapshot, and report the outcome to `Member.report_snapshot`."""

    def ask(self, asking: Member, question: Question) -> None:
        """Carry a question, and its answer to `Member.take_answer`."""


class LoopPeers(NoPeers):
    """The peers of a member among others that run in the same thread."""

    def __init__(self, member: Member, network: Network) -> None:
        super().__init__(member)
        self.network = network
        self.said = 0
        """How many messages, snapshots and questions were given to the network."""
        self.strangers = 0
        """The cluster of all other members, if it is another one."""

    @property
    def foreign_cluster(self) -> int:
        return self.strangers

    @property
    def open(self) -> Container[int]:
        return (LINK,)

    def handle(self, kind: int, call: int, detail: Any, now: float) -> None:
        del kind, call, now
        self.member.receive(detail)

    def deliver(self, now: float) -> None:
        del now
        if self.is_stopped:
            return
        member, out, network = self.member, self.member.out, self.network
        self.said += len(out.messages) + len(out.snapshots) + len(out.questions)
        for message in out.take_messages():
            network.send(member, message)
        for transfer in out.take_snapshots():
            network.send_snapshot(member, transfer)
        for question in out.take_questions():
            network.ask(member, question)


def store_image(member: Member, message: Message, image: bytes) -> None:
    """Store the database file that belongs to a snapshot message."""
    assert message.snapshot is not None
    index = message.snapshot.index
    received = ReceivedDatabase(member.seams.files, member.replica.snap_directory, index)
    received.write(image)
    received.finish()


def run_job(job: Job, files: Files, environments: Environments) -> Ended:
    """Run a job now; return its end."""
    try:
        return job, job.run(files, environments), None
    except Exception as error:
        return job, None, error
