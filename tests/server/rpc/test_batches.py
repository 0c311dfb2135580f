"""Batches of the edge that take longer than a turn: wherever they are cut, answers are the same."""

from typing import Any

import pytest

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.interface import EdgeEventKind, Event, Request
from kvorum.server.rpc.table import NUMBERS
from tests.server.rpc.harness import Harness

KEYS = 40
WATCH = NUMBERS["/etcdserverpb.Watch/Watch"]
KEEP_ALIVE = NUMBERS["/etcdserverpb.Lease/LeaseKeepAlive"]
STREAMS = range(10_000, 10_004)


def filled() -> Harness:
    harness = Harness()
    for number in range(KEYS):
        harness.ask("KV/Put", pb.PutRequest(key=b"k%02d" % number, value=b"v" * number))
    for lease in range(1, 4):
        harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    return harness


def nested(depth: int, width: int) -> pb.TxnRequest:
    if not depth:
        deletion = pb.DeleteRangeRequest(key=b"not there" * 20)
        return pb.TxnRequest(success=[pb.RequestOp(request_delete_range=deletion)] * width)
    inner = nested(depth - 1, width)
    return pb.TxnRequest(success=[pb.RequestOp(request_txn=inner)] * width)


def batch() -> tuple[list[Request], list[Event]]:
    """Return a batch that changes only deadlines of leases, so that its order is irrelevant."""
    ranges = [
        pb.RangeRequest(key=b"k", range_end=b"l", serializable=True, sort_order="DESCEND", limit=7),
        pb.RangeRequest(key=b"k", range_end=b"l", serializable=True, keys_only=True),
        pb.RangeRequest(key=b"k07", serializable=True),
        pb.RangeRequest(key=b"k", range_end=b"l"),
        pb.RangeRequest(key=b""),
    ]
    reads = [pb.RequestOp(request_range=each) for each in ranges[:4]]
    asked: list[tuple[str, Any]] = [
        *(("KV/Range", each) for each in ranges),
        ("KV/Txn", pb.TxnRequest(success=reads)),
        ("KV/Txn", nested(2, 6)),
        ("KV/Txn", nested(1, 200)),
        ("Maintenance/Status", pb.StatusRequest()),
        ("Cluster/MemberList", pb.MemberListRequest()),
        ("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=2, keys=True)),
    ]
    requests: list[Request] = [
        (call, NUMBERS[f"/etcdserverpb.{name}"], request.SerializeToString(), None)
        for call, (name, request) in enumerate(asked * 8, 1000)
    ]
    requests.append((999, NUMBERS["/etcdserverpb.KV/Txn"], b"\xff" * 100_000, None))
    events: list[Event] = []
    for call in STREAMS:
        method = WATCH if call % 2 else KEEP_ALIVE
        events.append((EdgeEventKind.OPENED, call, (method, None)))
    for number in range(30):
        for call in STREAMS:
            message: Any = pb.LeaseKeepAliveRequest(ID=number % 2)
            if call % 2:
                message = [
                    pb.WatchRequest(
                        create_request=pb.WatchCreateRequest(
                            key=b"k%02d" % number, start_revision=number % 3
                        )
                    ),
                    pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=number // 2)),
                    pb.WatchRequest(progress_request=pb.WatchProgressRequest()),
                ][number % 3]
            events.append((EdgeEventKind.MESSAGE, call, message.SerializeToString()))
    events.append((EdgeEventKind.HALF_CLOSED, STREAMS[0], None))
    events.append((EdgeEventKind.ENDED, STREAMS[1], None))
    return requests, events


def served(looks_max: int) -> tuple[Harness, int]:
    """Serve the batch with so many reads of the clock a turn; return how many turns it took."""
    harness = filled()
    harness.looks_max = looks_max
    requests, events = batch()
    harness.turn(requests, events)
    turns = 1
    while harness.server.waiting:
        harness.turn()
        turns += 1
    harness.looks_max = 0
    harness.settle()
    return harness, turns


@pytest.fixture(scope="module", name="at_once")
def _at_once() -> Harness:
    harness, turns = served(0)
    assert turns == 1
    return harness


@pytest.mark.long
@pytest.mark.parametrize("looks_max", [1, 3, 50])
def test_where_a_batch_is_cut_changes_no_answer(at_once: Harness, looks_max: int) -> None:
    harness, turns = served(looks_max)
    requests, events = batch()
    assert turns >= len(requests) / (PRODUCTION.requests_per_clock_check * looks_max)
    assert turns >= len(events) / looks_max
    expected = {call: at_once.edge.replies[call] for call, _, _, _ in requests}
    assert {call: harness.edge.replies[call] for call, _, _, _ in requests} == expected
    for call in STREAMS[2:]:
        assert controls(harness, call) == controls(at_once, call)
    assert harness.edge.finished == at_once.edge.finished


def controls(harness: Harness, call: int) -> list[Any]:
    """Return the answers to a stream's requests, without events: when those come is not fixed."""
    if not call % 2:
        return harness.edge.sent[call]
    found = [pb.WatchResponse.FromString(each) for each in harness.edge.sent[call]]
    return [each for each in found if each.created or each.canceled]


def test_nothing_is_taken_while_something_is_left() -> None:
    harness = filled()
    harness.looks_max = 1
    requests, events = batch()
    calls, size = harness.server.room
    assert calls > 0 and size > 0
    harness.turn(requests, events)
    assert harness.server.waiting
    assert harness.server.room == (0, 0)


def test_reads_and_long_transactions_that_wait_take_room() -> None:
    harness = filled()
    calls, size = harness.services.room
    point = pb.RangeRequest(key=b"k01", serializable=True).SerializeToString()
    long = nested(1, 12).SerializeToString()
    # Enough time to take the requests, but not to answer them.
    harness.looks_max = 4
    reads = harness.begin_all("/etcdserverpb.KV/Range", [point] * 190)
    waiting = [call for call in reads if call not in harness.edge.replies]
    assert waiting
    assert harness.services.room == (calls - len(waiting), size)
    harness.settle()
    harness.looks_max = 5
    harness.begin_all("/etcdserverpb.KV/Txn", [long] * 3)
    assert harness.services.room == (calls, size - 3 * len(long))
    harness.settle()
    assert harness.services.room == (calls, size)
