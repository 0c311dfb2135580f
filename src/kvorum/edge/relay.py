"""Unary calls that go from an edge's clients to servers, and their answers back, without the loop.

The loop says which calls these are, and whom to ask. Whatever needs a decision is still polled from
the edge: calls while nobody can be asked, that are too large, or too many; and those that surely no
server has looked at. A call whose client goes is cancelled at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class RelayedMethod(NamedTuple):
    """A method whose calls are passed on."""

    number: int
    """The edge's."""
    path: str
    exception: bytes
    """Requests that contain it are not passed on; empty: all are."""
    is_noted: bool
    """Whether the revisions in its answers are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRules:
    """Which calls are passed on."""

    methods: Sequence[RelayedMethod]
    request_bytes_max: int
    calls_max: int
    bytes_max: int
    """Calls, and bytes of their requests, that are not answered; further ones are not passed on."""


class Relay(Protocol):
    """What the loop says to a relay, and hears of it. It asks nobody until it is told to."""

    def ask(self, endpoints: Sequence[int]) -> None:
        """Ask these endpoints of the upstream in turn from now on, or nobody."""

    def in_flight(self) -> tuple[int, int]:
        """Return how many calls are not answered, and how many bytes their requests have.

        While the edge drains, it is woken when there are none any more.
        """

    def take_revision(self) -> int:
        """Return the newest revision in answers that were noted since this was last asked, or 0.

        It is known before the client can have its answer.
        """

    def tallies(self) -> Sequence[tuple[int, int, int]]:
        """Return (method's number, calls that began, calls that are not answered) of each."""

    def failures(self) -> Sequence[tuple[int, int, int]]:
        """Return (method's number, gRPC's code, calls that ended so); successes are not counted."""
