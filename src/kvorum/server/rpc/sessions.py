"""The building blocks of Lock and Election: leases, transactions, reads, and queues.

The member takes the steps that a client library would take over the network. Each is a part of a
procedure, for use with `yield from`. Parts raise StatusError, and `answer_call` ends the call with
it. Each client in a queue has a key of its own under the queue's prefix; the key with the lowest
create revision is at the head.
"""

from collections.abc import Callable

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError
from kvorum.api.pb.etcdserverpb import (
    Compare,
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseGrantResponse,
    PutRequest,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from kvorum.api.requests import range_of, txn_of
from kvorum.member.member import Member
from kvorum.member.parts import Part, Value
from kvorum.member.waits import KeyDeleted, Propose, Read, Steps
from kvorum.server.rpc import checks
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.permissions import identity_refusal
from kvorum.state.apply.ranges import range_response
from kvorum.state.apply.requests import LEASE_GRANT, TXN
from kvorum.state.apply.results import Result
from kvorum.state.apply.transactions import put_cost
from kvorum.storage.backend.quota import LEASE_GRANT_BYTES

SESSION_TTL_SECONDS = 60
"""The TTL of the lease that a caller without one gets; the server does not renew it."""
OPERATIONS_MAX = 128

# Errors by which the caller itself ended the call keep their code.
_CONTEXT = {errors.CONTEXT_CANCELED, errors.CONTEXT_DEADLINE_EXCEEDED}


def answer_call(steps: Part[bytes]) -> Steps:
    """Run a call of Lock or Election; its errors keep their text and become UNKNOWN."""
    try:
        return (yield from steps)
    except StatusError as error:
        status = error.status
        return status if status in _CONTEXT else Status(Code.UNKNOWN, status.text)


def prefix_of(name: bytes) -> tuple[bytes, bytes]:
    """Return the range of the keys that queue under a name."""
    return name + b"/", name + b"0"


def key_in_queue(name: bytes, lease: int) -> bytes:
    """Return the key of a lease's holder in a queue."""
    return name + b"/" + f"{lease:x}".encode()


def first_in(name: bytes) -> RangeRequest:
    """Return the request for the head of a queue."""
    key, range_end = prefix_of(name)
    return RangeRequest(
        key=key,
        range_end=range_end,
        limit=1,
        sort_order=RangeRequest.ASCEND,
        sort_target=RangeRequest.CREATE,
    )


def created_at(key: bytes, revision: int) -> Compare:
    """Return the condition that a key was created at a revision, or with 0 does not exist."""
    return Compare(key=key, target=Compare.CREATE, create_revision=revision)


def put(key: bytes, value: bytes, lease: int) -> RequestOp:
    """Return the operation that puts a key."""
    return RequestOp(request_put=PutRequest(key=key, value=value, lease=lease))


def get(request: RangeRequest) -> RequestOp:
    """Return the operation that reads a range."""
    return RequestOp(request_range=request)


def delete(key: bytes) -> RequestOp:
    """Return the operation that deletes a key."""
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key))


def lease_for(member: Member, caller: Caller, lease: int) -> Part[int]:
    """Return the given lease, or a new one in place of 0."""
    if lease:
        return lease
    refuse(member.replica.check_quota(LEASE_GRANT_BYTES))
    refuse(identity_refusal(member.state, caller))
    request = LeaseGrantRequest(TTL=SESSION_TTL_SECONDS, ID=member.replica.ids.next_lease_id())
    answer = yield Propose(LEASE_GRANT, request.SerializeToString(), request)
    return LeaseGrantResponse.FromString(require_success(answer)).ID


def transact(member: Member, request: TxnRequest) -> Part[TxnResponse]:
    """Propose a transaction that writes, and return its response."""
    txn = txn_of(request)
    if cost := put_cost(txn):
        refuse(member.replica.check_quota(cost))
    refuse(checks.check_txn(txn, OPERATIONS_MAX))
    answer = yield Propose(TXN, request.SerializeToString(), txn)
    return TxnResponse.FromString(require_success(answer))


def read(request: RangeRequest) -> Part[RangeResponse]:
    """Read a range linearizably."""
    found: Result = yield Read(range_response, range_of(request), linearizable=True)
    return RangeResponse.FromString(require_success(found))


def wait_for_older(name: bytes, own_revision: int) -> Part[None]:
    """Wait until no key of the queue is older than the one created at `own_revision`."""
    key, range_end = prefix_of(name)
    newest_of_older = RangeRequest(
        key=key,
        range_end=range_end,
        limit=1,
        sort_order=RangeRequest.DESCEND,
        sort_target=RangeRequest.CREATE,
        max_create_revision=own_revision - 1,
    )
    while True:
        found = yield from read(newest_of_older)
        if not found.kvs:
            return
        yield KeyDeleted(found.kvs[0].key, found.header.revision)


def run_with_clean_up(steps: Part[Value], clean_up: Callable[[], None]) -> Part[Value]:
    """Run steps; if they fail, or the client goes away before their end, run the clean-up."""
    try:
        return (yield from steps)
    except (GeneratorExit, StatusError):
        clean_up()
        raise


def require_success(answer: Result) -> bytes:
    """Return an answer; raise StatusError if it is a refusal."""
    if isinstance(answer, Status):
        raise StatusError(answer)
    return answer


def refuse(status: Status | None) -> None:
    """Raise StatusError unless the status is None."""
    if status is not None:
        raise StatusError(status)
