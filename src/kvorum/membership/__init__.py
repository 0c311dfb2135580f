"""The cluster's membership: ids, members, checks of changes, versions."""

from kvorum.membership.bootstrap import BootstrapError
from kvorum.membership.cluster import Cluster, MembershipError
from kvorum.membership.documents import DocumentError, Member
from kvorum.membership.urls import UrlError
from kvorum.membership.versions import Version

__all__ = [
    "BootstrapError",
    "Cluster",
    "DocumentError",
    "Member",
    "MembershipError",
    "UrlError",
    "Version",
]
