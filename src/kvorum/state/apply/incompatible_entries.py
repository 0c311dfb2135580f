"""Describe entries of incompatible members, and tell the operator what to do."""

from kvorum.api.codec import read_varint

_V2_ID = 0x08
V2_METHOD = 0x12


def is_v2_request(data: bytes) -> bool:
    """Recognise a request of API version 2 by its first fields: an id, then the method."""
    try:
        return data[0] == _V2_ID and data[read_varint(data, 1)[1]] == V2_METHOD
    except (IndexError, ValueError):
        return False


def describe_foreign(data: bytes, error: Exception) -> str:
    """Return text about an undecodable entry: its likely writer, and the operator's remedy."""
    if is_v2_request(data):
        return (
            "is a request of etcd's version 2, as members of etcd 3.5 and older write them; this "
            "member lives with etcd 3.6 and newer. An older member is in the cluster, or was until "
            "now: upgrade all of them to 3.6, then remove this member and add it again with an "
            "empty directory"
        )
    return (
        f"holds no request that this version understands ({error!r}). What to do: if a newer "
        "member is in the cluster, start its version here; otherwise remove this member and add it "
        "anew with an empty directory"
    )
