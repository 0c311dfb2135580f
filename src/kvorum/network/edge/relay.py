"""Forwards unary calls from an edge's clients to servers, and the answers back, without the loop.

The loop sets the methods and the endpoints. Calls that need a decision still reach it through
`Edge.poll`: when no endpoint is set, when the request is too large or too many calls are open, and
when a call failed without any server processing it. The relay cancels a call as soon as its client
is gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class RelayedMethod(NamedTuple):
    """A method whose calls the relay forwards."""

    number: int
    """The method's number in the edge."""
    path: str
    exception: bytes
    """The relay leaves requests that contain these bytes to the loop; empty: none."""
    is_noted: bool
    """Whether `Relay.take_revision` covers the revisions in this method's answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRules:
    """The calls that a relay forwards, and its limits."""

    methods: Sequence[RelayedMethod]
    request_bytes_max: int
    calls_max: int
    bytes_max: int
    """Limits on the forwarded calls that are not answered yet, and on the bytes of their requests.
    At either limit, the relay leaves further calls to the loop."""


class Relay(Protocol):
    """The loop's handle on the relay, which forwards no call before the first `ask`."""

    def ask(self, endpoints: Sequence[int]) -> None:
        """Forward calls to these endpoints of the upstream in turn; to none if empty."""

    def in_flight(self) -> tuple[int, int]:
        """Return the number of unanswered calls and the bytes of their requests.

        While the edge drains, it wakes the loop when the last of these calls has ended.
        """

    def take_revision(self) -> int:
        """Return the newest revision in answers since the previous call of this method, or 0.

        The relay records a revision before the client can receive the answer.
        """

    def tallies(self) -> Sequence[tuple[int, int, int]]:
        """Return (method's number, calls started, calls unanswered) for each method."""

    def failures(self) -> Sequence[tuple[int, int, int]]:
        """Return (method's number, gRPC code, calls that ended with it), without successes."""
