"""Encode the membership as JSON of etcd's version 2 store, which snapshots carry.

etcd 3.6 refuses a snapshot without this JSON, and etcd 3.5 takes the membership from it. It must
therefore be the membership at the snapshot's index: otherwise a member would refuse later changes.
Newer versions never read it. A leaf has no children, a directory an object of them.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from kvorum.state.membership.cluster import Membership
from kvorum.state.membership.documents import (
    MemberDocument,
    encode_attributes,
    encode_raft_attributes,
)
from kvorum.state.membership.versions import Version
from kvorum.storage.backend.buckets import CLUSTER, MEMBERS, MEMBERS_REMOVED

if TYPE_CHECKING:
    from kvorum.storage.backend.backend import Backend

Buckets = Mapping[bytes, Mapping[bytes, bytes]]
MEMBERSHIP_BUCKETS: Final = (MEMBERS, MEMBERS_REMOVED, CLUSTER)

_NEVER = "0001-01-01T00:00:00Z"


def snapshot_data(cluster: Membership) -> bytes:
    """Return the data of a Raft snapshot at this membership."""
    return _snapshot_data(tuple(cluster.members), tuple(cluster.removed), cluster.version)


# Most snapshots have the same members as the one before.
@lru_cache(maxsize=4)
def _snapshot_data(
    of: tuple[MemberDocument, ...], removed: tuple[int, ...], version: Version | None
) -> bytes:
    members: dict[str, dict[str, str]] = {}
    for member in of:
        leaves = {"raftAttributes": encode_raft_attributes(member)}
        if member.client_urls:
            leaves["attributes"] = encode_attributes(member)
        members[f"{member.id:x}"] = leaves
    about: dict[str, Any] = {
        "members": members,
        "removed_members": {f"{identity:x}": "" for identity in removed},
    }
    if version is not None:
        about["version"] = str(version)
    document = {"Root": _node("/", {"0": about, "1": {}}), "CurrentIndex": 0, "CurrentVersion": 2}
    return json.dumps(document, separators=(",", ":")).encode()


class _Stored:
    """Rows from a database as a `Backend`, of which a cluster calls only `get` and `items`."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    def get(self, bucket: bytes, name: bytes) -> bytes | None:
        return self._buckets.get(bucket, {}).get(name)

    def items(self, bucket: bytes) -> list[tuple[bytes, bytes]]:
        return sorted(self._buckets.get(bucket, {}).items())


def stored_snapshot_data(buckets: Buckets) -> bytes:
    """Return the data of a Raft snapshot at a membership given as its stored rows."""
    # The data contains neither the local member's id nor the cluster's, so zeros suffice.
    cluster = Membership(cast("Backend", _Stored(buckets)), 0, 0)
    cluster.restore()
    return snapshot_data(cluster)


def _node(path: str, content: Any) -> dict[str, Any]:
    is_leaf = isinstance(content, str)
    parent = "" if path == "/" else path
    return {
        "Path": path,
        "CreatedIndex": 0,
        "ModifiedIndex": 0,
        "ExpireTime": _NEVER,
        "Value": content if is_leaf else "",
        "Children": None
        if is_leaf
        else {name: _node(f"{parent}/{name}", each) for name, each in content.items()},
    }
