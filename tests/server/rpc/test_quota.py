"""A full database: what is refused, what frees space, and the alarm in between."""

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3lockpb import LockRequest
from tests.server.rpc.harness import Harness

PUT = pb.PutRequest(key=b"a", value=bytes(100))
PUT_OPERATION = pb.RequestOp(request_put=PUT)
READ_OPERATION = pb.RequestOp(request_range=pb.RangeRequest(key=b"a"))
DELETE_OPERATION = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"a"))
NESTED_OPERATION = pb.RequestOp(request_txn=pb.TxnRequest(failure=[PUT_OPERATION]))


@pytest.fixture
def harness() -> Harness:
    return Harness(quota_bytes=1)


def alarms(harness: Harness) -> list[tuple[int, int]]:
    found = harness.ask("Maintenance/Alarm", pb.AlarmRequest())
    return [(alarm.memberID, alarm.alarm) for alarm in found.alarms]


def test_a_refused_put_raises_the_alarm(harness: Harness) -> None:
    assert alarms(harness) == []
    assert harness.ask("KV/Put", PUT) == errors.NO_SPACE
    assert alarms(harness) == [(harness.member.id, pb.NOSPACE)]
    assert harness.member.state.store.revision == 1
    status = harness.ask("Maintenance/Status", pb.StatusRequest())
    assert list(status.errors) == [f"memberID:{harness.member.id} alarm:NOSPACE"]


def test_space_comes_before_every_other_check(harness: Harness) -> None:
    for request in (pb.PutRequest(), pb.PutRequest(ignore_value=True, value=b"v")):
        assert harness.ask("KV/Put", request) == errors.NO_SPACE
    empty = pb.RequestOp(request_put=pb.PutRequest())
    assert harness.ask("KV/Txn", pb.TxnRequest(success=[empty])) == errors.NO_SPACE
    assert harness.ask("KV/DeleteRange", pb.DeleteRangeRequest()) == errors.EMPTY_KEY


@pytest.mark.parametrize(
    "request_",
    [
        pb.TxnRequest(success=[PUT_OPERATION]),
        pb.TxnRequest(failure=[READ_OPERATION, PUT_OPERATION]),
        pb.TxnRequest(success=[NESTED_OPERATION]),
    ],
)
def test_transactions_with_puts_are_refused(harness: Harness, request_: pb.TxnRequest) -> None:
    assert harness.ask("KV/Txn", request_) == errors.NO_SPACE


def test_what_needs_no_space_goes_on(harness: Harness) -> None:
    harness.ask("KV/Put", PUT)
    free = pb.TxnRequest(success=[READ_OPERATION, DELETE_OPERATION])
    for name, request in (
        ("KV/Range", pb.RangeRequest(key=b"a")),
        ("KV/DeleteRange", pb.DeleteRangeRequest(key=b"a")),
        ("KV/Txn", free),
        ("KV/Compact", pb.CompactionRequest(revision=1)),
    ):
        assert not isinstance(harness.ask(name, request), Status), name
    assert harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=10)) == errors.NO_SPACE
    refused = harness.ask("Lock/Lock", LockRequest(name=b"l"))
    assert refused == Status(errors.Code.UNKNOWN, errors.NO_SPACE.text)


def test_the_alarm_stays_until_it_is_cleared() -> None:
    harness = Harness()
    raised = pb.AlarmRequest(action=pb.AlarmRequest.ACTIVATE, memberID=5, alarm=pb.NOSPACE)
    harness.ask("Maintenance/Alarm", raised)
    assert harness.ask("KV/Put", PUT) == errors.NO_SPACE
    cleared = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, memberID=5, alarm=pb.NOSPACE)
    harness.ask("Maintenance/Alarm", cleared)
    assert not isinstance(harness.ask("KV/Put", PUT), Status)
