"""Telling the cluster this member's name and client URLs, once after every start.

A server begins to serve clients when that is applied here: by then it is a member that others
know, and has caught up with everything before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.errors import Code, Status
from kvorum.api.pb.membershippb import Attributes, ClusterMemberAttrSetRequest
from kvorum.member import requests
from kvorum.member.duties import agree_on_version
from kvorum.member.waits import AppliedTo, Propose, Until

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.waits import Steps

RETRY_SECONDS = 0.1

UNSEEN = Status(Code.UNKNOWN, "a snapshot may have brought the entry")
"""The answer when a snapshot is installed, in place of a result: the entry is proposed anew."""


def publish(member: Member) -> Steps:
    """Propose until it is applied; others may refuse for a while."""
    attributes = Attributes(name=member.config.name, client_urls=member.config.client_urls)
    request = ClusterMemberAttrSetRequest(member_ID=member.id, member_attributes=attributes)
    body = request.SerializeToString()
    while True:
        # A member that joins must have applied its own addition first.
        while member.cluster.member(member.id) is None:
            yield AppliedTo(member.applied + 1)
        answer = yield Propose(requests.CLUSTER_MEMBER_ATTR_SET, body)
        if not isinstance(answer, Status):
            member.is_published = True
            # Clients ask for the cluster's version first of all, long before the duty is due.
            # Members whose versions are not known yet are asked soon.
            if all(map(member.version_of, (each.id for each in member.cluster.members))):
                agree_on_version(member, member.now)
            return None
        if answer is not UNSEEN:
            yield Until(member.now + RETRY_SECONDS)
