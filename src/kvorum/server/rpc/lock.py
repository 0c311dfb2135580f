"""The Lock service: the client at the head of the queue under a lock's name holds it.

A waiting call does not keep its lease alive, and goes on waiting after the lease has expired: only
at the head of the queue does it notice that its own key is gone.
"""

from kvorum.api import errors
from kvorum.api.errors import StatusError
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    DeleteRangeResponse,
    RangeRequest,
    RangeResponse,
    TxnRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, LockResponse, UnlockRequest, UnlockResponse
from kvorum.api.requests import DeleteRange
from kvorum.api.wire import parse_message
from kvorum.member.member import Member
from kvorum.member.parts import Part
from kvorum.member.waits import Propose
from kvorum.server.rpc import checks, sessions
from kvorum.server.rpc.interface import RpcOutput
from kvorum.server.rpc.sessions import answer_call, refuse, require_success
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.requests import DELETE_RANGE


class Locks:
    """Serves the calls of Lock."""

    def __init__(self, member: Member, edge: RpcOutput) -> None:
        self._member = member
        self._edge = edge

    def lock(self, call: int, caller: Caller, payload: bytes) -> None:
        """Answer once the caller holds the lock of a name."""
        request = parse_message(LockRequest, payload)
        self._edge.mark_waiting(call)
        self._member.start(call, caller, answer_call(_lock(self._member, caller, request)))

    def unlock(self, call: int, caller: Caller, payload: bytes) -> None:
        """Delete the key of a holder."""
        request = parse_message(UnlockRequest, payload)
        self._member.start(call, caller, answer_call(_unlock(request)))


def _lock(member: Member, caller: Caller, request: LockRequest) -> Part[bytes]:
    lease = yield from sessions.lease_for(member, caller, request.lease)
    key = sessions.key_in_queue(request.name, lease)
    first = sessions.get(sessions.first_in(request.name))
    queued = yield from sessions.transact(
        member,
        TxnRequest(
            compare=[sessions.created_at(key, 0)],
            success=[sessions.put(key, b"", lease), first],
            failure=[sessions.get(RangeRequest(key=key)), first],
        ),
    )
    own, owner = queued.responses
    revision = queued.header.revision
    if not queued.succeeded:
        revision = own.response_range.kvs[0].create_revision
    owners = owner.response_range.kvs
    header = queued.header
    if owners and owners[0].create_revision != revision:
        body = DeleteRangeRequest(key=key).SerializeToString()
        found = yield from sessions.run_with_clean_up(
            _wait(request.name, key, revision),
            lambda: member.replica.propose(None, caller, DELETE_RANGE, body, DeleteRange(key)),
        )
        if not found.kvs:
            raise StatusError(errors.SESSION_EXPIRED)
        header = found.header
    return LockResponse(header=header, key=key).SerializeToString()


def _wait(name: bytes, key: bytes, revision: int) -> Part[RangeResponse]:
    yield from sessions.wait_for_older(name, revision)
    return (yield from sessions.read(RangeRequest(key=key)))


def _unlock(request: UnlockRequest) -> Part[bytes]:
    deletion = DeleteRange(request.key)
    refuse(checks.check_delete_range(deletion))
    body = DeleteRangeRequest(key=request.key).SerializeToString()
    answer = yield Propose(DELETE_RANGE, body, deletion)
    deleted = DeleteRangeResponse.FromString(require_success(answer))
    return UnlockResponse(header=deleted.header).SerializeToString()
