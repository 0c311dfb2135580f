"""The membership in the JSON of etcd's version 2 store, which snapshots carry.

Members of version 3.6 refuse a snapshot without it, and those of 3.5 take the membership from
it; newer ones never read it. A leaf has no children, a directory an object of them.
"""

import json
from typing import Any

from kvorum.membership.cluster import Cluster
from kvorum.membership.documents import encode_attributes, encode_raft_attributes

_NEVER = "0001-01-01T00:00:00Z"


def snapshot_data(cluster: Cluster) -> bytes:
    """Return what the data of a Raft snapshot is at this membership."""
    members: dict[str, dict[str, str]] = {}
    for member in cluster.members:
        leaves = {"raftAttributes": encode_raft_attributes(member)}
        if member.client_urls:
            leaves["attributes"] = encode_attributes(member)
        members[f"{member.id:x}"] = leaves
    about: dict[str, Any] = {
        "members": members,
        "removed_members": {f"{identity:x}": "" for identity in cluster.removed},
    }
    if cluster.version is not None:
        about["version"] = str(cluster.version)
    document = {"Root": _node("/", {"0": about, "1": {}}), "CurrentIndex": 0, "CurrentVersion": 2}
    return json.dumps(document, separators=(",", ":")).encode()


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
