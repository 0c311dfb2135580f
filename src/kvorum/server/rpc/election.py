"""The Election service: the client at the head of the queue under a name is the leader.

A leader proves itself by its key and that key's create revision: it can proclaim a value only while
the key still exists.
"""

from kvorum.api import errors
from kvorum.api.codec import key_field
from kvorum.api.errors import StatusError
from kvorum.api.pb.etcdserverpb import RangeRequest, TxnRequest, TxnResponse
from kvorum.api.pb.v3electionpb import (
    CampaignRequest,
    CampaignResponse,
    LeaderKey,
    LeaderRequest,
    LeaderResponse,
    ProclaimRequest,
    ProclaimResponse,
    ResignRequest,
    ResignResponse,
)
from kvorum.api.requests import txn_of
from kvorum.api.responses import leader_body
from kvorum.api.wire import parse_message
from kvorum.member.member import Member
from kvorum.member.parts import Part
from kvorum.member.waits import KeysChanged, Send, Steps
from kvorum.server.rpc import sessions
from kvorum.server.rpc.interface import OK, RpcOutput
from kvorum.server.rpc.sessions import answer_call
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.requests import TXN
from kvorum.state.mvcc.history import bound


class Elections:
    """Serves the calls of Election."""

    def __init__(self, member: Member, edge: RpcOutput) -> None:
        self._member = member
        self._edge = edge

    def campaign(self, call: int, caller: Caller, payload: bytes) -> None:
        """Answer once the caller is the leader."""
        request = parse_message(CampaignRequest, payload)
        self._edge.mark_waiting(call)
        self._member.start(call, caller, answer_call(_campaign(self._member, caller, request)))

    def proclaim(self, call: int, caller: Caller, payload: bytes) -> None:
        """Change the value of a leader."""
        request = parse_message(ProclaimRequest, payload)
        self._member.start(call, caller, answer_call(_proclaim(self._member, caller, request)))

    def leader(self, call: int, caller: Caller, payload: bytes) -> None:
        """Answer with the leader's key and value."""
        request = parse_message(LeaderRequest, payload)
        self._member.start(call, caller, answer_call(_leader(request)))

    def resign(self, call: int, caller: Caller, payload: bytes) -> None:
        """Resign from the leadership."""
        request = parse_message(ResignRequest, payload)
        self._member.start(call, caller, answer_call(_resign(self._member, caller, request)))


def _campaign(member: Member, caller: Caller, request: CampaignRequest) -> Part[bytes]:
    name, value = request.name, request.value
    lease = yield from sessions.lease_for(member, caller, request.lease)
    key = sessions.key_in_queue(name, lease)
    queued = yield from sessions.transact(
        member,
        TxnRequest(
            compare=[sessions.created_at(key, 0)],
            success=[sessions.put(key, value, lease)],
            failure=[sessions.get(RangeRequest(key=key))],
        ),
    )
    leader = LeaderKey(name=name, key=key, rev=queued.header.revision, lease=lease)
    if not queued.succeeded:
        (own,) = queued.responses[0].response_range.kvs
        leader.rev = own.create_revision
        if own.value != value:
            yield from sessions.run_with_clean_up(
                _put_value(member, leader, value), lambda: _leave(member, caller, leader)
            )
    yield from sessions.run_with_clean_up(
        sessions.wait_for_older(name, leader.rev), lambda: _leave(member, caller, leader)
    )
    return CampaignResponse(header=queued.header, leader=leader).SerializeToString()


def _proclaim(member: Member, caller: Caller, request: ProclaimRequest) -> Part[bytes]:
    leader = yield from _leader_of(member, caller, request)
    put = yield from _put_value(member, leader, request.value)
    return ProclaimResponse(header=put.header).SerializeToString()


def _resign(member: Member, caller: Caller, request: ResignRequest) -> Part[bytes]:
    leader = yield from _leader_of(member, caller, request)
    left = yield from sessions.transact(member, _resignation(leader))
    return ResignResponse(header=left.header).SerializeToString()


def _leader(request: LeaderRequest) -> Part[bytes]:
    found = yield from sessions.read(sessions.first_in(request.name))
    if not found.kvs:
        raise StatusError(errors.ELECTION_NO_LEADER)
    return LeaderResponse(header=found.header, kv=found.kvs[0]).SerializeToString()


def _leader_of(
    member: Member, caller: Caller, request: ProclaimRequest | ResignRequest
) -> Part[LeaderKey]:
    """Return the leader named in a request; if it has no lease, grant one, needed or not."""
    if not request.HasField("leader"):
        raise StatusError(errors.LEADER_FIELD_MISSING)
    leader = request.leader
    lease = yield from sessions.lease_for(member, caller, leader.lease)
    return LeaderKey(name=leader.name, key=leader.key, rev=leader.rev, lease=lease)


def _put_value(member: Member, leader: LeaderKey, value: bytes) -> Part[TxnResponse]:
    put = yield from sessions.transact(
        member,
        TxnRequest(
            compare=[sessions.created_at(leader.key, leader.rev)],
            success=[sessions.put(leader.key, value, leader.lease)],
        ),
    )
    if not put.succeeded:
        raise StatusError(errors.ELECTION_NOT_LEADER)
    return put


def _resignation(leader: LeaderKey) -> TxnRequest:
    return TxnRequest(
        compare=[sessions.created_at(leader.key, leader.rev)],
        success=[sessions.delete(leader.key)],
    )


def _leave(member: Member, caller: Caller, leader: LeaderKey) -> None:
    """Propose to leave the queue, without waiting until the entry is applied."""
    request = _resignation(leader)
    member.replica.propose(None, caller, TXN, request.SerializeToString(), txn_of(request))


class Observers:
    """Serves Observe: sends the leader of a name, all its values, and every later leader."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def begin(self, _caller: Caller, payload: bytes) -> Steps:
        """Return the procedure that answers a request."""
        return _observe(self._member, parse_message(LeaderRequest, payload).name)


def _observe(member: Member, name: bytes) -> Steps:
    prefix, range_end = sessions.prefix_of(name)
    while True:
        try:
            found = yield from sessions.read(sessions.first_in(name))
        except StatusError:
            # End the stream without an error, as etcd does: its client retries.
            return OK
        revision = found.header.revision
        if not found.kvs:
            yield KeysChanged(prefix, range_end, revision)
            continue
        key = found.kvs[0].key
        yield Send(LeaderResponse(header=found.header, kv=found.kvs[0]).SerializeToString())
        while revision:
            yield KeysChanged(key, b"", revision)
            revision = yield from _send_changes(member, key, revision)


def _send_changes(member: Member, key: bytes, revision: int) -> Part[int]:
    """Send the puts of a key after a revision; return the revision reached, 0 if the key is gone.

    The key also counts as gone if a compaction may have removed its deletion.
    """
    start = (revision + 1) << 32
    row_start = key_field(key)
    rows_per_slice = member.config.limits.election_rows_per_slice
    while True:
        # Look up the store again: a snapshot may have replaced it while the client was slow.
        store = member.state.store
        if start >> 32 < store.compacted_revision:
            return 0
        last = store.revision
        rows = store.backend.scan_rows(start, bound(last), rows_per_slice)
        for row_revision, row in rows:
            if not row.startswith(row_start):
                continue
            if row_revision & 1:
                return 0
            header = member.state.header.field(row_revision >> 32)
            yield Send(header + leader_body(row))
        if len(rows) < rows_per_slice:
            return last
        start = rows[-1][0] + 1
        yield None
