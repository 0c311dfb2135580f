"""Compute ids of members and clusters as etcd does.

Members of a new cluster compute the same ids without communicating: all of them know the same peer
URLs and the same token.
"""

from collections.abc import Iterable
from hashlib import sha1


def member_id(peer_urls: Iterable[str], token: str, unix_seconds: int | None = None) -> int:
    """Return the id of a member.

    At bootstrap the id depends on the peer URLs and the cluster's token. For a member added later,
    the token is empty and the time of the addition counts instead.
    """
    text = "".join(sorted(peer_urls)) + token
    if unix_seconds is not None:
        text += str(unix_seconds)
    return _first_eight_bytes(text.encode())


def cluster_id(member_ids: Iterable[int]) -> int:
    """Return the id of the cluster that these members bootstrap."""
    return _first_eight_bytes(b"".join(each.to_bytes(8, "big") for each in sorted(member_ids)))


def _first_eight_bytes(data: bytes) -> int:
    return int.from_bytes(sha1(data, usedforsecurity=False).digest()[:8], "big")
