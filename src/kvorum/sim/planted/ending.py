"""Planted bugs of clean ends, and of calls that never end."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from kvorum.member.member import Member
from kvorum.server import server
from kvorum.server.rpc.services import Services
from kvorum.server.server import Server
from kvorum.server.shutdown import Shutdown


@contextmanager
def answer_after_the_drain() -> Iterator[None]:
    """Serve and answer clients in every phase of an end."""

    def answer(self: Server, now: float) -> None:
        self.services.deliver(now)

    def forget_waiting(_self: Server) -> None:
        pass

    with (
        patch.object(Server, "_answer", answer),
        patch.object(Server, "forget_waiting", forget_waiting),
    ):
        yield


@contextmanager
def end_without_handing_over() -> Iterator[None]:
    """Let a leader end without transferring its leadership, as a follower does."""

    def transfer_leadership(_ending: Shutdown) -> bool:
        return True

    with patch.object(Shutdown, "_transfer_leadership", transfer_leadership):
        yield


@contextmanager
def forget_to_answer() -> Iterator[None]:
    """Lose the last answer of every batch with more than three."""
    original = Services.deliver

    def deliver(self: Services, now: float) -> None:
        member: Member = self._member
        if len(member.out.replies) > 3:
            member.out.replies.pop()
        original(self, now)

    with patch.object(Services, "deliver", deliver):
        yield


@contextmanager
def stay_when_removed() -> Iterator[None]:
    """Make a removed member wait for an hour before it ends."""
    with patch.object(server, "REMOVED_SECONDS", 3600.0):
        yield
