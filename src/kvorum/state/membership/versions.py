"""Versions of servers, of the cluster and of the storage, and the rules for changing them.

The cluster's version is the feature level that all members agree on, as major.minor: the lowest
version that any member runs. The leader raises it when every member is newer, and lowers it only
for a downgrade job, by one minor. A member's storage follows the cluster's version.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)([-+][0-9A-Za-z.+-]+)?", re.ASCII)


class Version(NamedTuple):
    """A version; pre-releases count as the release."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def level(self) -> "Version":
        """The version without its patch number, as clusters agree on it."""
        return Version(self.major, self.minor)


CLUSTER_VERSION_MIN = Version(3, 0)
STORAGE_VERSION_MIN = Version(3, 5)
"""The version of a storage without a stored version, as etcd reports it."""
STORED_VERSION_MIN = Version(3, 6)
"""The first version that a storage contains."""


def parse_version(text: str) -> Version:
    """Return the version of a text such as `3.7.1`; raises ValueError."""
    if (match := _SEMANTIC.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a version of the form major.minor.patch")
    return Version(int(match[1]), int(match[2]), int(match[3]))


def one_minor_below(version: Version) -> Version:
    """Return the only version that this one may be downgraded to."""
    return Version(version.major, version.minor - 1)


def decide_cluster_version(
    current: Version | None, servers: Iterable[Version | None], downgrade_target: Version | None
) -> Version | None:
    """Return the version the leader should propose; None for no change.

    `servers` has the versions of all members, with None for an unknown one. This function does not
    end a downgrade; a leader does, once all members run the target version.
    """
    lowest = _lowest(servers)
    if current is None:
        return lowest or CLUSTER_VERSION_MIN
    if lowest is None:
        return None
    if downgrade_target is not None:
        target = downgrade_target.level
        return target if target == one_minor_below(current) else None
    if current.level < lowest and current.major == lowest.major:
        return lowest
    return None


def decide_storage_version(storage: Version | None, cluster: Version | None) -> Version | None:
    """Return the new version for this member's storage; None for no change."""
    if cluster is None or cluster.level == CLUSTER_VERSION_MIN:
        return None
    wanted = max(cluster.level, STORAGE_VERSION_MIN)
    return None if (storage or STORAGE_VERSION_MIN) == wanted else wanted


def _lowest(servers: Iterable[Version | None]) -> Version | None:
    known = list(servers)
    found = [each.level for each in known if each is not None]
    return min(found) if found and len(found) == len(known) else None
