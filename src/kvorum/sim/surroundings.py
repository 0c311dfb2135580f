"""The interfaces that a machine needs: the transport to its peers, and the cluster around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kvorum.server.interface import Peers

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from kvorum.member.member import Member
    from kvorum.network.dialer.interface import DialEvent
    from kvorum.network.edge.interface import Event, Headers
    from kvorum.raft.messages import Message
    from kvorum.server.peer.cluster.joining import Start
    from kvorum.sim.entering import Entrance
    from kvorum.sim.machine import Machine
    from kvorum.state.membership.bootstrap import ClusterSettingsError
    from kvorum.state.mvcc.hashes import HashRows


class MachinePeers(Peers, Protocol):
    """How the server of a machine exchanges messages with its peers."""

    def enter(self) -> Entrance | None:
        """Return the search of a process without a log for its place; None if that is known."""

    def begin(self, member: Member) -> None:
        """Connect a process that has started."""

    def crash(self, *, power_cut: bool) -> None:
        """Break the connections of a process that has ended."""

    def poll(self) -> list[DialEvent]:
        """Return the events of requests to others."""

    def take_events(self) -> list[Event]:
        """Return the events of requests from others."""


class WithoutPort:
    """Stubs for the part of `MachinePeers` that concerns a port, for members without one."""

    __slots__ = ()

    def poll(self) -> list[DialEvent]:
        """Dial no member."""
        return []

    def take_events(self) -> list[Event]:
        """Listen nowhere."""
        return []

    @property
    def open(self) -> Container[int]:
        """Serve no requests."""
        return ()

    @property
    def foreign_cluster(self) -> int:
        """Report no member of another cluster."""
        return 0

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """Serve no requests."""
        raise AssertionError(f"request {call} at {now}: {method} {target} {headers!r}")

    def handle(self, kind: int, call: int, detail: Any, now: float) -> None:
        """Serve no requests."""
        raise AssertionError(f"event {kind} of request {call} at {now}: {detail!r}")

    def take_dialed(self, events: Iterable[DialEvent], now: float) -> None:
        """Dial no member."""
        raise AssertionError(f"no member was dialed, but at {now}: {events!r}")


class Cluster(Protocol):
    """The cluster, as a machine uses it."""

    token_seconds: float
    """How long tokens last."""

    def note_sent(self, sender: int, message: Message) -> None:
        """Check a raft message that leaves a member."""

    def note_turn(self, machine: Machine) -> None:
        """Check a member after its turn."""

    def note_stop(self, machine: Machine) -> None:
        """Note that a member had to stop: its disk failed or is damaged."""

    def admits(self, machine: Machine, start: Start, entrance: Entrance) -> bool:
        """Check where a process without a log starts; return whether it may."""

    def note_refusal(self, machine: Machine, error: ClusterSettingsError) -> None:
        """Note that a process without a log was refused, and ended."""

    def note_hash(self, machine: Machine, job: HashRows, value: int) -> None:
        """Check a hash that a machine made of its rows."""

    def accounts_for(self, error: BaseException) -> bool:
        """Return whether a member had to stop because another one is damaged."""
