"""The state that the parts of a transport share: host, edge, dialer, open calls and requests."""

from typing import Any, Final, Protocol

from kvorum.network.dialer.interface import Dialer
from kvorum.network.edge.interface import Headers
from kvorum.raft.logger import Logger
from kvorum.raft.messages import IS_LOCAL, Message, MessageType
from kvorum.server.peer.interface import Host, PeerOutput
from kvorum.server.peer.transport.headers import Identity, Refusal, request_headers
from kvorum.server.peer.transport.settings import TransportSettings


class Requester(Protocol):
    """The sender of a request, which takes its events."""

    def handle_answer(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the request."""


class Served(Protocol):
    """An open request of a peer."""

    def handle(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the request."""


PROBLEMS_MAX: Final = 16
"""How many different lines are logged about a failing channel."""
LINES_MAX: Final = 256
"""How many different lines about bad requests are logged within `WARN_SECONDS`; further ones are
only counted."""
WARN_SECONDS: Final = 60.0
"""The minimum time between two equal log lines about bad requests."""


class TransportState:
    """The shared state of a transport; `requests` and `calls` hold what is open."""

    __slots__ = (
        "_is_removal_reported",
        "_unwarned",
        "_warned",
        "body_bytes",
        "calls",
        "dialer",
        "headers",
        "identity",
        "logger",
        "node",
        "output",
        "requests",
        "settings",
    )

    def __init__(
        self,
        node: Host,
        output: PeerOutput,
        dialer: Dialer,
        identity: Identity,
        settings: TransportSettings,
        logger: Logger,
    ) -> None:
        self.node = node
        self.output = output
        self.dialer = dialer
        self.identity = identity
        self.settings = settings
        self.logger = logger
        self.headers = request_headers(identity)
        self.requests: dict[int, Requester] = {}
        self.calls: dict[int, Served] = {}
        # Bytes of all incomplete posted messages together.
        self.body_bytes = 0
        # How many messages were addressed to another node, or came from a removed one.
        self._is_removal_reported = False
        # When each line was last logged, and how often it has been suppressed since.
        self._warned: dict[str, tuple[float, int]] = {}
        self._unwarned = 0

    def request(
        self,
        requester: Requester,
        url: str,
        method: str,
        target: str,
        headers: Headers,
        body: bytes | None,
    ) -> int:
        """Send a request whose events go to the requester; return its number."""
        number = self.dialer.request(url, method, target, headers, body)
        self.requests[number] = requester
        return number

    def cancel(self, number: int) -> None:
        """Cancel a request, which then has no more events."""
        del self.requests[number]
        self.dialer.cancel(number)

    def refuse(self, call: int, refusal: Refusal, headers: Headers = ()) -> None:
        """Answer a call with an error, and forget it."""
        self.calls.pop(call, None)
        self.output.respond(call, refusal.status, [*refusal.headers(), *headers], refusal.body())

    def warn_once(self, line: str, subject: str = "") -> None:
        """Log a line about bad requests, at most every `WARN_SECONDS`, with the suppressed count.

        Lines with the same subject, if there is one, count as equal.
        """
        now = self.settings.unix_seconds()
        key = subject or line
        logged, times = self._warned.get(key, (-WARN_SECONDS, 0))
        if abs(now - logged) < WARN_SECONDS:
            self._warned[key] = logged, times + 1
            return
        if key not in self._warned and len(self._warned) >= LINES_MAX:
            self._forget_warned(now)
            if len(self._warned) >= LINES_MAX:
                self._unwarned += 1
                return
        self._warned[key] = now, 0
        self.logger.warning(
            f"{line} (and {times} times more since it was logged)" if times else line
        )

    def _forget_warned(self, now: float) -> None:
        """Forget lines that may be logged again, and log how many were suppressed."""
        self._warned = {
            line: logged
            for line, logged in self._warned.items()
            if abs(now - logged[0]) < WARN_SECONDS
        }
        if self._unwarned and len(self._warned) < LINES_MAX:
            self.logger.warning(
                f"a flood of bad requests: {self._unwarned} different ones were not logged"
            )
            self._unwarned = 0

    def report_removal(self) -> None:
        """Report to the host, once, that a peer refused this node as removed."""
        if not self._is_removal_reported:
            self._is_removal_reported = True
            self.node.note_removed()

    def receive(self, message: Message) -> bool:
        """Give the host a message of a peer; return False if it is not for this node.

        Drop messages that a node may send only to itself. Drop snapshot messages, too, if snapshots
        come with a database: such a message belongs in the request that carries the database.
        """
        node = self.node
        if message.to != self.identity.local_id or node.is_removed(message.sender):
            self.warn_once(
                f"ignored a message from {message.sender:x} to {message.to:x}: this node is "
                f"{self.identity.local_id:x}, or the sender was removed"
            )
            return False
        kind = message.type
        is_database_missing = kind == MessageType.SNAP and self.settings.snap_directory is not None
        if not IS_LOCAL[kind] and not is_database_missing:
            node.receive(message)
        return True
