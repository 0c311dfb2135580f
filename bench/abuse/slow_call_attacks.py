"""Attacks by a few calls, each small for the work it demands of a server.

Each of these attacks once occupied the loop of a Kvorum member for longer than a tenth of a second.
"""

import time
from collections.abc import Callable

from bench.abuse.call_attacks import GRANT, LOCK, TXN
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import Wire, head
from bench.load import fill
from kvorum.api.pb.etcdserverpb import (
    Compare,
    LeaseGrantRequest,
    LeaseRevokeRequest,
    MemberAddRequest,
    MemberUpdateRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)

MEMBER_ADD = head(b"/etcdserverpb.Cluster/MemberAdd")
MEMBER_UPDATE = head(b"/etcdserverpb.Cluster/MemberUpdate")
REVOKE = head(b"/etcdserverpb.Lease/LeaseRevoke")
KEYS = 50_000
LEASE = 7
PUTS_PER_TXN = 128
TXNS_IN_FLIGHT = 64


def _answered(target: Target, block: bytes, body: bytes, deadline: float) -> str:
    with Wire(target.client) as wire:
        return wire.answered(wire.call(block, body, deadline), deadline)


def _urls(count: int) -> list[str]:
    return [
        f"http://127.0.{1 + number // 65_535}.9:{1 + number % 65_535}" for number in range(count)
    ]


def member_of_many_urls(target: Target, count: int, deadline: float) -> Seen:
    """Add a learner with `count` peer URLs."""
    body = MemberAddRequest(peerURLs=_urls(count), isLearner=True).SerializeToString()
    status = _answered(target, MEMBER_ADD, body, deadline)
    time.sleep(min(1.0, target.hold_seconds))  # an added member would be dialed
    return Seen(f"{status}, {len(body) / 1e6:.1f} MB")


def member_updated_with_many_urls(target: Target, count: int, deadline: float) -> Seen:
    """Update a nonexistent member with `count` peer URLs."""
    body = MemberUpdateRequest(ID=1, peerURLs=_urls(count)).SerializeToString()
    return Seen(f"{_answered(target, MEMBER_UPDATE, body, deadline)}, {len(body) / 1e6:.1f} MB")


def put_many_small(target: Target, count: int, deadline: float) -> None:
    """Put the keys that the compares read."""
    del count, deadline
    fill(target.client, ((b"many%08d" % each, b"v") for each in range(KEYS)))


def compares(*, writes: bool) -> Callable[[Target, int, float], Seen]:
    """Return an attack by one Txn that compares all of many keys `count` times."""
    every = Compare(
        key=b"many",
        range_end=b"manz",
        target=Compare.CREATE,
        result=Compare.GREATER,
        create_revision=0,
    )
    read = RequestOp(request_range=RangeRequest(key=b"a"))
    write = RequestOp(request_put=PutRequest(key=b"a", value=b"b"))

    def run(target: Target, count: int, deadline: float) -> Seen:
        txn = TxnRequest(compare=[every] * count, success=[write if writes else read])
        return Seen(_answered(target, TXN, txn.SerializeToString(), deadline))

    return run


def dropped_locks(target: Target, count: int, deadline: float) -> Seen:
    """Queue `count` calls for one lock, and break the connection once all wait."""
    with Wire(target.client) as wire:
        for _ in range(count):
            wire.call(LOCK, b"\x0a\x04lock", deadline)
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        answered = len(wire.ended)
    time.sleep(min(1.0, target.hold_seconds))  # ending the calls is the costly part
    return Seen(f"{count:,} calls, {answered:,} answered")


def grant_and_put(target: Target, count: int, deadline: float) -> None:
    """Put `count` keys with one lease."""
    with Wire(target.client) as wire:
        grant = LeaseGrantRequest(TTL=3600, ID=LEASE).SerializeToString()
        wire.answered(wire.call(GRANT, grant, deadline), deadline)
        for start in range(0, count, PUTS_PER_TXN):
            puts = [
                RequestOp(request_put=PutRequest(key=b"leased%08d" % each, lease=LEASE))
                for each in range(start, min(count, start + PUTS_PER_TXN))
            ]
            wire.call(TXN, TxnRequest(success=puts).SerializeToString(), deadline)
            sent = start // PUTS_PER_TXN + 2
            wire.until(lambda sent=sent: sent - len(wire.ended) < TXNS_IN_FLIGHT, deadline)  # type: ignore[misc]
        wire.until(lambda: len(wire.ended) > count // PUTS_PER_TXN, deadline)


def revoked_lease(target: Target, count: int, deadline: float) -> Seen:
    """Revoke the lease that has `count` keys."""
    body = LeaseRevokeRequest(ID=LEASE).SerializeToString()
    return Seen(f"{_answered(target, REVOKE, body, deadline)}, {count:,} keys")


ATTACKS = (
    Attack("80,000 URLs added", member_of_many_urls, 80_000, 2_000),
    Attack("80,000 URLs of no member", member_updated_with_many_urls, 80_000, 2_000),
    Attack("100 compares of 50,000", compares(writes=True), 100, 3, prepare=put_many_small),
    Attack("the same, only reading", compares(writes=False), 100, 3, prepare=put_many_small),
    Attack("3,000 locks dropped", dropped_locks, 3_000, 100),
    Attack("lease of 100,000 keys", revoked_lease, 100_000, 300, 60.0, prepare=grant_and_put),
)
