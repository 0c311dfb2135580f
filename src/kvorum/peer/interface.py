"""The seams of the peer room: what carries bytes, and what the transport serves.

Requests come in through an edge, go out through a dialer; both are polled by the loop, which passes
their events on. Nothing here blocks, and time is passed in.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kvorum.api.errors import Status
from kvorum.edge.interface import Headers
from kvorum.raft.messages import Message


class Output(Protocol):
    """The part of an edge by which requests of other members are answered."""

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """As `Edge.respond`."""

    def send(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """As `Edge.send`."""

    def finish(self, call: int, status: Status, trailers: Headers = ()) -> None:
        """As `Edge.finish`."""

    def pending_bytes(self, call: int) -> int:
        """As `Edge.pending_bytes`."""

    def peer(self, call: int) -> str:
        """As `Edge.peer`."""

    def pause(self, call: int) -> None:
        """Read no more of a request's body until `resume`; what arrived may still come."""

    def resume(self, call: int) -> None:
        """Read a request's body again."""


class Host(Protocol):
    """What the transport serves: a member, or any other program that runs raft."""

    def receive(self, message: Message) -> None:
        """Take a raft message. One with a snapshot comes after its file is durable."""

    def unreachable(self, peer: int) -> None:
        """Note that a message to a peer was probably lost."""

    def snapshot_sent(self, transfer: Any, *, failed: bool) -> None:
        """Take the outcome of a snapshot that was to be sent."""

    def connected(self, peer: int, now: float) -> None:
        """Note that a peer can be reached from now on."""

    def disconnected(self, peer: int) -> None:
        """Note that a peer cannot be reached."""

    def absent(self, peer: int) -> None:
        """Note that nobody listens any more where a peer was: its process has ended."""

    def present(self, peer: int) -> None:
        """Note that a peer's host is not silent: a knock at it had an outcome."""

    def is_removed(self, peer: int) -> bool:
        """Return whether a node once belonged to the group and no longer does."""

    def removed(self) -> None:
        """Note that the group says that this node was removed."""

    def submit(
        self, work: Any, done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run `work.run(files)` off the loop, and pass its result or error back on it."""
