"""The pipeline: posts each message as a request of its own, for peers that read no stream yet.

If a post fails, the message is lost, and the transport reports the peer to the host as unreachable.
It never posts a message twice: the first post may have arrived, and a proposal must not repeat.
"""

from collections import deque
from typing import Any, Final

from kvorum.network.dialer.interface import FAILURES, DialEventKind
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message
from kvorum.server.peer.transport.addresses import Addresses, problem_at
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.frames import decode_checked
from kvorum.server.peer.transport.headers import (
    BUSY,
    PIPELINE,
    PROTOBUF,
    TOO_LARGE,
    UNACCEPTABLE,
    UNREADABLE,
    Refusal,
)
from kvorum.server.peer.transport.shared import PROBLEMS_MAX, TransportState

_ANSWER_BYTES_MAX: Final = 1024
_BYTES_PER_SECOND_MIN: Final = 1 << 20
_NEVER: Final = float("inf")


class Transfer:
    """A snapshot without a database, as the argument of `Host.report_snapshot`."""

    __slots__ = ("message", "path")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.path = ""


class Post:
    """The post of one message."""

    __slots__ = ("_answer", "_pipeline", "_status", "deadline", "message", "url")

    def __init__(self, pipeline: "Pipeline", message: Message, url: str, deadline: float) -> None:
        self._pipeline = pipeline
        self._status = 0
        self._answer = b""
        self.message = message
        self.url = url
        self.deadline = deadline

    def handle_answer(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the request."""
        if kind == DialEventKind.RESPONDED:
            self._status = detail[0]
        elif kind == DialEventKind.PIECE:
            self._answer += detail[: _ANSWER_BYTES_MAX - len(self._answer)]
        elif kind == DialEventKind.COMPLETED:
            text = self._answer.decode(errors="replace").strip()
            self._pipeline.take_answer(self, self._status, text, now)
        elif kind in FAILURES:
            self._pipeline.fail_post(self, str(detail), now)


class Pipeline:
    """Posts messages to one peer: a few at a time, the others wait in a queue."""

    __slots__ = ("_addresses", "_counters", "_peer", "_posts", "_problems", "_queue", "_shared")

    def __init__(
        self, shared: TransportState, peer: int, counters: PeerCounters, addresses: Addresses
    ) -> None:
        self._shared = shared
        self._peer = peer
        self._counters = counters
        self._addresses = addresses
        self._queue: deque[Message] = deque()
        self._posts: dict[int, Post] = {}
        # The problems since the last successful post; each is logged once.
        self._problems: set[str] = set()

    def send(self, message: Message, now: float) -> bool:
        """Post a message; return False, and drop it, if the queue is full."""
        settings = self._shared.settings
        if len(self._posts) < settings.pipeline_requests_max:
            self._post(message, now)
        elif len(self._queue) < settings.pipeline_queue_max:
            self._queue.append(message)
        else:
            return False
        return True

    def _post(self, message: Message, now: float) -> None:
        shared = self._shared
        url = self._addresses.current
        body = encode_message(message)
        seconds = shared.settings.answer_seconds_max + len(body) / _BYTES_PER_SECOND_MIN
        post = Post(self, message, url, now + seconds)
        headers = [*shared.headers, ("Content-Type", PROTOBUF)]
        self._posts[shared.request(post, url, "POST", PIPELINE, headers, body)] = post
        self._counters.sent_bytes += len(body)

    def take_answer(self, post: Post, status: int, text: str, now: float) -> None:
        """Take the answer to a post."""
        if status != 204:
            self.fail_post(post, f"the peer answered {status} {text}", now)
            if status == 403:
                self._shared.report_removal()
            return
        self._problems.clear()
        self._forget(post)
        self._report(post.message, failed=False)
        self._next(now)

    def fail_post(self, post: Post, problem: str, now: float) -> None:
        """Report a failed post, and start the next one."""
        self._forget(post)
        self._addresses.note_failure(post.url)
        self._counters.send_failures += 1
        line = f"cannot post to {self._peer:x}: {problem_at(post.url, problem)}; trying on"
        if line not in self._problems and len(self._problems) < PROBLEMS_MAX:
            self._problems.add(line)
            self._shared.logger.warning(line)
        self._shared.node.report_unreachable(self._peer)
        self._report(post.message, failed=True)
        self._next(now)

    def _forget(self, post: Post) -> None:
        for number, each in self._posts.items():
            if each is post:
                del self._posts[number]
                self._shared.requests.pop(number, None)
                return

    def _report(self, message: Message, *, failed: bool) -> None:
        if message.type == MessageType.SNAP:
            self._shared.node.report_snapshot(Transfer(message), failed=failed)

    def _next(self, now: float) -> None:
        if self._queue and len(self._posts) < self._shared.settings.pipeline_requests_max:
            self._post(self._queue.popleft(), now)

    def pass_time(self, now: float) -> float:
        """Cancel posts without an answer in time; return when to call this next."""
        overdue = [number for number, post in self._posts.items() if now >= post.deadline]
        for number in overdue:
            post = self._posts[number]
            self._shared.dialer.cancel(number)
            self.fail_post(post, "no answer in time", now)
        return min((post.deadline for post in self._posts.values()), default=_NEVER)

    def stop(self) -> None:
        """Cancel all posts, and report snapshots among them as failed."""
        posts, self._posts = self._posts, {}
        waiting, self._queue = self._queue, deque()
        for number in posts:
            self._shared.cancel(number)
        for message in [*[post.message for post in posts.values()], *waiting]:
            self._report(message, failed=True)


class Arrival:
    """The reception of one posted message."""

    __slots__ = ("_answer_headers", "_call", "_length", "_pieces", "_shared")

    def __init__(
        self, shared: TransportState, call: int, answer_headers: list[tuple[str, str]]
    ) -> None:
        self._shared = shared
        self._call = call
        self._answer_headers = answer_headers
        self._pieces: list[bytes] = []
        self._length = 0

    def handle(self, kind: int, detail: Any, _now: float) -> None:
        """Take an event of the call."""
        if kind == EdgeEventKind.MESSAGE:
            self._add(detail)
        elif kind == EdgeEventKind.HALF_CLOSED:
            self._complete()
        elif kind == EdgeEventKind.ENDED:
            self._forget()

    def _add(self, piece: bytes) -> None:
        shared = self._shared
        if self._length + len(piece) > shared.settings.body_bytes_max:
            self._refuse(TOO_LARGE)
        elif shared.body_bytes + len(piece) > shared.settings.bodies_bytes_max:
            self._refuse(BUSY)
        else:
            self._pieces.append(piece)
            self._length += len(piece)
            shared.body_bytes += len(piece)

    def _complete(self) -> None:
        try:
            message = decode_checked(b"".join(self._pieces))
        except ValueError as error:
            self._shared.warn_once(f"refused a posted message: {error}")
            self._refuse(UNREADABLE)
            return
        if not self._shared.receive(message):
            self._refuse(UNACCEPTABLE)
            return
        self._forget()
        self._shared.output.respond(self._call, 204, self._answer_headers, b"")

    def _refuse(self, refusal: Refusal) -> None:
        self._forget()
        self._shared.refuse(self._call, refusal, self._answer_headers)

    def _forget(self) -> None:
        self._shared.body_bytes -= self._length
        self._length = 0
        self._pieces = []
        self._shared.calls.pop(self._call, None)
