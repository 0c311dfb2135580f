"""Random histories of a store, and everything a client can see of one."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple

from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    Compare,
    DeleteRangeRequest,
    HashKVRequest,
    LeaseGrantRequest,
    LeaseLeasesRequest,
    LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
    WatchRequest,
)
from tests.server.rpc.oracle import Oracle

KEYS = 60
SAMPLED_REVISIONS = 25
LEASE_SECONDS = 5_000

Call = tuple[str, Message]


@contextmanager
def connected(address: str) -> Iterator[Oracle]:
    """Speak to a server for as long as the block takes."""
    with closing(Oracle(address)) as client:
        yield client


def ask(client: Oracle, name: str, request: Message) -> Any:
    """Make a call that cannot be refused."""
    answer = client.ask(name, request)
    assert not isinstance(answer, Status), (name, request, answer)
    return answer


def random_calls(seed: int, count: int) -> list[Call]:
    """Return calls that change a store: puts, deletions, transactions, leases, compactions."""
    chance = random.Random(seed)
    leases: list[int] = []
    calls: list[Call] = []

    def key() -> bytes:
        return b"key/%02d" % chance.randrange(KEYS)

    def put() -> PutRequest:
        value = chance.randbytes(chance.choice([0, 3, 30, 300, 5000]))
        lease = chance.choice(leases) if leases and chance.random() < 0.2 else 0
        return PutRequest(key=key(), value=value, lease=lease)

    def delete() -> DeleteRangeRequest:
        start = key()
        end = chance.choice([b"", start + b"\xff", b"key/%02d" % chance.randrange(KEYS)])
        return DeleteRangeRequest(key=start, range_end=end)

    for number in range(count):
        kind = chance.random()
        if kind < 0.7:
            calls.append(("KV/Put", put()))
        elif kind < 0.85:
            calls.append(("KV/DeleteRange", delete()))
        elif kind < 0.95:
            name = key()
            compare = Compare(
                key=name,
                target=Compare.VERSION,
                result=Compare.GREATER,
                version=chance.randrange(3),
            )
            puts = {request.key: request for request in (put() for _ in range(4))}
            calls.append(
                (
                    "KV/Txn",
                    TxnRequest(
                        compare=[compare],
                        success=[RequestOp(request_put=request) for request in puts.values()],
                        failure=[RequestOp(request_delete_range=delete())],
                    ),
                )
            )
        elif kind < 0.98 or not leases:
            leases.append(1_000_000 * (seed + 1) + number)
            calls.append(("Lease/LeaseGrant", LeaseGrantRequest(ID=leases[-1], TTL=LEASE_SECONDS)))
        else:
            leases.remove(lease := chance.choice(leases))
            calls.append(("Lease/LeaseRevoke", LeaseRevokeRequest(ID=lease)))
    return calls


def perform(client: Oracle, calls: list[Call], *, compactions: int = 0) -> None:
    """Make the calls, with compactions spread among them, each at some revision since the first."""
    chance = random.Random(len(calls))
    first = 0
    compact_at = set(chance.sample(range(len(calls) // 2, len(calls)), compactions))
    for number, (name, request) in enumerate(calls):
        revision = ask(client, name, request).header.revision
        first = first or revision
        if number in compact_at:
            # Physical: done when it is answered.
            middle = revision - (revision - first) // 4
            ask(client, "KV/Compact", CompactionRequest(revision=middle, physical=True))


class Sight:
    """Everything a client can see of a store; two that look alike compare equal."""

    def __init__(self, client: Oracle) -> None:
        everything = RangeRequest(key=b"\0", range_end=b"\0")
        now = ask(client, "KV/Range", everything)
        self.revision = int(now.header.revision)
        self.compacted = int(ask(client, "Maintenance/HashKV", HashKVRequest()).compact_revision)
        self.keys = list(now.kvs)
        self.events = _events(client, self.compacted + 1, self.revision)
        # The compacted revision itself is left out: its hash may have been kept.
        revisions = range(max(1, self.compacted + 1), self.revision + 1)
        chosen = random.Random(1).sample(revisions, min(SAMPLED_REVISIONS, len(revisions)))
        self.past = {
            revision: list(ask(client, "KV/Range", _at(everything, revision)).kvs)
            for revision in chosen
        }
        self.hashes = {
            revision: ask(client, "Maintenance/HashKV", HashKVRequest(revision=revision)).hash
            for revision in chosen
        }
        self.leases = _leases(client)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sight) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Lease(NamedTuple):
    """A lease as it was granted, and the keys attached to it."""

    granted: int
    keys: list[bytes]


def _at(request: RangeRequest, revision: int) -> RangeRequest:
    copy = RangeRequest()
    copy.CopyFrom(request)
    copy.revision = revision
    return copy


def _leases(client: Oracle) -> dict[int, Lease]:
    found = {}
    for lease in ask(client, "Lease/LeaseLeases", LeaseLeasesRequest()).leases:
        request = LeaseTimeToLiveRequest(ID=lease.ID, keys=True)
        told = ask(client, "Lease/LeaseTimeToLive", request)
        found[int(lease.ID)] = Lease(told.grantedTTL, sorted(told.keys))
    return found


def _events(client: Oracle, first: int, last: int) -> list[Any]:
    """Return every change between two revisions, which gives every key at every revision."""
    if first > last:
        return []
    create = WatchRequest()
    create.create_request.key = create.create_request.range_end = b"\0"
    create.create_request.start_revision = max(1, first)
    create.create_request.prev_kv = True
    # The stream stays open until it is told to end.
    requests: SimpleQueue[WatchRequest | None] = SimpleQueue()
    requests.put(create)
    stream = client.stream("Watch/Watch", iter(requests.get, None))
    events: list[Any] = []
    for response in stream:
        assert not response.canceled, response
        events += response.events
        if events and events[-1].kv.mod_revision >= last:
            break
    requests.put(None)
    stream.cancel()
    return [(event.type, event.kv, event.prev_kv) for event in events]
