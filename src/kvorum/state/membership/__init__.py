"""The cluster's membership: ids, members, checks of changes, versions."""

from kvorum.state.membership.bootstrap import ClusterSettingsError
from kvorum.state.membership.cluster import Membership, MembershipError
from kvorum.state.membership.documents import DocumentError, MemberDocument
from kvorum.state.membership.urls import UrlError
from kvorum.state.membership.versions import Version

__all__ = [
    "ClusterSettingsError",
    "DocumentError",
    "MemberDocument",
    "Membership",
    "MembershipError",
    "UrlError",
    "Version",
]
