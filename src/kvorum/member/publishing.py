"""Publish this member's name and client URLs to the cluster, once after every start.

A server starts to serve clients when this member has applied that entry: by then the other members
know it, and it has caught up with all earlier entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.errors import Code, Status
from kvorum.api.pb.membershippb import Attributes, ClusterMemberAttrSetRequest
from kvorum.member.duties import agree_on_version
from kvorum.member.waits import AppliedTo, Propose, Until
from kvorum.state.apply import requests

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.waits import Steps

RETRY_SECONDS = 0.1

UNSEEN = Status(Code.UNKNOWN, "a snapshot may have brought the entry")
"""The answer after installing a snapshot, instead of a result: propose the entry again."""


def publish(member: Member) -> Steps:
    """Propose the attributes until the entry is applied; proposals may fail for a while."""
    attributes = Attributes(name=member.config.name, client_urls=member.config.client_urls)
    request = ClusterMemberAttrSetRequest(member_ID=member.id, member_attributes=attributes)
    body = request.SerializeToString()
    while True:
        # A member that joins must have applied its own addition first.
        while member.state.cluster.member(member.id) is None:
            yield AppliedTo(member.state.applied + 1)
        answer = yield Propose(requests.CLUSTER_MEMBER_ATTR_SET, body)
        if not isinstance(answer, Status):
            member.note_published()
            # Clients first ask for the cluster's version, long before the duty is due. While a
            # member's version is unknown, the cluster's waits for the duty.
            if all(map(member.version_of, (each.id for each in member.state.cluster.members))):
                agree_on_version(member, member.now)
            return None
        if answer is not UNSEEN:
            yield Until(member.now + RETRY_SECONDS)
