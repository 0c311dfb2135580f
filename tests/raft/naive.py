"""Second, stupid implementations to check the clever ones against."""

from collections.abc import Sequence

from kvorum.raft.entries import NO_LIMIT


def naive_committed(voters: Sequence[int], indexes: dict[int, int]) -> int:
    """Try every index that any node has."""
    ids = set(voters)
    if not ids:
        return NO_LIMIT
    best = 0
    for candidate in indexes.values():
        having = [voter for voter in ids if indexes.get(voter, 0) >= candidate]
        if len(having) > len(ids) / 2:
            best = max(best, candidate)
    return best
