# Written by `make client` from kvorum/client/aio; change that.
"""The members of a cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvorum.client import administration
from kvorum.client.values import Member, MemberList

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class Members:
    """The membership of the cluster, which changes by one member at a time."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client") -> None:
        self._client = client

    def list(self, *, linearizable: bool = True, timeout: float | None = None) -> MemberList:
        """Return all members; unless `linearizable`, as the endpoint knows them."""
        operation = administration.list_members(linearizable=linearizable)
        return self._client.run(operation, timeout)

    def add(
        self,
        peer_urls: str | Sequence[str],
        *,
        learner: bool = False,
        timeout: float | None = None,
    ) -> Member:
        """Add a member, which must then be started; a learner has no vote until promoted."""
        operation = administration.add_member(peer_urls, learner=learner)
        return self._client.run(operation, timeout)

    def remove(self, member: int, *, timeout: float | None = None) -> MemberList:
        """Remove a member by its id; return the remaining members."""
        return self._client.run(administration.remove_member(member), timeout)

    def update(
        self, member: int, peer_urls: str | Sequence[str], *, timeout: float | None = None
    ) -> MemberList:
        """Change the peer URLs of a member; return all members."""
        return self._client.run(administration.update_member(member, peer_urls), timeout)

    def promote(self, member: int, *, timeout: float | None = None) -> MemberList:
        """Promote a learner to a voter; return all members."""
        return self._client.run(administration.promote_member(member), timeout)
