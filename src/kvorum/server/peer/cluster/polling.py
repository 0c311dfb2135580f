"""Poll the other members' versions: the leader does, at its election and then regularly.

The answers determine the cluster's version. If a member does not answer, its version counts as
unknown, whatever it answered before.
"""

import json
from collections.abc import Callable
from functools import partial

from kvorum.member.duties import VERSION_SECONDS, agree_on_version
from kvorum.member.member import Member
from kvorum.server.peer.cluster.exchanges import Answer
from kvorum.state.membership.documents import MemberDocument as Peer

AskVersion = Callable[[Peer, Callable[[Answer | None], None]], None]
"""A function that requests a member's versions."""


def server_version(answer: Answer | None) -> str | None:
    """Return the server's version in an answer to `/version`; None if it has none."""
    versions = versions_of(answer)
    return None if versions is None else versions.get("etcdserver")


def versions_of(answer: Answer | None) -> dict[str, str] | None:
    """Return the versions in an answer to `/version`; None if the answer is invalid."""
    if answer is None or answer.status != 200:
        return None
    try:
        fields = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    return {str(name): text for name, text in fields.items() if isinstance(text, str)}


class VersionPolling:
    """Keeps `member.peer_versions` up to date on the leader."""

    __slots__ = ("_ask", "_member", "_next", "_unanswered", "is_leading")

    def __init__(self, member: Member, ask: AskVersion) -> None:
        self._member = member
        self._ask = ask
        self.is_leading = False
        self._next = 0.0
        self._unanswered = 0

    def pass_time(self, now: float) -> float:
        """Poll if it is due; return when to call this next."""
        member = self._member
        if not member.is_leader:
            self.is_leading = False
            return now + VERSION_SECONDS
        if not self.is_leading or now >= self._next:
            self.is_leading = True
            self._next = now + VERSION_SECONDS
            self._poll()
        return self._next

    def _poll(self) -> None:
        member = self._member
        others = [each for each in member.state.cluster.members if each.id != member.id]
        if self._unanswered:
            return
        self._unanswered = len(others)
        for each in others:
            self._ask(each, partial(self._take_answer, each.id))

    def _take_answer(self, peer: int, answer: Answer | None) -> None:
        member = self._member
        version = server_version(answer)
        if version is None:
            member.peer_versions.pop(peer, None)
        else:
            member.peer_versions[peer] = version
        self._unanswered -= 1
        if not self._unanswered:
            agree_on_version(member, member.now)
