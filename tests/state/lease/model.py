"""Leases kept the simple way: a list of grants, searched from the front for every question."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from kvorum.api.errors import Status, StatusError

Result = TypeVar("Result")


def outcome(call: Callable[[], Result]) -> Result | Status:
    """Return the result of a call, or the status it ends with."""
    try:
        return call()
    except StatusError as error:
        return error.status


def finish(slices: Generator[None, None, Result]) -> tuple[Result, int]:
    """Run slices to their end; return their result, and how many there were."""
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result, count
        count += 1


@dataclass
class Grant:
    id: int
    ttl: int
    keys: set[bytes] = field(default_factory=set)
    remaining: int = 0
    expiry: float = 0.0
    asked: float | None = None


class Model:
    def __init__(self, ttl_min: int, retry_seconds: float) -> None:
        self.ttl_min = ttl_min
        self.retry_seconds = retry_seconds
        self.grants: list[Grant] = []
        self.is_primary = False

    def find(self, lease_id: int) -> Grant | None:
        for grant in self.grants:
            if grant.id == lease_id:
                return grant
        return None

    def grant(self, lease_id: int, ttl: int, now: float) -> int:
        ttl = max(ttl, self.ttl_min)
        self.grants.append(Grant(lease_id, ttl, expiry=now + ttl))
        return ttl

    def revoke(self, lease_id: int) -> None:
        self.grants = [grant for grant in self.grants if grant.id != lease_id]

    def attach(self, lease_id: int, key: bytes) -> None:
        for grant in self.grants:
            grant.keys.discard(key)
            if grant.id == lease_id:
                grant.keys.add(key)

    def detach(self, lease_id: int, key: bytes) -> None:
        for grant in self.grants:
            if grant.id == lease_id:
                grant.keys.discard(key)

    def lease_of(self, key: bytes) -> int:
        for grant in self.grants:
            if key in grant.keys:
                return grant.id
        return 0

    def promote(self, now: float, extend: float) -> None:
        self.is_primary = True
        for grant in self.grants:
            grant.expiry = now + (grant.remaining or grant.ttl) + extend
            grant.asked = None

    def expired(self, now: float) -> set[int]:
        if not self.is_primary:
            return set()
        return {
            grant.id
            for grant in self.grants
            if grant.expiry <= now
            and (grant.asked is None or grant.asked + self.retry_seconds <= now)
        }
