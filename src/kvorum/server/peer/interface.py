"""The seams of the peer package: the edge, and the host that the transport serves.

Requests come in through an edge and go out through a dialer; the loop polls both and passes their
events on. Nothing here blocks, and callers pass the time in.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kvorum.api.errors import Status
from kvorum.network.edge.interface import Headers
from kvorum.raft.messages import Message


class PeerOutput(Protocol):
    """The part of an edge that answers requests of other members."""

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
        """Read no more of a request's body until `resume`; pieces already read may still come."""

    def resume(self, call: int) -> None:
        """Read a request's body again."""


class Host(Protocol):
    """The transport's host: a member, or any other program that runs raft."""

    def receive(self, message: Message) -> None:
        """Take a raft message. A snapshot's database file is durable before its message comes."""

    def report_unreachable(self, peer: int) -> None:
        """Note that a message to a peer was probably lost."""

    def report_snapshot(self, transfer: Any, *, failed: bool) -> None:
        """Take the outcome of a snapshot transfer to a peer."""

    def note_connected(self, peer: int, now: float) -> None:
        """Note that a peer is reachable from now on."""

    def note_disconnected(self, peer: int) -> None:
        """Note that a peer is not reachable any more."""

    def note_absent(self, peer: int) -> None:
        """Note that a peer's addresses refuse connections, because its process has ended."""

    def note_present(self, peer: int) -> None:
        """Note that a peer's host answered or refused a probe (`Transport.probe_host`)."""

    def is_removed(self, peer: int) -> bool:
        """Return whether a node once belonged to the group and no longer does."""

    def note_removed(self) -> None:
        """Note that a peer reports that the group has removed this node."""

    def submit(
        self, work: Any, done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run `work.run(files)` off the loop; call `done` or `failed` on the loop."""
