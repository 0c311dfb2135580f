"""The outputs of a member, gathered in lists until its runtime takes them.

The parts of a member share one outbox. Taking a list replaces it and never clears it, so the
taker owns the list.
"""

from typing import NamedTuple

from kvorum.member.jobs import Job
from kvorum.raft.messages import NONE, Message
from kvorum.state.apply.results import Result

Reply = tuple[int, Result]
Headers = tuple[tuple[str, str], ...]
"""Names and values of HTTP headers."""


class SnapshotTransfer(NamedTuple):
    """A snapshot for a peer: the message, and the file that goes before it.

    The transport sends the file, and the peer makes it durable as `database_path(directory, index)`
    before its `Member.receive` gets the message. On success and on failure the transport calls
    `Member.report_snapshot`, which also releases the file.
    """

    message: Message
    path: str
    size: int
    """The file's length in bytes."""
    is_copy: bool = False
    """Whether the file is a copy of this member's database instead of etcd's bbolt format."""


class Question(NamedTuple):
    """An HTTP request to one of a peer's peer URLs.

    `Member.take_answer` takes the answer, under the same number.
    """

    number: int
    peer: int
    method: str
    path: str
    body: bytes
    headers: Headers = ()


class Outbox:
    """Replies and stream messages by call, messages and requests to peers, and jobs."""

    __slots__ = ("jobs", "messages", "probe_target", "questions", "replies", "sends", "snapshots")

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.sends: list[tuple[int, bytes]] = []
        self.messages: list[Message] = []
        self.snapshots: list[SnapshotTransfer] = []
        self.questions: list[Question] = []
        self.probe_target = NONE
        """The peer whose host the transport should probe; see `Succession`."""
        self.jobs: list[Job] = []

    def take_replies(self) -> list[Reply]:
        """Return the final answers of calls, in order."""
        taken, self.replies = self.replies, []
        return taken

    def take_sends(self) -> list[tuple[int, bytes]]:
        """Return the messages of streams, in order."""
        taken, self.sends = self.sends, []
        return taken

    def take_messages(self) -> list[Message]:
        """Return the messages for peers, in order to each of them."""
        taken, self.messages = self.messages, []
        return taken

    def take_snapshots(self) -> list[SnapshotTransfer]:
        """Return the snapshots for peers."""
        taken, self.snapshots = self.snapshots, []
        return taken

    def take_questions(self) -> list[Question]:
        """Return the HTTP requests to peers."""
        taken, self.questions = self.questions, []
        return taken

    def take_jobs(self) -> list[Job]:
        """Return the jobs to run, in order for each executor."""
        taken, self.jobs = self.jobs, []
        return taken
