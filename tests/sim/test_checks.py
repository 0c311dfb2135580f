"""Leases, locks and answers: what must not be is noticed, and what may be is not."""

import pytest

from kvorum.api.pb.etcdserverpb import (
    Compare,
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    ResponseHeader,
    TxnRequest,
    TxnResponse,
)
from kvorum.api.pb.v3lockpb import LockRequest, LockResponse
from kvorum.sim import checks
from kvorum.sim.history import History, Record
from kvorum.sim.lease_checks import check_leases
from kvorum.sim.lock_checks import check_locks
from kvorum.sim.model import run
from kvorum.sim.sessions import Hold
from kvorum.sim.violation import Violation


def record(
    history: History, request: object, response: object, started: float = 0.0, took: float = 0.1
) -> Record:
    """Note a request and its answer."""
    each = Record(1, "asked", 1, request, history.moment(), started)
    each.response, each.returned, each.finished = response, history.moment(), started + took
    history.records.append(each)
    return each


def write(history: History, request: object, now: float = 0.0) -> None:
    """Let a request take effect under the next revision."""
    history.replay()
    main = history.revision + 1
    _, rows = run(history, request, main - 1, main)
    history.observe(now, "m1", main, main, -1, rows)
    history.replay()


def header(revision: int) -> ResponseHeader:
    return ResponseHeader(revision=revision, raft_term=1)


def test_a_lease_that_is_gone_too_soon_is_noticed() -> None:
    history = History()
    record(history, LeaseGrantRequest(TTL=5), LeaseGrantResponse(ID=7, TTL=5))
    write(history, PutRequest(key=b"k/0", value=b"a", lease=7))
    write(history, DeleteRangeRequest(key=b"k/0"), now=5.5)
    check_leases(history)
    record(history, LeaseKeepAliveRequest(ID=7), LeaseKeepAliveResponse(ID=7, TTL=5), 3.0)
    with pytest.raises(Violation, match=r"gone at revision 3"):
        check_leases(history)


def test_a_lease_that_is_not_found_too_soon_is_noticed() -> None:
    history = History()
    record(history, LeaseGrantRequest(TTL=5), LeaseGrantResponse(ID=7, TTL=5))
    record(history, LeaseKeepAliveRequest(ID=7), LeaseKeepAliveResponse(ID=7), 6.0)
    check_leases(history)
    record(history, LeaseKeepAliveRequest(ID=7), LeaseKeepAliveResponse(ID=7), 3.0)
    with pytest.raises(Violation, match="leases do not end early"):
        check_leases(history)


def test_a_lock_is_held_by_the_head_of_the_queue() -> None:
    history = History()
    write(history, PutRequest(key=b"lock/1"))
    write(history, PutRequest(key=b"lock/2"))
    request = LockRequest(name=b"lock")
    record(history, request, LockResponse(header=header(2), key=b"lock/1"))
    check_locks(history, [])
    record(history, request, LockResponse(header=header(3), key=b"lock/2"))
    with pytest.raises(Violation, match="locks and elections are held once"):
        check_locks(history, [])


def test_two_who_live_do_not_hold_one_lock() -> None:
    history = History()
    each = record(history, None, None)
    holds = [Hold(b"lock", "s1", each, 1.0, 2.0), Hold(b"lock", "s2", each, 2.0, 3.0)]
    check_locks(history, holds)
    check_locks(history, [*holds, Hold(b"election", "s3", each, 1.0, 3.0)])
    with pytest.raises(Violation, match="locks and elections are held once"):
        check_locks(history, [*holds, Hold(b"lock", "s3", each, 1.5, 1.6)])


def two_puts() -> History:
    history = History()
    write(history, PutRequest(key=b"k/0", value=b"a"))
    write(history, PutRequest(key=b"k/1", value=b"b"))
    return history


def test_a_range_of_two_revisions_is_noticed() -> None:
    history = two_puts()
    request = RangeRequest(key=b"k/", range_end=b"k0", serializable=True)
    whole, _ = run(history, request, 3, 4)
    whole.header.CopyFrom(header(3))
    record(history, request, whole)
    checks.check_answers(history)
    assert isinstance(whole, RangeResponse)
    torn = RangeResponse(header=header(2), kvs=whole.kvs, count=2)
    record(history, request, torn)
    with pytest.raises(Violation, match=checks.EXPLAINED):
        checks.check_answers(history)


def test_a_compare_that_does_not_hold_is_noticed() -> None:
    history = two_puts()
    request = TxnRequest(
        compare=[
            Compare(key=b"k/0", target=Compare.MOD, mod_revision=2),
            Compare(key=b"k/1", target=Compare.MOD, mod_revision=2),
        ],
        success=[RequestOp(request_put=PutRequest(key=b"k/0", value=b"c"))],
    )
    record(history, request, TxnResponse(header=header(3)))
    checks.check_answers(history)
    write(history, PutRequest(key=b"k/0", value=b"c"))
    answer = TxnResponse(header=header(4), succeeded=True)
    answer.responses.add().response_put.SetInParent()
    record(history, request, answer)
    with pytest.raises(Violation, match=checks.EXPLAINED):
        checks.check_answers(history)


def test_an_acknowledged_put_that_is_not_there_is_noticed() -> None:
    history = two_puts()
    request = PutRequest(key=b"k/1", value=b"b")
    record(history, request, PutResponse(header=header(3)))
    checks.check_answers(history)
    assert history.records[-1].wrote
    record(history, request, PutResponse(header=header(2)))
    with pytest.raises(Violation, match=checks.DURABLE):
        checks.check_answers(history)


def test_a_stale_read_is_noticed_by_its_revision() -> None:
    history = two_puts()
    request = RangeRequest(key=b"k/0")
    record(history, request, RangeResponse(header=header(3)))
    checks.check_order(history)
    record(history, request, RangeResponse(header=header(2)))
    with pytest.raises(Violation, match=checks.MONOTONIC):
        checks.check_order(history)
