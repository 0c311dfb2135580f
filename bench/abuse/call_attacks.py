"""Attacks by calls that any client may make: each is a legitimate request, only very large."""

import time

from bench.abuse.bystander import FAILED
from bench.abuse.http_attacks import in_words
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import Wire, head, message
from bench.load import fill
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
)

PUT = head(b"/etcdserverpb.KV/Put")
RANGE = head(b"/etcdserverpb.KV/Range")
TXN = head(b"/etcdserverpb.KV/Txn")
WATCH = head(b"/etcdserverpb.Watch/Watch")
GRANT = head(b"/etcdserverpb.Lease/LeaseGrant")
KEEP_ALIVE = head(b"/etcdserverpb.Lease/LeaseKeepAlive")
LOCK = head(b"/v3lockpb.Lock/Lock")
LEASES = head(b"/etcdserverpb.Lease/LeaseLeases")
SNAPSHOT = head(b"/etcdserverpb.Maintenance/Snapshot")

MEBIBYTE = 1 << 20
EVERYTHING = RangeRequest(key=b"large", range_end=b"largf").SerializeToString()
GRANTS_IN_FLIGHT = 1_000
UNREAD_KEYS = 20
TIMES_LISTED = 10


def put_large(target: Target, count: int, deadline: float) -> None:
    """Put `count` keys of a mebibyte each."""
    with Wire(target.client) as wire:
        for number in range(count):
            put = PutRequest(key=b"large%06d" % number, value=b"v" * (MEBIBYTE - 100))
            status = wire.answered(wire.call(PUT, put.SerializeToString(), deadline), deadline)
            if status != "0":
                raise SystemExit(f"a key of a mebibyte could not be put: {status}")


def put_twenty_large(target: Target, count: int, deadline: float) -> None:
    """Put the keys that the unread ranges request."""
    put_large(target, min(count, UNREAD_KEYS), deadline)


def _watch(wire: Wire, count: int, deadline: float) -> int:
    """Create `count` watchers on one stream; return the stream once all are created."""
    create = WatchCreateRequest(key=b"watched")
    one = WatchRequest(create_request=create).SerializeToString()
    stream = wire.call(WATCH, one, deadline, end=False)
    wire.say(stream, message(one) * (count - 1), deadline)
    wire.until(lambda: wire.messages[stream] >= count or stream in wire.ended, deadline)
    return stream


def progress_requests(target: Target, count: int, deadline: float) -> Seen:
    """Create 50 watchers per progress request, and send `count` of these in one burst."""
    with Wire(target.client) as wire:
        stream = _watch(wire, count * 50, deadline)
        made = wire.messages[stream]
        one = WatchRequest(progress_request=WatchProgressRequest()).SerializeToString()
        wire.say(stream, message(one) * count, deadline)
        wire.until(lambda: wire.messages[stream] > made, deadline)
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        answers = wire.messages[stream] - made
        return Seen(f"{made:,} watchers, {answers:,} answers to {count:,} requests")


def cancel_storm(target: Target, count: int, deadline: float) -> Seen:
    """Create `count` watchers on one stream, and cancel all of them in one burst."""
    with Wire(target.client) as wire:
        stream = _watch(wire, count, deadline)
        made = wire.messages[stream]
        cancels = [
            message(
                WatchRequest(cancel_request=WatchCancelRequest(watch_id=number)).SerializeToString()
            )
            for number in range(count)
        ]
        wire.say(stream, b"".join(cancels), deadline)
        wire.until(lambda: wire.messages[stream] >= made + count, deadline)
        return Seen(f"{made:,} watchers, {wire.messages[stream] - made:,} cancelled")


def closed_watchers(target: Target, count: int, deadline: float) -> Seen:
    """Create `count` watchers on one stream, and break the connection."""
    with Wire(target.client) as wire:
        made = wire.messages[_watch(wire, count, deadline)]
    time.sleep(min(1.0, target.hold_seconds))  # ending all of them is the costly part
    return Seen(f"{made:,} watchers")


def nested_deletions(target: Target, count: int, deadline: float) -> Seen:
    """Send one Txn with two levels of nested Txns and the cube of `count` deletions."""
    deletion = RequestOp(request_delete_range=DeleteRangeRequest(key=b"a", range_end=b"z"))
    inner = RequestOp(request_txn=TxnRequest(success=[deletion] * count))
    middle = RequestOp(request_txn=TxnRequest(success=[inner] * count))
    body = TxnRequest(success=[middle] * count).SerializeToString()
    with Wire(target.client) as wire:
        status = wire.answered(wire.call(TXN, body, deadline), deadline)
    return Seen(f"{count**3:,} deletions in {len(body):,} bytes: {status}")


def large_range(target: Target, count: int, deadline: float) -> Seen:
    """Request `count` keys of a mebibyte each in one range, and read the answer."""
    with Wire(target.client) as wire:
        status = wire.answered(wire.call(RANGE, EVERYTHING, deadline), deadline)
        return Seen(f"{count:,} keys: {status}, {wire.data_bytes / 1e6:.0f} MB")


def unread_ranges(target: Target, count: int, deadline: float) -> Seen:
    """Request 20 MB `count` times on one connection, with a window that admits no data."""
    with Wire(target.client, window=0) as wire:
        for _ in range(count):
            wire.call(RANGE, EVERYTHING, deadline)
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        return Seen(
            f"{count:,} calls{', closed' if wire.is_closed else ''}; {in_words(wire.statuses)}"
        )


def unread_snapshots(target: Target, count: int, deadline: float) -> Seen:
    """Never read two requested snapshots; another client waits `count` seconds for its own."""
    with Wire(target.client, window=0) as unread, Wire(target.client) as backup:
        for _ in range(2):
            unread.call(SNAPSHOT, b"", deadline)
        # After this, both snapshots are in progress.
        unread.until(lambda: unread.is_closed, time.monotonic() + min(1.0, target.hold_seconds))
        began = time.monotonic()
        end = min(deadline, began + count)
        status = backup.answered(backup.call(SNAPSHOT, b"", end), end)
        waited = time.monotonic() - began
        text = f"the backup: {status} after {waited:.1f} s, {backup.data_bytes / 1e6:.1f} MB"
        return Seen(text, waited if status == "0" else FAILED)


def many_leases(target: Target, count: int, deadline: float) -> Seen:
    """Grant `count` leases, and list all of them ten times."""
    body = LeaseGrantRequest(TTL=3600).SerializeToString()
    with Wire(target.client) as wire:
        for number in range(count):
            wire.call(GRANT, body, deadline)
            wire.until(lambda sent=number: sent - len(wire.ended) < GRANTS_IN_FLIGHT, deadline)  # type: ignore[misc]
            if wire.is_closed or time.monotonic() > deadline:
                break
        wire.until(lambda: len(wire.ended) >= count, deadline)
        granted = wire.statuses["0"]
        listed = [wire.call(LEASES, b"", deadline) for _ in range(TIMES_LISTED)]
        statuses = {wire.answered(stream, deadline) for stream in listed}
        return Seen(f"{granted:,} granted, listed: {', '.join(sorted(statuses))}")


def many_locks(target: Target, count: int, deadline: float) -> Seen:
    """Request one held lock `count` times, and break the connection."""
    with Wire(target.client) as wire:
        for _ in range(count):
            wire.call(LOCK, b"\x0a\x04lock", deadline)
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        answered = len(wire.ended)
    time.sleep(min(1.0, target.hold_seconds))  # ending all of them is costly, too
    return Seen(f"{count:,} calls, {answered:,} answered")


def put_many(target: Target, count: int, deadline: float) -> None:
    """Put 2,500 small keys for each of `count` ranges."""
    del deadline
    fill(target.client, ((b"many%08d" % each, b"v") for each in range(2_500 * count)))


def ranges_in_one(target: Target, count: int, deadline: float) -> Seen:
    """Send one Txn that reads all keys `count` times."""
    every = RangeRequest(key=b"many", range_end=b"manz", keys_only=True)
    body = TxnRequest(success=[RequestOp(request_range=every)] * count).SerializeToString()
    with Wire(target.client) as wire:
        status = wire.answered(wire.call(TXN, body, deadline), deadline)
        return Seen(f"{status}, {wire.data_bytes / 1e6:.0f} MB")


def keep_alives(target: Target, count: int, deadline: float) -> Seen:
    """Renew one lease `count` times in one burst."""
    grant = LeaseGrantRequest(TTL=3600, ID=7).SerializeToString()
    alive = LeaseKeepAliveRequest(ID=7).SerializeToString()
    with Wire(target.client) as wire:
        wire.answered(wire.call(GRANT, grant, deadline), deadline)
        stream = wire.call(KEEP_ALIVE, alive, deadline, end=False)
        wire.say(stream, message(alive) * (count - 1), deadline)
        wire.until(lambda: wire.messages[stream] >= count or stream in wire.ended, deadline)
        return Seen(f"{wire.messages[stream]:,} answers")


ATTACKS = (
    Attack("progress requests", progress_requests, 1_000, 10, 60.0),
    Attack("cancel storm", cancel_storm, 100_000, 500, 60.0),
    Attack("100,000 watchers gone", closed_watchers, 100_000, 500, 60.0),
    Attack("nested deletions", nested_deletions, 42, 10),
    Attack("range of 200 x 1 MB", large_range, 200, 5, 60.0, prepare=put_large),
    Attack("ranges unread", unread_ranges, 100, 10, 60.0, prepare=put_twenty_large),
    Attack("snapshots unread", unread_snapshots, 80, 1, 100.0, prepare=put_twenty_large),
    Attack("40 ranges in one Txn", ranges_in_one, 40, 4, 60.0, prepare=put_many),
    Attack("10,000 locks", many_locks, 10_000, 100),
    Attack("keep-alives", keep_alives, 100_000, 500),
    Attack("leases", many_leases, 100_000, 200, 90.0),
)
