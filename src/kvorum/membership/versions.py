"""Versions of servers, of the cluster and of the storage, and when the cluster's changes.

The cluster's version is the feature level all members agree on, as major.minor: the lowest
version that runs. The leader raises it when every member is newer, and lowers it only for a
downgrade job, by one minor. A member's storage follows the cluster's version.
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
        """The version without its patch, which is what clusters agree on."""
        return Version(self.major, self.minor)


CLUSTER_VERSION_MIN = Version(3, 0)
STORAGE_VERSION_MIN = Version(3, 5)
"""The version of a storage that carries none, as etcd reports it."""
STORED_VERSION_MIN = Version(3, 6)
"""The first version that a storage carries."""


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
    """Return the version the leader should propose; None to leave it.

    `servers` are the versions of all members, None for one that could not be asked. The end of a
    downgrade is not decided here, but by a leader of the target version.
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
    """Return the version that this member's storage should get; None to leave it."""
    if cluster is None or cluster.level == CLUSTER_VERSION_MIN:
        return None
    wanted = max(cluster.level, STORAGE_VERSION_MIN)
    return None if (storage or STORAGE_VERSION_MIN) == wanted else wanted


def _lowest(servers: Iterable[Version | None]) -> Version | None:
    known = list(servers)
    found = [each.level for each in known if each is not None]
    return min(found) if found and len(found) == len(known) else None
